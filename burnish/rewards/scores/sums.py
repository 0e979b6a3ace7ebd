"""Sums as text: numbers joined by + - * / and brackets, read without running anything. `parse` gives a tree of Python's
own grammar with only these and one minus sign before a number or a bracket; values are exact fractions. Length and
depth are bounded; how big a value can grow is the caller's to bound, by the numbers, before it asks for it.
"""

import ast
import operator
import re
from collections.abc import Callable
from fractions import Fraction

LONGEST, DEEPEST = 1000, 50
_ALLOWED = re.compile(r"[0-9+\-*/()\s]+")
_WRITTEN_OTHERWISE = str.maketrans({"×": "*", "÷": "/", "−": "-"})
_OPERATIONS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def parse(text: str) -> ast.expr | None:
    """The sum that the text is, or None. ×, ÷ and − are read as *, / and -."""
    plain = " ".join(text.translate(_WRITTEN_OTHERWISE).split())
    if len(plain) > LONGEST or not _ALLOWED.fullmatch(plain):
        return None
    tree = expression(plain)
    return tree if tree is not None and _is_sum(tree, DEEPEST) else None


def expression(text: str) -> ast.expr | None:
    """The tree of a Python expression, or None; nothing is run."""
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


def numbers_in(tree: ast.expr) -> list[int]:
    """The numbers that were written, in no particular order."""
    return [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, int)]


def value_of(tree: ast.expr) -> Fraction | None:
    """The exact value; None where something is divided by zero."""
    try:
        return _value(tree)
    except ZeroDivisionError:
        return None


def _is_sum(tree: ast.expr, depth: int) -> bool:
    if depth == 0:
        return False
    match tree:
        case ast.Constant(value=int()):
            return True
        case ast.BinOp(left, op, right):
            return type(op) in _OPERATIONS and _is_sum(left, depth - 1) and _is_sum(right, depth - 1)
        case ast.UnaryOp(ast.USub(), operand):
            return not isinstance(operand, ast.UnaryOp) and _is_sum(operand, depth - 1)
    return False


def _value(tree: ast.expr) -> Fraction:
    match tree:
        case ast.Constant(value=int(number)):
            return Fraction(number)
        case ast.BinOp(left, op, right):
            return _OPERATIONS[type(op)](_value(left), _value(right))
        case ast.UnaryOp(_, operand):
            return -_value(operand)
    raise AssertionError(f"not a tree that `parse` gives: {ast.dump(tree)}")
