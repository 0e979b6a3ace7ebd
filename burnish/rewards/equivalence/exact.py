r"""Exact arithmetic of the numbers that answers are made of, without sympy: a `Value` is a quotient of two sums.

Their terms are rational multiples of square roots of integers (i is √-1) and of powers of π. Such quotients have one
canonical comparison, n₁·d₂ = n₂·d₁, and square roots of different squarefree numbers are linearly independent, as are
powers of π, so `same` is right in both directions.

What goes beyond that is refused with `Unreadable`: letters, other roots, other exponents. Sizes are bounded, so that no
expression costs more than a moment. reader.py makes values of text.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce

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
        """The number, where it is a rational one."""
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


I = Value({(-1, 0): Fraction(1)}, _ONE)  # noqa: E741
PI = Value({(1, 1): Fraction(1)}, _ONE)


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
