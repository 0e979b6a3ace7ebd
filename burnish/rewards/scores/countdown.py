"""Countdown: the last `<answer>…</answer>` must reach the target with the given numbers, each used exactly once.

Consumes the policy's own text and the ground truth {"target": 24, "numbers": [3, 8, 1]} (`nums` is read too, and so is
the same as JSON text). The answer is a sum of whole numbers with + - * / and brackets (sums.py); a minus sign may be
before a number or a bracket, and x or a dot in the middle is a multiplication sign. `= 24` may follow or `24 =` go
before, where that is the target, and a full stop may end it. Values are exact fractions, so 1/3*3 is 1 and nothing is
right by rounding; division by zero is wrong. The answer is parsed, never run: no powers, no names, at most 1,000
characters, and it is worked out only where the numbers are the given ones.

`score` for a right answer, `format_score` for another well-formed sum, 0 else. The result holds besides `acc` (1 where
right), `format` (1 where well-formed) and `pred` (the answer as written).
"""

import json
import numbers
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from burnish.rewards.contract import unboxed
from burnish.rewards.scores.answer_tag import last_answer, tagged
from burnish.rewards.scores.countdown_solver import MOST_NUMBERS, solve
from burnish.rewards.scores.sums import numbers_in, parse, value_of

_WRITTEN_OTHERWISE = str.maketrans("xX·⋅−", "****-")
_CLAIM = re.compile(r"\s*(-?[0-9]{1,30})(?:\.0{0,30})?\s*")
_EXAMPLE = '{"target": 24, "numbers": [3, 8, 1]}'


class Puzzle(NamedTuple):
    target: int
    numbers: list[int]


def compute_score(
    solution_str: str, ground_truth: Any, format_score: float = 0.0, score: float = 1.0
) -> dict[str, float | str]:
    """Score one response. A ground truth that is no puzzle is a ValueError: the row is wrong, not the response."""
    puzzle = puzzle_of(ground_truth)
    answer = last_answer(solution_str) or ""
    written = answer.translate(_WRITTEN_OTHERWISE).removesuffix(".")
    claim: int | None = None  # the whole number that the sum is said to be
    first, equals, second = written.partition("=")
    for said, value in ((first, second), (second, first)):
        if equals and (found := _CLAIM.fullmatch(value)):
            written, claim = said, int(found[1])
            break
    tree = parse(written)
    right = (
        tree is not None
        and claim in (None, puzzle.target)
        and sorted(numbers_in(tree)) == sorted(puzzle.numbers)
        and value_of(tree) == puzzle.target
    )
    earned = score if right else format_score if tree is not None else 0.0
    return {"score": earned, "acc": float(right), "format": float(tree is not None), "pred": answer}


def puzzle_of(ground_truth: Any) -> Puzzle:
    """The target and the numbers; ValueError where the ground truth does not hold them."""
    given = ground_truth
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            raise _not_a_puzzle(ground_truth, "is not JSON") from None
    if not isinstance(given, Mapping):
        raise _not_a_puzzle(ground_truth, "is no object")
    target, several = _whole(given.get("target")), unboxed(given.get("numbers", given.get("nums")))
    if target is None:
        raise _not_a_puzzle(ground_truth, "has no whole number as 'target'")
    if not isinstance(several, Sequence) or isinstance(several, str) or not several:
        raise _not_a_puzzle(ground_truth, "has no list 'numbers'")
    whole = [number for one in several if (number := _whole(one)) is not None and number >= 0]
    if len(whole) < len(several):
        raise _not_a_puzzle(ground_truth, "has 'numbers' that are not whole or below 0")
    return Puzzle(target, whole)


def reference(ground_truth: Any, extra_info: Mapping[str, Any]) -> str:
    """A right response, searched for; ValueError where the numbers cannot make the target, or are too many."""
    target, given = puzzle_of(ground_truth)
    if len(given) > MOST_NUMBERS:
        raise ValueError(
            f"no answer is searched for with more than {MOST_NUMBERS} numbers (here {len(given)}); give the row one as "
            "extra_info.answer, like <answer>(8 - 2) * 5</answer>"
        )
    solution = solve(given, target)
    if solution is None:
        raise ValueError(f"reward_model.ground_truth={ground_truth!r}: the numbers cannot make the target")
    return tagged(solution)


def check(ground_truth: Any, extra_info: Mapping[str, Any]) -> None:
    """ValueError where the ground truth is no puzzle; whether it can be solved is not looked at."""
    puzzle_of(ground_truth)


def _whole(value: Any) -> int | None:
    """A whole number, also one that a table has made a float."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return int(value) if isinstance(value, numbers.Integral) and not isinstance(value, bool) else None


def _not_a_puzzle(ground_truth: Any, why: str) -> ValueError:
    return ValueError(f"reward_model.ground_truth={ground_truth!r:.200} {why}: countdown needs {_EXAMPLE}")
