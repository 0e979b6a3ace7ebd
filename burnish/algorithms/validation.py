"""Validation statistics over repeated answers to the same question. numpy only.

Consumes, per sample, its data source, the id of its question and the numbers its reward function gave (`reward`,
`acc`, …). For each question with N samples:

    mean@N, std@N                     over the samples
    best@k/mean, worst@k/mean         of k answers drawn with replacement, the best and the worst (1000 draws)
    maj@k/mean                        the value of the answer given most often, where the reward function gave `pred`
    …/std                             the spread of the same over the draws

with k = 2, 4, 8, … and N. Questions are then averaged, each key over the questions that have it. A drawn tie goes to
the answer that came first. Predictions that cannot be hashed (lists, dicts) are the same where they print the same.
Draws are seeded per statistic, so a figure depends on nothing but its own samples, and the program's own random state
is left alone.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache
from numbers import Real
from typing import Any

import numpy as np

DRAWS = 1000
SEED = 42
PREDICTION = "pred"

Statistics = dict[str, float]
Draw = Callable[[np.ndarray], np.ndarray]  # (draws, k) positions → (draws,) values


def validation_metrics(
    data_sources: Sequence[str],
    uids: Sequence[Hashable],
    infos: Mapping[str, Sequence[Any]],
    seed: int = SEED,
) -> dict[str, float]:
    """The figures by the name they are tracked under: `val-core|val-aux/<data_source>/<variable>/<statistic>`."""
    return tracked_names(process_validation_metrics(data_sources, uids, infos, seed))


def tracked_names(figures: Mapping[str, Mapping[str, Statistics]]) -> dict[str, float]:
    """data source → variable → statistic → value, flat.

    Core is what a run is judged by: mean, best and majority of all N samples of `acc`, or of `reward` where the
    reward function gives no `acc`.
    """
    named = {}
    for source, variables in figures.items():
        core = "acc" if "acc" in variables else "reward"
        for variable, statistics in variables.items():
            largest = max(int(name.split("@")[1].split("/")[0]) for name in statistics)
            for name, value in statistics.items():
                kind, _, size = name.removesuffix("/mean").partition("@")
                is_core = variable == core and kind in ("mean", "best", "maj") and size == str(largest)
                named[f"val-{'core' if is_core else 'aux'}/{source}/{variable}/{name}"] = value
    return named


def process_validation_metrics(
    data_sources: Sequence[str],
    uids: Sequence[Hashable],
    infos: Mapping[str, Sequence[Any]],
    seed: int = SEED,
) -> dict[str, dict[str, Statistics]]:
    """data source → variable → statistic → value. All sequences hold one entry per sample.

    A variable is one whose values are all numbers; None means that this sample has none.
    """
    questions: dict[tuple[str, Hashable], list[int]] = defaultdict(list)
    for sample, question in enumerate(zip(data_sources, uids, strict=True)):
        questions[question].append(sample)

    collected: dict = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for variable, values in infos.items():
        if not all(value is None or isinstance(value, Real | np.bool_) for value in values):
            continue
        for (source, _), samples in questions.items():
            held = [sample for sample in samples if values[sample] is not None]
            given = [infos[PREDICTION][sample] for sample in held] if PREDICTION in infos else []
            predictions = given if any(prediction is not None for prediction in given) else None  # another source's
            statistics = question_statistics([values[sample] for sample in held], predictions, seed)
            for name, value in statistics.items():
                collected[source][variable][name].append(value)
    return {
        source: {
            variable: {name: float(np.mean(per_question)) for name, per_question in statistics.items()}
            for variable, statistics in variables.items()
        }
        for source, variables in collected.items()
    }


def question_statistics(values: Sequence[float], predictions: Sequence[Any] | None, seed: int) -> Statistics:
    """The statistics of one question's N samples."""
    numbers = np.asarray(values, dtype=np.float64)
    n = len(numbers)
    if n == 0:
        return {}
    statistics = {f"mean@{n}": float(numbers.mean())}
    if n == 1:
        return statistics
    statistics[f"std@{n}"] = float(numbers.std())
    draws: dict[str, Draw] = {
        "best": lambda drawn: numbers[drawn].max(-1),
        "worst": lambda drawn: numbers[drawn].min(-1),
    }
    if predictions is not None:
        draws["maj"] = lambda drawn: majority(numbers, predictions, drawn)
    for k in subset_sizes(n):
        for name, draw in draws.items():
            mean, std = bootstrap(n, k, draw, seed)
            statistics[f"{name}@{k}/mean"], statistics[f"{name}@{k}/std"] = mean, std
    return statistics


def subset_sizes(n: int) -> list[int]:
    """2, 4, 8, … below n, and n itself."""
    return [2**power for power in range(1, n.bit_length()) if 2**power < n] + [n]


def bootstrap(n: int, k: int, draw: Draw, seed: int, draws: int = DRAWS) -> tuple[float, float]:
    """Mean and spread of a statistic over `draws` samples of k out of n positions, with replacement."""
    values = draw(_positions(n, k, seed, draws))
    return float(np.mean(values)), float(np.std(values))


@lru_cache(maxsize=64)
def _positions(n: int, k: int, seed: int, draws: int) -> np.ndarray:
    """(draws, k) positions below n; the same for every question, so they are drawn once."""
    drawn = np.random.RandomState(seed).choice(n, (draws, k), replace=True)
    drawn.setflags(write=False)
    return drawn


def majority(numbers: np.ndarray, predictions: Sequence[Any], drawn: np.ndarray) -> np.ndarray:
    """For each row of positions, the value of the first one whose prediction is the most frequent in that row."""
    codes: dict[Hashable, int] = {}
    keys = [_hashable(prediction) for prediction in predictions]
    code = np.array([codes.setdefault(key, len(codes)) for key in keys])[drawn]  # (draws, k)
    cells = np.arange(len(drawn))[:, None] * len(codes) + code
    votes = np.bincount(cells.ravel(), minlength=len(drawn) * len(codes)).reshape(len(drawn), len(codes))
    winner = np.take_along_axis(votes, code, axis=1).argmax(-1)  # the first of equals
    return numbers[np.take_along_axis(drawn, winner[:, None], axis=1)[:, 0]]


def _hashable(prediction: Any) -> Hashable:
    try:
        hash(prediction)
    except TypeError:
        return repr(prediction)
    return prediction
