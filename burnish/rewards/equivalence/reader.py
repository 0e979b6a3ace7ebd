r"""Reads tidied LaTeX as a `Value` of exact.py. Consumes the text of one expression; Unreadable where it is none.

It reads sums, products, quotients, powers, \frac, \sqrt, brackets, mixed numbers (1\frac12), periodic decimals
(0.\overline{3}), \pi and i. It refuses other letters, functions, factorials, bars, and `1/2\pi`, which people mean in
two ways.
"""

import re
from fractions import Fraction

from burnish.rewards.equivalence.exact import (
    PI,
    I,
    Unreadable,
    Value,
    add,
    constant,
    divide,
    multiply,
    negate,
    power,
    square_root,
)

LONGEST = 400  # characters
DEEPEST = 40

_TOKEN = re.compile(
    r"(?P<periodic>\d*\.\d*\\overline\{\d+\})"
    r"|(?P<number>\d{1,3}(?:,\d{3})+(?:\.\d+)?(?!\d)|\d*\.\d+|\d+\.?)"
    r"|(?P<command>\\[a-zA-Z]+)"
    r"|(?P<letter>i)"
    r"|(?P<sign>[-+*/^(){}\[\]])"
    r"|(?P<space>\s+)"
)
_MIXED = re.compile(r"(?<![\d.,}])(\d+) (\d+)/(\d+)(?![\d.])")  # 1 1/2
_NAMED = {"\\pi": PI, "i": I}


def read(text: str) -> Value:
    """The value of an expression."""
    return _Reader(text).whole()


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

    def whole(self) -> Value:
        value = self.sum()
        if self.at != len(self.tokens):
            raise Unreadable("it does not end where it should")
        return value

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
            elif self.begins_factor():
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
            return constant(_periodic(text))
        if text in _NAMED:
            return _NAMED[text]
        if text == "\\frac":
            above = self.argument()
            return divide(above, self.argument())
        if text == "\\sqrt":
            return self.root()
        if text in ("(", "{", "["):
            value = self.sum()
            if self.take() != {"(": ")", "{": "}", "[": "]"}[text]:
                raise Unreadable("brackets that do not match")
            return value
        raise Unreadable(f"{text} is no part of it")

    def root(self) -> Value:
        if self.next() == "[":
            self.at += 1
            kind = self.sum().rational
            if self.take() != "]" or kind != 2:
                raise Unreadable("another root than the square root")
        return square_root(self.argument())

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
        if self.kind() in ("letter", "command") and self.next() != "\\frac":
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

    def begins_factor(self) -> bool:
        return self.kind() in ("number", "periodic", "command", "letter") or self.next() in ("(", "{", "[")


def _periodic(text: str) -> Fraction:
    r"""0.1\overline{6} is 1/6."""
    before, _, behind = text.partition(".")
    fixed, period = behind.removesuffix("}").split("\\overline{")
    scale, repeat = 10 ** len(fixed), 10 ** len(period) - 1
    return Fraction(int(before or 0)) + Fraction(int(fixed or 0), scale) + Fraction(int(period), scale * repeat)
