"""`GUARDS`: task → function (answer, entry), asked before a verifier of reasoning-gym (0.1.25) is; False: scores 0.

- Some verifiers run the answer as Python (`eval`, or sympy's parser, which is the same): only literals, sums and plain
  formulas are handed to those, of the row's own texts too;
- some take as long as the answer asks for (`U99999999`, `1e999999999`): numbers are bounded;
- some give full marks to wrong answers: any text at all (game_of_life_halting), other numbers than the given ones
  (puzzle24), the first digits of the right number (coin_flip), `nan` (complex_arithmetic), and the question itself as
  an unsolved `Integral(…)` (the two integrations, where reasoning-gym's own answer is sometimes that).
"""

import ast
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from burnish.rewards.scores.sums import expression, numbers_in, parse, value_of

Entry = Mapping[str, Any]

_LOST = "its verifier compares with metadata that do not survive being stored in a row"
REFUSED = {"composite": "it mixes other tasks; name those", "arc_agi": _LOST, "rearc": _LOST}

_LONGEST_LITERAL = 20_000
# fmt: off
_BITWISE = (
    ast.BinOp, ast.UnaryOp, ast.Constant, ast.Add, ast.Sub, ast.Mult, ast.USub, ast.Invert,
    ast.LShift, ast.RShift, ast.BitAnd, ast.BitOr, ast.BitXor,
)
# fmt: on
_SMALL_NUMBER = re.compile(r"[-+]?[0-9.]{1,40}(?:e[-+]?[0-9]{1,2})?(?:/[0-9]{1,40})?", re.IGNORECASE)

# Of formulas: characters, digits of a number, depth, size of an exponent, powers of powers.
LONGEST, MOST_DIGITS, DEEPEST, GREATEST_EXPONENT, MOST_NESTED_POWERS = 2000, 20, 60, 200, 2
_ALLOWED = re.compile(r"[A-Za-z0-9.+\-*/()\s]+")
_IN_A_NUMBER = re.compile(rf"[0-9.][A-Za-z]|[0-9.]{{{MOST_DIGITS + 1}}}")  # 1e9, 0xff, 2j; too many digits
_FUNCTIONS = frozenset(
    "sin cos tan cot sec csc asin acos atan acot asec acsc sinh cosh tanh asinh acosh atanh exp log ln sqrt Abs".split()
)
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div)


def _is_known_or_literal(answer: str, entry: Entry) -> bool:
    """A right answer as it is, or lists, texts and numbers: anything else would be run."""
    known = answer in (str(entry["answer"]).strip(), *entry["metadata"].get("valid_answers", ()))
    return known or _is_literal(answer)


def _makes_24(answer: str, entry: Entry) -> bool:
    tree = parse(answer)
    return (
        tree is not None and sorted(numbers_in(tree)) == sorted(entry["metadata"]["numbers"]) and value_of(tree) == 24
    )


def _is_polynomial(answer: str, entry: Entry) -> bool:
    _demand_formula("reward_model.ground_truth", entry["answer"])
    return is_formula(answer)


def _is_integral(answer: str, entry: Entry) -> bool:
    for name in ("integrand", "variable"):
        _demand_formula(f"{name} of extra_info.metadata", entry["metadata"][name])
    return is_formula(answer)


def _of_a_plain_problem(answer: str, entry: Entry) -> bool:
    problem = entry["metadata"]["problem"]
    tree = expression(problem)
    if tree is None or not all(isinstance(node, _BITWISE) for node in ast.walk(tree)):
        raise ValueError(f"problem of extra_info.metadata={problem!r:.200}: not a sum of numbers and bits")
    return True


def _of_a_plain_list(answer: str, entry: Entry) -> bool:
    if not _is_literal(entry["answer"]):
        raise ValueError(f"reward_model.ground_truth={entry['answer']!r:.200}: number_sorting needs a list of numbers")
    return True


def _is_more_than_first_digits(answer: str, entry: Entry) -> bool:
    answer, right = answer.replace(",", "").replace(" ", ""), str(entry["answer"]).replace(",", "")
    if not _SMALL_NUMBER.fullmatch(answer):
        return False
    try:
        value = float(Fraction(answer))
    except (ValueError, ZeroDivisionError):
        return False
    return abs(value - float(Fraction(right))) <= 1e-4 or len(f"{value:.10g}") >= len(f"{float(Fraction(right)):.10g}")


GUARDS: dict[str, Callable[[str, Entry], bool]] = {
    **dict.fromkeys(("binary_matrix", "n_queens", "spiral_matrix", "string_insertion"), _is_known_or_literal),
    "countdown": lambda answer, entry: parse(answer) is not None,
    "puzzle24": _makes_24,
    "polynomial_multiplication": _is_polynomial,
    **dict.fromkeys(("simple_integration", "intermediate_integration"), _is_integral),
    "bitwise_arithmetic": _of_a_plain_problem,
    "number_sorting": _of_a_plain_list,
    "coin_flip": _is_more_than_first_digits,
    **dict.fromkeys(("rubiks_cube", "rush_hour"), lambda answer, entry: re.search("[0-9]{3}", answer) is None),
    "complex_arithmetic": lambda answer, entry: "nan" not in answer.lower(),
    "game_of_life_halting": lambda answer, entry: answer.lower() == str(entry["answer"]).strip().lower(),
}


def _demand_formula(name: str, text: Any) -> None:
    """The row's own texts are run as well; a row may come from anywhere."""
    if not isinstance(text, str) or not is_formula(text):
        raise ValueError(f"{name}={text!r:.200}: not a plain formula, and its verifier would run it")


def _is_literal(text: Any) -> bool:
    if not isinstance(text, str) or len(text) > _LONGEST_LITERAL:
        return False
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return False
    return True


def is_formula(text: str) -> bool:
    """Whether sympy's parser, which runs text as Python, may have it: numbers without exponents of ten, `pi`, names of
    one letter, elementary functions, + - * / ** and brackets, with small exponents. Nothing is run to find out."""
    if len(text) > LONGEST or not _ALLOWED.fullmatch(text) or _IN_A_NUMBER.search(text):
        return False
    tree = expression(text.strip())
    return tree is not None and _is_plain(tree, DEEPEST, MOST_NESTED_POWERS)


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
