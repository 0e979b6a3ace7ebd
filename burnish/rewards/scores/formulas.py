"""Is this text a plain formula, which a computer algebra system may parse?

sympy's parser runs the text as Python. `is_formula` lets through what can do no harm and costs little: numbers without
exponents of ten, one-letter names, `pi`, elementary functions, + - * / ** and brackets, with small exponents. Nothing
is run to find out. Bounds: characters, digits of a number, depth, size of an exponent, powers of powers.
"""

import ast
import re

LONGEST, MOST_DIGITS, DEEPEST, GREATEST_EXPONENT, MOST_NESTED_POWERS = 2000, 20, 60, 200, 2
_ALLOWED = re.compile(r"[A-Za-z0-9.+\-*/()\s]+")
_IN_A_NUMBER = re.compile(rf"[0-9.][A-Za-z]|[0-9.]{{{MOST_DIGITS + 1}}}")  # 1e9, 0xff, 2j; too many digits
_FUNCTIONS = frozenset(
    "sin cos tan cot sec csc asin acos atan acot asec acsc sinh cosh tanh asinh acosh atanh exp log ln sqrt Abs".split()
)
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div)


def is_formula(text: str) -> bool:
    """Whether the text is a formula within the bounds above."""
    if len(text) > LONGEST or not _ALLOWED.fullmatch(text) or _IN_A_NUMBER.search(text):
        return False
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return _is_plain(tree, DEEPEST, MOST_NESTED_POWERS)


def _is_plain(tree: ast.expr, depth: int, powers: int) -> bool:
    if depth == 0:
        return False
    match tree:
        case ast.Constant(value):
            return type(value) in (int, float)
        case ast.Name(name):
            return len(name) == 1 or name == "pi"
        case ast.UnaryOp(ast.USub() | ast.UAdd(), operand):
            return _is_plain(operand, depth - 1, powers)
        case ast.BinOp(base, ast.Pow(), exponent):
            return powers > 0 and _is_exponent(exponent) and _is_plain(base, depth - 1, powers - 1)
        case ast.BinOp(left, op, right):
            return isinstance(op, _OPERATORS) and all(_is_plain(side, depth - 1, powers) for side in (left, right))
        case ast.Call(ast.Name(name), [argument], []):
            return name in _FUNCTIONS and _is_plain(argument, depth - 1, powers)
    return False


def _is_exponent(tree: ast.expr) -> bool:
    """Numbers and names without powers; the product of the numbers is no greater than the greatest exponent."""
    product = 1.0
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=int() | float() as number):
                product *= max(number, 1)
            case ast.BinOp(_, op, _) if isinstance(op, _OPERATORS):
                pass
            case ast.Name(name) if len(name) == 1 or name == "pi":
                pass
            case ast.UnaryOp() | ast.operator() | ast.unaryop() | ast.expr_context():
                pass
            case _:
                return False
    return product <= GREATEST_EXPONENT
