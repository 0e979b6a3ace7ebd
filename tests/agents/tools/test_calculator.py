"""The calculator: what people expect of one, whatever a model writes into it, and within bounds."""

import ast
import operator
import re
import time
from contextlib import suppress
from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from burnish.agents.tools.base import ToolError
from burnish.agents.tools.calculator import DEEPEST, FUNCTIONS, LONGEST, CalculatorTool, evaluate


def test_a_value_or_a_mistake_and_a_description_that_names_every_function(call):
    tool = CalculatorTool({}, CalculatorTool.SCHEMA)
    right, wrong = call(tool, expression="0.1 + 0.2"), call(tool, expression="1/0")
    assert (right.text, right.kind, right.reward) == ("0.3", "ok", 0.0)
    assert (wrong.text, wrong.kind) == ("division by zero", "error")
    text = CalculatorTool.SCHEMA["function"]["description"].replace(".", ",").replace(" and ", ", ")
    assert {name for name in FUNCTIONS if f" {name}," not in text} == set()


VALUES = """
2 + 3 * 4 = 14; (2 + 3) * 4 = 20; 10 - 4 - 3 = 3; 0.1 + 0.2 = 0.3; 0.1 * 3 - 0.3 = 0; 1.10 + 2.20 = 3.3; 100.0 = 100;
.5 + 1. = 1.5; 48/2 = 24; 7 / 2 = 3.5; 1/3 = 0.333333333333333; 2/3*3 = 2; -1/3 = -0.333333333333333; 7 // 2 = 3;
-7 // 2 = -4; -7 % 3 = 2; 2.5 % 1 = 0.5; 2**10 = 1024; 2**3**2 = 512; -2**2 = -4; (-2)**2 = 4; 2**-2 = 0.25;
--3 + +4 - -1 = 8; 2**0.5 = 1.4142135623731; 64**(1/3) = 4; 1e3 + 2.5E-1 = 1000.25; 3 × 4 ÷ 2 − 1 = 5;
123456789 * 987654321 = 121932631112635269; 1/2**20 = 0.00000095367431640625; 0.1**31 = 1E-31;
2**200 = 1606938044258990275541962092341162602522202993782792835301376;
10**30 / 3 = 3.33333333333333E+29; 1/3/10**20 = 3.33333333333333E-21; sqrt(144) = 12; sqrt(2.25) = 1.5;
sqrt(2) = 1.4142135623731; abs(-3.5) = 3.5; max(1, 2.5, -3) + min(4, 2) = 4.5; round(2.675, 2) = 2.68;
round(2.5) + round(3.5) = 6; round(1234, -2) = 1200; floor(-1.5) + ceil(1.2) = 0; log(100, 10) = 2; log10(1000) = 3;
sin(0) + cos(0) = 1; 2 * pi = 6.28318530717959; exp(1) - e = 0; 0 * -pi = 0
"""


@pytest.mark.parametrize("line", VALUES.split(";"), ids=str.strip)
def test_the_value_is_the_one_that_people_expect(line):
    expression, _, value = line.strip().partition(" = ")
    assert evaluate(expression) == value


MISTAKES = {
    "empty": ["", "   "],
    "ends too early": ["2 +", "(2 + 3"],
    "unexpected ')' after '2 + 3'": ["2 + 3)"],
    "unexpected '3'": ["2 3"],
    "unexpected '('": ["2(3)"],
    "unexpected '*'": ["* 2"],
    "unexpected '٣'": ["٣ + 1"],
    "unexpected": ["max()", "1\ud800"],
    "powers are written **": ["2 ^ 3"],
    "without commas": ["1,234 + 5"],
    "one side alone": ["2 + 2 = 4"],
    "of is not known": ["20% of 50"],
    "x is not known; there are pi, e, abs": ["x + 1"],
    "__import__ is not known": ["__import__('os')"],
    "sqrt needs its argument in parentheses": ["sqrt"],
    "sqrt does not take 2 arguments": ["sqrt(1, 2)"],
    "division by zero": ["1 / 0", "1 // (2 - 2)", "1 % 0", "0 ** -1", "pi % 0"],
    "sqrt has no value there": ["sqrt(-1)"],
    "log has no value there": ["log(0)"],
    "not a real number": ["(-8) ** (1/3)"],
    "whole number of digits": ["round(1, 0.5)"],
    "at most 300": ["round(1, 301)"],
    "too large": ["9**9**9", "2**100000", "10**-100000", "1e999999999", "1e-999999999", "1e4097", "exp(1000)"],
    "a number in it is too large": ["10**400 * pi", "1.5**5000"],
    "1001 characters, and at most 1000": ["1" * (LONGEST + 1)],
    "nested more than 50 deep": ["(" * DEEPEST + "1" + ")" * DEEPEST, "-" * DEEPEST + "1", "2**" * DEEPEST + "1"],
}


