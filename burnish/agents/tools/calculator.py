"""`calculator`: arithmetic as people write it, read by a small parser: no eval, and bounded in length, nesting and size
of numbers.

Numbers are exact fractions for as long as they can be; pi, e, other roots, powers and functions make them
floating-point numbers, of which 15 digits are written. // % ** and round are as in Python. What is wrong with an
expression is a ToolError, written for the model that wrote it.
"""

import math
import operator
import re
from collections.abc import Callable
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

from burnish.agents.tools.base import Answer, BaseTool, ToolError, ToolResponse
from burnish.agents.tools.schema import function_schema

Number = Fraction | float

LONGEST = 1000  # characters
DEEPEST = 50  # nested parentheses, functions, signs and powers
MOST_BITS = 4096  # of a numerator or a denominator: 1,233 digits
LONGEST_DECIMAL = 30  # places that are written out; longer ones are rounded
WRITTEN_DIGITS = 15  # of what is rounded
_ROUNDING = Context(prec=WRITTEN_DIGITS)
_TOO_LARGE = "a number in it is too large to work with"

_TOKEN = re.compile(
    r"(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<name>[^\W\d]\w*)|(?P<sign>\*\*|//|[-+*/%(),])|\S", re.ASCII
)
_SAME = str.maketrans("×·÷−", "**/-")
_HINTS = {"^": "powers are written **", "=": "write one side alone", ",": "write numbers without commas between digits"}
_CONSTANTS = {"pi": math.pi, "e": math.e}


class CalculatorTool(BaseTool):
    SCHEMA = function_schema(
        "calculator",
        "Works out an arithmetic expression. It knows + - * / // % ** and parentheses, the functions abs, ceil, cos, "
        "exp, floor, log, log10, max, min, round, sin, sqrt and tan, and the constants pi and e.",
        {"expression": {"type": "string", "description": "The expression, such as (12.5 + 3) * 4"}},
        ["expression"],
    )

    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> Answer:
        return ToolResponse(evaluate(parameters["expression"])), 0.0, {}


def evaluate(expression: str) -> str:
    if len(expression) > LONGEST:
        raise ToolError(f"the expression has {len(expression)} characters, and at most {LONGEST} are read")
    try:
        return _written(_ExpressionParser(expression.translate(_SAME)).value())
    except ZeroDivisionError:
        raise ToolError("division by zero") from None
    except OverflowError:
        raise ToolError(_TOO_LARGE) from None


class _ExpressionParser:
    """Recursive descent, and the value at the same time: sum → product → signed → power → atom."""

    def __init__(self, text: str):
        self._tokens = [(match[0], match.lastgroup) for match in _TOKEN.finditer(text)]
        self._next = 0
        self._depth = 0

    def value(self) -> Number:
        if not self._tokens:
            raise ToolError("the expression is empty")
        found = self._sum()
        if self._next < len(self._tokens):
            raise self._unexpected()
        return found

    def _sum(self) -> Number:
        value = self._product()
        while sign := self._take("+", "-"):
            other = self._product()
            value = _bounded(value + other if sign == "+" else value - other)
        return value

    def _product(self) -> Number:
        value = self._signed()
        while sign := self._take("*", "/", "//", "%"):
            value = _bounded(_PRODUCTS[sign](value, self._signed()))
        return value

    def _signed(self) -> Number:
        self._depth += 1
        if self._depth > DEEPEST:
            raise ToolError(f"the expression is nested more than {DEEPEST} deep")
        sign = self._take("+", "-")
        value = self._power() if sign is None else self._signed()
        self._depth -= 1
        return -value if sign == "-" else value

    def _power(self) -> Number:
        base = self._atom()
        return _power(base, self._signed()) if self._take("**") else base

    def _atom(self) -> Number:
        if self._take("("):
            value = self._sum()
            self._close()
            return value
        text, kind = self._tokens[self._next] if self._next < len(self._tokens) else ("", None)
        if kind == "number":
            self._next += 1
            return _number(text)
        if kind != "name":
            raise self._unexpected()
        self._next += 1
        if text in _CONSTANTS:
            return _CONSTANTS[text]
        if text not in FUNCTIONS:
            known = ", ".join([*_CONSTANTS, *FUNCTIONS])
            raise ToolError(f"{text:.50} is not known; there are {known}. Write numbers in place of other names")
        return self._called(text)

    def _called(self, name: str) -> Number:
        if not self._take("("):
            raise ToolError(f"{name} needs its argument in parentheses")
        given = [self._sum()]
        while self._take(","):
            given.append(self._sum())
        self._close()
        function, fewest, most = FUNCTIONS[name]
        if not fewest <= len(given) <= most:
            raise ToolError(f"{name} does not take {len(given)} argument{'s' * (len(given) > 1)}")
        try:
            return _bounded(function(*given))
        except ValueError:
            raise ToolError(f"{name} has no value there, as sqrt(-1) or log(0) have none") from None

    def _take(self, *signs: str) -> str | None:
        text, kind = self._tokens[self._next] if self._next < len(self._tokens) else ("", None)
        if kind != "sign" or text not in signs:
            return None
        self._next += 1
        return text

    def _close(self) -> None:
        if not self._take(")"):
            raise self._unexpected()

    def _unexpected(self) -> ToolError:
        if self._next >= len(self._tokens):
            return ToolError("the expression ends too early: a number or a closing parenthesis is missing")
        text = self._tokens[self._next][0]
        before = " ".join(token for token, _ in self._tokens[max(0, self._next - 3) : self._next])
        hint = f"; {_HINTS[text]}" if text in _HINTS else ""
        return ToolError(f"unexpected {text!r:.52}" + (f" after {before!r:.102}" if before else "") + hint)


