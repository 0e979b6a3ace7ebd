r"""Exact arithmetic of the numbers that answers are made of, without sympy: `read` makes a `Value` of tidied LaTeX.

A value is a quotient of two sums of rational multiples of square roots of integers (i is √-1) and of powers of π. Such
quotients have one canonical comparison, n₁·d₂ = n₂·d₁, and square roots of different squarefree numbers are linearly
independent, as are powers of π, so `same` is right in both directions. What goes beyond that is `Unreadable`: letters,
other roots and exponents, functions, and `1/2\pi`, which people mean in two ways. Sizes are bounded.
"""

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce

LONGEST = 400  # characters
DEEPEST = 40  # brackets
LONGEST_SUM = 100  # terms
LARGEST_EXPONENT = 64
MOST_BITS = 20_000  # of a number
LARGEST_RADICAND = 10**12

#: (the squarefree number under the root, exponent of π) → coefficient
Sum = dict[tuple[int, int], Fraction]
_UNIT = (1, 0)
_ONE: Sum = {_UNIT: Fraction(1)}


class Unreadable(ValueError):
    """The text is no expression of this arithmetic, or too large for it."""


@dataclass(frozen=True)
class Value:
    numerator: Sum
    denominator: Sum

    @property
    def rational(self) -> Fraction | None:
        if self.numerator.keys() <= {_UNIT} and self.denominator.keys() == {_UNIT}:
            return self.numerator.get(_UNIT, Fraction(0)) / self.denominator[_UNIT]
        return None

    def approximate(self, pi: float = math.pi) -> float | None:
        """The value as a float, where it is a real number."""
        above, below = _approximate(self.numerator, pi), _approximate(self.denominator, pi)
        return above / below if above is not None and below else None


def same(a: Value, b: Value) -> bool:
    return _times(a.numerator, b.denominator) == _times(b.numerator, a.denominator)


def _approximate(terms: Sum, pi: float) -> float | None:
    if any(radicand < 0 for radicand, _ in terms):
        return None
    try:
        return sum(float(part) * math.sqrt(radicand) * pi**exponent for (radicand, exponent), part in terms.items())
    except OverflowError:
        return None


def _plus(f: Sum, g: Sum) -> Sum:
    total = dict(f)
    for key, coefficient in g.items():
        new = total.get(key, Fraction(0)) + coefficient
        _bounded(new)
        if new:
            total[key] = new
        else:
            total.pop(key, None)
    if len(total) > LONGEST_SUM:
        raise Unreadable("too many terms")
    return total


