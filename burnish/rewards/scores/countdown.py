"""Countdown: the last `<answer>…</answer>` must reach the target with the given numbers, each used exactly once.

The answer is a sum (sums.py), parsed, never run, and worked out only where the numbers are the given ones. `score` for
a right answer, `format_score` for another well-formed sum, 0 else (docs/qa-rewards.md).
"""

import json
import numbers
import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from burnish.rewards.contract import unboxed
from burnish.rewards.scores.answer_tag import last_answer, tagged
from burnish.rewards.scores.sums import numbers_in, parse, value_of

_WRITTEN_OTHERWISE = str.maketrans("xX·⋅−", "****-")
_CLAIM = re.compile(r"\s*(-?[0-9]{1,30})(?:\.0{0,30})?\s*")
_EXAMPLE = '{"target": 24, "numbers": [3, 8, 1]}'
MOST_NUMBERS = 5  # that are solved for: about 0.1 s; six take seconds, seven minutes
Ways = dict[Fraction, str]  # value → one way to write it


def compute_score(
    solution_str: str, ground_truth: Any, format_score: float = 0.0, score: float = 1.0
) -> dict[str, float | str]:
    target, given = puzzle_of(ground_truth)
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
        and claim in (None, target)
        and sorted(numbers_in(tree)) == sorted(given)
        and value_of(tree) == target
    )
    earned = score if right else format_score if tree is not None else 0.0
    return {"score": earned, "acc": float(right), "format": float(tree is not None), "pred": answer}


def puzzle_of(ground_truth: Any) -> tuple[int, list[int]]:
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
    return target, whole


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
    """Whether it can be solved is not looked at."""
    puzzle_of(ground_truth)


def _whole(value: Any) -> int | None:
    """A whole number, also one that a table has made a float."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return int(value) if isinstance(value, numbers.Integral) and not isinstance(value, bool) else None


def _not_a_puzzle(ground_truth: Any, why: str) -> ValueError:
    return ValueError(f"reward_model.ground_truth={ground_truth!r:.200} {why}: countdown needs {_EXAMPLE}")


def solve(numbers: list[int], target: int) -> str | None:
    """One way to write the target with each number used once, or None. For each set of numbers, smaller sets first, all
    values that it can make are kept with one way to write each; those of the whole set are not. Exact: fractions."""
    whole = (1 << len(numbers)) - 1
    ways: dict[int, Ways] = {1 << i: {Fraction(number): str(number)} for i, number in enumerate(numbers)}
    if whole in ways:
        return ways[whole].get(Fraction(target))
    for subset in range(1, whole):
        if subset not in ways:
            ways[subset] = {value: text for pair in _splits(subset, ways) for value, text in _joined(*pair)}
    made = (one for pair in _splits(whole, ways) for one in _joined(*pair))
    return next((text[1:-1] for value, text in made if value == target), None)


def _splits(subset: int, ways: dict[int, Ways]) -> Iterator[tuple[Ways, Ways]]:
    """Each way to part a set in two, once."""
    part = (subset - 1) & subset
    while part > subset ^ part:
        yield ways[part], ways[subset ^ part]
        part = (part - 1) & subset


def _joined(first: Ways, second: Ways) -> Iterator[tuple[Fraction, str]]:
    for a, x in first.items():
        for b, y in second.items():
            yield a + b, f"({x} + {y})"
            yield a - b, f"({x} - {y})"
            yield b - a, f"({y} - {x})"
            yield a * b, f"({x} * {y})"
            if b:
                yield a / b, f"({x} / {y})"
            if a:
                yield b / a, f"({y} / {x})"