@pytest.mark.parametrize(("words", "expressions"), MISTAKES.items(), ids=MISTAKES)
def test_a_mistake_is_reported_to_the_one_who_made_it(words, expressions):
    for expression in expressions:
        with pytest.raises(ToolError, match=re.escape(words)):
            evaluate(expression)


def test_nesting_up_to_the_limit_is_read():
    assert evaluate("(" * (DEEPEST - 1) + "1" + ")" * (DEEPEST - 1)) == "1"
    assert evaluate("+".join(["-(1)"] * 200)) == "-200"


@given(st.text(max_size=200) | st.text(alphabet="0123456789.eE+-*/%(), pisqrtmaxround^=", max_size=200))
@example("9**9**9**9")
@example("1e400*1e400/1e-400")
@settings(max_examples=500, deadline=None)
def test_whatever_is_written_gives_a_value_or_a_tool_error(text):
    start = time.process_time()
    try:
        assert isinstance(evaluate(text), str)
    except ToolError as error:
        assert str(error)
    assert time.process_time() - start < 10.0


HARD = ["*".join(["9" * 9] * 99), "+".join(f"1/{n}" for n in range(100, 260)), "**".join("2" * 40)]
HARD += ["*".join(["(10**600/3)"] * 80), "%".join(["7**1400"] * 90), "1" + "/7" * 480]
HARD += ["sqrt(" * 20 + "3**2500" + ")" * 20]


@pytest.mark.parametrize("expression", HARD)
def test_the_hardest_expression_takes_no_time(expression):
    start = time.process_time()
    with suppress(ToolError):
        evaluate(expression)
    assert time.process_time() - start < 10.0


def expressions() -> st.SearchStrategy[str]:
    """Expressions that Python reads in the same way once each number is a Fraction."""
    numbers = st.integers(0, 999).map(str) | st.decimals(0, 99, places=2).map(str)

    def grown(inner):
        binary = st.tuples(inner, st.sampled_from([" + ", " - ", "*", " / ", "//", " % "]), inner).map("".join)
        bracketed = inner.map(lambda text: f"({text})")
        power = st.tuples(bracketed, st.sampled_from(["**2", "**3", "**-1", "**0"])).map("".join)
        return binary | power | bracketed | inner.map(lambda text: f"-{text}")

    return st.recursive(numbers, grown, max_leaves=12)


BINARY = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
BINARY |= {ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow}


def by_python(node: ast.AST, text: str) -> Fraction:
    """What Python's own grammar makes of the text, in fractions."""
    if isinstance(node, ast.BinOp):
        return BINARY[type(node.op)](by_python(node.left, text), by_python(node.right, text))
    if isinstance(node, ast.UnaryOp):
        return -by_python(node.operand, text)
    return Fraction(ast.get_source_segment(text, node))


@given(expressions())
@settings(max_examples=300, deadline=None)
def test_it_agrees_with_python_on_exact_fractions(text):
    try:
        wanted = by_python(ast.parse(text, mode="eval").body, text)
    except ZeroDivisionError:
        with pytest.raises(ToolError, match="division by zero"):
            evaluate(text)
        return
    try:
        found = evaluate(text)
    except ToolError as error:
        assert "too large" in str(error) or "nested" in str(error)
        return
    if wanted == 0:
        assert found == "0"
    elif wanted.denominator == 1:
        assert found == str(wanted)
    else:
        assert abs(Fraction(found) / wanted - 1) < Fraction(1, 10**14)
