"""Solves a countdown puzzle: an expression that makes the target from the numbers, each used once, or None.

For each set of numbers, smaller sets first, all values that it can make are kept with one way to write each; the whole
set is not spelled out, for there only the target is asked for. Exact: values are fractions, and results below zero are
made by turning a difference round. It is for the reference answers of rows that bring none, not for scoring.
"""

from collections.abc import Iterator
from fractions import Fraction

MOST_NUMBERS = 5  # about 50 ms; six take seconds, seven minutes
Ways = dict[Fraction, str]


def solve(numbers: list[int], target: int) -> str | None:
    """One way to write the target, or None where there is none."""
    whole = (1 << len(numbers)) - 1
    ways: dict[int, Ways] = {1 << i: {Fraction(number): str(number)} for i, number in enumerate(numbers)}
    if whole in ways:
        return ways[whole].get(Fraction(target))
    for subset in range(1, whole):
        if subset not in ways:
            ways[subset] = {value: text for pair in _splits(subset, ways) for value, text in _joined(*pair)}
    for first, second in _splits(whole, ways):
        if found := _that_make(Fraction(target), first, second):
            return found
    return None


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


def _that_make(target: Fraction, first: Ways, second: Ways) -> str | None:
    """As above, but asking the second half for what is missing."""
    for a, x in first.items():
        wanted = [(target - a, "{x} + {y}"), (a - target, "{x} - {y}"), (a + target, "{y} - {x}")]
        if a:
            wanted += [(target / a, "{x} * {y}"), (target * a, "{y} / {x}")]
            if target:
                wanted.append((a / target, "{x} / {y}"))
        elif not target:
            return f"{x} * {next(iter(second.values()))}"
        for b, form in wanted:
            if b in second:
                return form.format(x=x, y=second[b])
    return None