def _times(f: Sum, g: Sum) -> Sum:
    if len(f) * len(g) > LONGEST_SUM * 10:
        raise Unreadable("too many terms")
    total: Sum = {}
    for (r, a), x in f.items():
        for (s, b), y in g.items():
            common = math.gcd(r, s)
            negative = r < 0 and s < 0  # √-a·√-b = -√ab
            if a + b > LARGEST_EXPONENT:
                raise Unreadable("exponent too large")
            key = (r // common * (s // common), a + b)
            total[key] = total.get(key, Fraction(0)) + x * y * (-common if negative else common)
    return _plus({}, total)


def _bounded(number: Fraction) -> None:
    if max(number.numerator.bit_length(), number.denominator.bit_length()) > MOST_BITS:
        raise Unreadable("number too large")


def constant(number: Fraction | int) -> Value:
    number = Fraction(number)
    _bounded(number)
    return Value({_UNIT: number} if number else {}, _ONE)


def add(a: Value, b: Value) -> Value:
    if a.denominator == b.denominator:
        return Value(_plus(a.numerator, b.numerator), a.denominator)
    above = _plus(_times(a.numerator, b.denominator), _times(b.numerator, a.denominator))
    return Value(above, _times(a.denominator, b.denominator))


def negate(a: Value) -> Value:
    return Value({key: -coefficient for key, coefficient in a.numerator.items()}, a.denominator)


def multiply(a: Value, b: Value) -> Value:
    return _reduced(Value(_times(a.numerator, b.numerator), _times(a.denominator, b.denominator)))


def divide(a: Value, b: Value) -> Value:
    if not b.numerator:
        raise Unreadable("division by zero")
    return _reduced(Value(_times(a.numerator, b.denominator), _times(a.denominator, b.numerator)))


def _reduced(a: Value) -> Value:
    """A denominator that is a rational number goes into the coefficients."""
    if a.denominator.keys() != {_UNIT}:
        return a
    below = a.denominator[_UNIT]
    return Value({key: coefficient / below for key, coefficient in a.numerator.items()}, _ONE)


def power(base: Value, exponent: Value) -> Value:
    wanted = exponent.rational
    if wanted is None:
        raise Unreadable("irrational exponent")
    if wanted == Fraction(1, 2):
        return square_root(base)
    if wanted.denominator != 1:
        raise Unreadable("fractional exponent")
    number, times = base.rational, abs(int(wanted))
    if number is not None:
        if times * max(number.numerator.bit_length(), number.denominator.bit_length(), 1) > MOST_BITS:
            raise Unreadable("number too large")
        result = constant(number**times)
    elif times > LARGEST_EXPONENT:
        raise Unreadable("exponent too large")
    else:
        result = reduce(multiply, [base] * times, constant(1))
    return result if wanted >= 0 else divide(constant(1), result)


def square_root(radicand: Value) -> Value:
    number = radicand.rational
    if number is None or abs(number.numerator * number.denominator) > LARGEST_RADICAND:
        raise Unreadable("root of no small number")
    outside, inside = _squarefree(number.numerator * number.denominator)  # √(a/b) = √(ab)/b
    if not inside:
        return constant(0)
    return Value({(inside, 0): Fraction(outside, number.denominator)}, _ONE)


def _squarefree(number: int) -> tuple[int, int]:
    """(outside, inside) with number = outside²·inside and inside squarefree."""
    outside, inside, rest, factor = 1, -1 if number < 0 else 1, abs(number), 2
    if not rest:
        return 0, 0
    while factor**3 <= rest:
        while rest % factor**2 == 0:
            rest, outside = rest // factor**2, outside * factor
        if rest % factor == 0:
            rest, inside = rest // factor, inside * factor
        factor += 1
    # No prime below the cube root is left in it: it is a prime, a product of two, or the square of one.
    whole = math.isqrt(rest)
    return (outside * whole, inside) if whole * whole == rest else (outside, inside * rest)


_TOKEN = re.compile(
    r"(?P<periodic>\d*\.\d*\\overline\{\d+\})"
    r"|(?P<number>\d{1,3}(?:,\d{3})+(?:\.\d+)?(?!\d)|\d*\.\d+|\d+\.?)"
    r"|(?P<command>\\[a-zA-Z]+)"
    r"|(?P<letter>i)"
    r"|(?P<sign>[-+*/^(){}\[\]])"
    r"|(?P<space>\s+)"
)
_MIXED = re.compile(r"(?<![\d.,}])(\d+) (\d+)/(\d+)(?![\d.])")  # 1 1/2
_NAMED = {"\\pi": Value({(1, 1): Fraction(1)}, _ONE), "i": Value({(-1, 0): Fraction(1)}, _ONE)}


def read(text: str) -> Value:
    reader = _Reader(text)
    value = reader.sum()
    if reader.at != len(reader.tokens):
        raise Unreadable("it does not end where it should")
    return value


class _Reader:
    """Reads one expression from left to right."""

    def __init__(self, text: str):
        if len(text) > LONGEST:
            raise Unreadable("too long")
        text = _MIXED.sub(r"(\1+\2/\3)", text)
        self.tokens: list[tuple[str, str]] = []
        self.at = self.depth = 0
        end = 0
        while match := _TOKEN.match(text, end):
            end = match.end()
            if match.lastgroup != "space":
                self.tokens.append((match.lastgroup or "", match[0]))
        if end != len(text):
            raise Unreadable(f"{text[end]!r} is no part of it")

    def sum(self) -> Value:
        self.depth += 1
        if self.depth > DEEPEST:
            raise Unreadable("nested too deeply")
        value = self.signed()
        while self.next() in ("+", "-"):
            value = add(value, self.signed())
        self.depth -= 1
        return value

    def signed(self) -> Value:
        negative = False
        while (sign := self.next()) in ("+", "-"):
            negative ^= sign == "-"
            self.at += 1
        value = self.product()
        return negate(value) if negative else value

    def product(self) -> Value:
        value = self.factor()
        divided = False
        while True:
            sign = self.next()
            if sign in ("*", "/"):
                self.at += 1
                divided = sign == "/"
                right = self.factor(signs=True)
                value = divide(value, right) if divided else multiply(value, right)
            elif self.kind() in ("number", "periodic", "command", "letter") or sign in ("(", "{", "["):
                if divided or self.kind() in ("number", "periodic"):
                    raise Unreadable("a number behind a factor, or 1/2\\pi")
                value = multiply(value, self.factor())
            else:
                return value

    def factor(self, signs: bool = False) -> Value:
        if signs and self.next() in ("+", "-"):
            negative = self.take() == "-"
            value = self.factor(signs=True)
            return negate(value) if negative else value
        whole = self.kind() == "number" and self.tokens[self.at][1].isdigit()
        value = self.atom()
        if whole and self.next() == "\\frac" and (part := self.fraction_of_mixed()) is not None:
            return add(value, part)
        if self.next() == "^":
            self.at += 1
            value = power(value, self.argument())
            if self.next() == "^":
                raise Unreadable("power of a power")
        return value

    def fraction_of_mixed(self) -> Value | None:
        r"""The \frac behind a whole number, where both make a mixed number: 1\frac{1}{2} is 3/2."""
        start, tokens = self.at, list(self.tokens)
        value = self.factor()
        only_digits = all(kind == "number" or text in "{}" for kind, text in self.tokens[start + 1 : self.at])
        number = value.rational
        if only_digits and number is not None and 0 < number < 1:
            return value
        self.at, self.tokens = start, tokens
        return None

    def atom(self) -> Value:
        kind, text = self.kind(), self.take()
        if kind == "number":
            return constant(Fraction(text.replace(",", "").rstrip(".")))
        if kind == "periodic":
            before, _, behind = text.partition(".")  # 0.1\overline{6} is 1/6
            fixed, period = behind.removesuffix("}").split("\\overline{")
            scale, repeat = 10 ** len(fixed), 10 ** len(period) - 1
            return constant(int(before or 0) + Fraction(int(fixed or 0), scale) + Fraction(int(period), scale * repeat))
        if text in _NAMED:
            return _NAMED[text]
        if text == "\\frac":
            above = self.argument()
            return divide(above, self.argument())
        if text == "\\sqrt":
            if self.next() == "[":
                self.at += 1
                degree = self.sum().rational
                if self.take() != "]" or degree != 2:
                    raise Unreadable("another root than the square root")
            return square_root(self.argument())
        if text in ("(", "{", "["):
            value = self.sum()
            if self.take() != {"(": ")", "{": "}", "[": "]"}[text]:
                raise Unreadable("brackets that do not match")
            return value
        raise Unreadable(f"{text} is no part of it")

    def argument(self) -> Value:
        r"""What a command takes: a group in braces, or a single digit, letter or command, as TeX does (\frac12)."""
        if self.next() == "{":
            return self.atom()
        if self.kind() == "number":
            text = self.tokens[self.at][1]
            if text[1:]:
                self.tokens[self.at] = ("number", text[1:])
            else:
                self.at += 1
            if not text[0].isdigit():
                raise Unreadable("a point is no argument")
            return constant(int(text[0]))
        if self.kind() in ("letter", "command"):
            return self.atom()
        raise Unreadable("a command without its argument")

    def next(self) -> str | None:
        return self.tokens[self.at][1] if self.at < len(self.tokens) else None

    def kind(self) -> str | None:
        return self.tokens[self.at][0] if self.at < len(self.tokens) else None

    def take(self) -> str:
        text = self.next()
        if text is None:
            raise Unreadable("it ends too early")
        self.at += 1
        return text