def _number(text: str) -> Number:
    exponent = re.split("[eE]", text)[1:]
    if exponent and (len(exponent[0]) > 5 or abs(int(exponent[0])) > MOST_BITS):
        raise ToolError(_TOO_LARGE)
    return _bounded(Fraction(text))


def _bounded(value: Any) -> Number:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise OverflowError
        return value
    value = Fraction(value)
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MOST_BITS:
        raise OverflowError
    return value


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        bits = max(base.numerator.bit_length(), base.denominator.bit_length())
        if bits > 1 and abs(exponent.numerator) * (bits - 1) > MOST_BITS:
            raise OverflowError
        return _bounded(base**exponent.numerator)
    value = float(base) ** float(exponent)
    if isinstance(value, complex):
        raise ToolError("a negative number to the power of a fraction is not a real number")
    return _bounded(value)


def _sqrt(value: Number) -> Number:
    if isinstance(value, Fraction) and value >= 0:
        root = Fraction(math.isqrt(value.numerator), math.isqrt(value.denominator))
        if root * root == value:
            return root
    return math.sqrt(value)


def _round(value: Number, digits: Number = Fraction()) -> Number:
    if digits != int(digits) or not -300 <= digits <= 300:
        raise ToolError("round takes a whole number of digits, at most 300")
    return _bounded(round(value, int(digits)))


def _written(value: Number) -> str:
    """A whole number or a short decimal in full, anything else to 15 digits."""
    if isinstance(value, Fraction):
        # Digits after the decimal point; None where they do not end, or not soon.
        places = next((n for n in range(LONGEST_DECIMAL + 1) if not 10**n % value.denominator), None)
        if places is not None:
            digits = str(abs(value.numerator) * 10**places // value.denominator).rjust(places + 1, "0")
            whole, after = digits[: len(digits) - places], digits[len(digits) - places :]
            return "-" * (value < 0) + whole + (f".{after}" if after else "")
    numerator, denominator = value.as_integer_ratio()
    rounded = _ROUNDING.normalize(_ROUNDING.divide(Decimal(numerator), Decimal(denominator)))
    plain = not rounded or -7 <= rounded.adjusted() < WRITTEN_DIGITS
    return format(rounded, "f") if plain else str(rounded)


_PRODUCTS = {"*": operator.mul, "/": operator.truediv, "//": operator.floordiv, "%": operator.mod}
FUNCTIONS: dict[str, tuple[Callable[..., Any], int, float]] = {  # with the fewest and the most arguments
    "abs": (abs, 1, 1),
    "ceil": (math.ceil, 1, 1),
    "cos": (math.cos, 1, 1),
    "exp": (math.exp, 1, 1),
    "floor": (math.floor, 1, 1),
    "log": (math.log, 1, 2),
    "log10": (math.log10, 1, 1),
    "max": (max, 1, math.inf),
    "min": (min, 1, math.inf),
    "round": (_round, 1, 2),
    "sin": (math.sin, 1, 1),
    "sqrt": (_sqrt, 1, 1),
    "tan": (math.tan, 1, 1),
}
