"""Validation statistics over repeated answers to the same question (docs/metrics.md lists them). numpy only.

Questions are averaged, each key over the questions that have it. A drawn tie goes to the answer that came first.
Predictions that cannot be hashed (lists, dicts) are the same where they print the same. Draws are seeded per statistic,
so a statistic depends on nothing but its own samples, and the global random state is left alone. They are the same
positions for every question of N samples, so such questions are worked out together.
"""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from numbers import Real
from typing import Any

import numpy as np

DRAWS = 1000
SEED = 42
PREDICTION = "pred"
CORE = ("acc", "reward", "rm_score")  # the first that a data source has is what it is judged by
TOGETHER = 1024  # samples at a time: some megabytes of draws

Statistics = dict[str, float]


def validation_metrics(
    data_sources: Sequence[str], uids: Sequence[Hashable], infos: Mapping[str, Sequence[Any]]
) -> dict[str, float]:
    """The statistics by the name they are tracked under: `val-core|val-aux/<data_source>/<variable>/<statistic>`."""
    return tracked_names(process_validation_metrics(data_sources, uids, infos))


def tracked_names(statistics_of: Mapping[str, Mapping[str, Statistics]]) -> dict[str, float]:
    """data source → variable → statistic → value, flat.

    Core is what a run is judged by: mean, best and majority of all N samples of `acc`, or of `reward` where the
    reward function gives no `acc`; of `rm_score` where no rule scores any row of a source.
    """
    named = {}
    for source, variables in statistics_of.items():
        core = next((name for name in CORE if name in variables), None)
        for variable, statistics in variables.items():
            largest = max(int(name.split("@")[1].split("/")[0]) for name in statistics)
            for name, value in statistics.items():
                kind, _, size = name.removesuffix("/mean").partition("@")
                is_core = variable == core and kind in ("mean", "best", "maj") and size == str(largest)
                named[f"val-{'core' if is_core else 'aux'}/{source}/{variable}/{name}"] = value
    return named


def process_validation_metrics(
    data_sources: Sequence[str], uids: Sequence[Hashable], infos: Mapping[str, Sequence[Any]], seed: int = SEED
) -> dict[str, dict[str, Statistics]]:
    """data source → variable → statistic → value. All sequences hold one entry per sample.

    A variable is one whose values are all numbers; None means that this sample has none.
    """
    questions: dict[tuple[str, Hashable], list[int]] = defaultdict(list)
    for sample, question in enumerate(zip(data_sources, uids, strict=True)):
        questions[question].append(sample)
    numeric = Real | np.bool_
    variables = [name for name, values in infos.items() if all(isinstance(value, numeric | None) for value in values)]
    numbers = {name: np.array([value or 0 for value in infos[name]], dtype=np.float64) for name in variables}
    predictions = infos.get(PREDICTION, [None] * len(uids))
    seen: dict[Hashable, int] = {}
    answers = np.array([seen.setdefault(_hashable(prediction), len(seen)) for prediction in predictions])  # (samples,)

    # Questions that are worked out together, each by its samples: as many of them, and numbers in the same variables.
    alike: dict[tuple[str, int, bool, tuple[str, ...]], list[tuple[int, ...]]] = defaultdict(list)
    for (source, _), samples in questions.items():
        named: dict[tuple[int, ...], tuple[str, ...]] = defaultdict(tuple)
        for name in variables:
            named[tuple(sample for sample in samples if infos[name][sample] is not None)] += (name,)
        for held, names in named.items():
            has_answers = any(predictions[sample] is not None for sample in held)  # another source may have some
            if held:
                alike[source, len(held), has_answers, names].append(held)

    collected: dict = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for (source, n, has_answers, names), members in alike.items():
        step = max(1, TOGETHER // n)
        for block in (np.array(members[start : start + step]) for start in range(0, len(members), step)):  # (Q, N)
            values = np.stack([numbers[name][block] for name in names])  # (V, Q, N)
            statistics = question_statistics(values, answers[block] if has_answers else None, seed)
            for statistic, of_variables in statistics.items():
                for name, per_question in zip(names, of_variables, strict=True):
                    collected[source][name][statistic].append(per_question)
    return {
        source: {
            name: {statistic: float(np.mean(np.concatenate(blocks))) for statistic, blocks in statistics.items()}
            for name, statistics in collected[source].items()
        }
        for source in collected
    }


def question_statistics(values: np.ndarray, answers: np.ndarray | None, seed: int) -> dict[str, np.ndarray]:
    """Each statistic (V, Q) of V variables of Q questions with N samples.

    values (V, Q, N); answers (Q, N): numbers that are equal where the predictions are.
    """
    n = values.shape[-1]
    statistics = {f"mean@{n}": values.mean(-1)}
    if n == 1:
        return statistics
    statistics[f"std@{n}"] = values.std(-1)
    for k in subset_sizes(n):
        drawn = positions(n, k, seed, DRAWS)
        over_draws = {"best": over_slots(np.maximum, values, drawn), "worst": over_slots(np.minimum, values, drawn)}
        if answers is not None:
            over_draws["maj"] = np.take_along_axis(values, majority(answers, drawn)[None], axis=-1)
        for name, of_draws in over_draws.items():  # (V, Q, draws)
            statistics[f"{name}@{k}/mean"], statistics[f"{name}@{k}/std"] = of_draws.mean(-1), of_draws.std(-1)
    return statistics


def subset_sizes(n: int) -> list[int]:
    """2, 4, 8, … below n, and n itself."""
    return [2**power for power in range(1, n.bit_length()) if 2**power < n] + [n]


@lru_cache(maxsize=64)
def positions(n: int, k: int, seed: int, draws: int) -> np.ndarray:
    """(draws, k) positions below n, drawn with replacement."""
    drawn = np.random.RandomState(seed).choice(n, (draws, k), replace=True)
    drawn.setflags(write=False)
    return drawn


def over_slots(best_of: np.ufunc, values: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """(…, draws): the largest (smallest) of the values (…, N) at each row of positions (draws, k)."""
    by_position = np.ascontiguousarray(np.moveaxis(values, -1, 0))  # (N, …), so that a position is one stretch
    found = by_position[drawn[:, 0]]
    for slot in drawn.T[1:]:
        best_of(found, by_position[slot], out=found)
    return np.ascontiguousarray(np.moveaxis(found, 0, -1))


def majority(answers: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """(Q, draws): for each row of positions, the first one whose answer is the most frequent in that row.

    answers (Q, N), drawn (draws, k).
    """
    (draws, k), n = drawn.shape, answers.shape[1]
    row = np.arange(draws)[:, None]
    times = np.bincount((row * n + drawn).ravel(), minlength=draws * n).reshape(draws, n)  # each position was drawn
    first = np.full((draws, n), k)  # when it was drawn first; k for never
    np.minimum.at(first, (np.broadcast_to(row, drawn.shape), drawn), np.arange(k))
    same = answers[:, :, None] == answers[:, None, :]  # (Q, N, N)
    exact = np.float32 if (k + 1) ** 2 < 2**24 else np.float64  # for the whole numbers here; the first is faster
    votes = (times * (k + 1)).astype(exact) @ same.astype(exact)  # (Q, draws, N), k + 1 for each
    votes -= first.astype(exact)  # at most k: of equals, the one drawn first
    return votes.argmax(-1)


def _hashable(prediction: Any) -> Hashable:
    try:
        hash(prediction)
    except TypeError:
        return repr(prediction)
    return prediction
