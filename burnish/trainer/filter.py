"""Dynamic sampling: a group whose samples are all alike teaches nothing; it is dropped, and another is drawn.

Consumes the scored batches of a step's rounds; produces the groups whose samples differ in
`algorithm.filter_groups.metric`, in the order in which they were drawn. docs/sampling.md has metrics and choices.

Paper: DAPO (Yu et al. 2025, arXiv:2503.14476). How we differ:
- Values are compared as they are, not by a deviation above 0, so rounding makes no group differ.
- Surplus groups are not kept for the next step, for whose policy they would be old.
- A step without enough groups at its last round trains on those it has, with a warning. Elsewhere that ends the run.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from burnish.config import PPOConfig
from burnish.errors import NothingToLearn, RewardError
from burnish.protocol import DataProto
from burnish.workers.trajectories import joined

KEY = "algorithm.filter_groups"
SCORES = ("score", "seq_reward", "seq_final_reward")

log = logging.getLogger(__name__)


@dataclass
class Sieve:
    wanted: int  # groups
    rounds: int = 0
    generated: int = 0
    surplus: int = 0
    kept: list[DataProto] = field(default_factory=list)  # by round
    kept_groups: int = 0
    flat: list[float] = field(default_factory=list)  # the value of each dropped group
    samples: int = 0
    total: float = 0.0  # of the values of all samples
    low: float = math.inf  # of all samples
    high: float = -math.inf

    @property
    def missing(self) -> int:
        return self.wanted - self.kept_groups

    def add(self, batch: DataProto, values: np.ndarray) -> int:
        """Keep the groups of a round that differ in their `values` (B,), while any are missing; gives how many do."""
        uids, group, size = np.unique(batch.non_tensor_batch["uid"], return_inverse=True, return_counts=True)
        low, high = np.full(len(uids), math.inf), np.full(len(uids), -math.inf)
        np.minimum.at(low, group, values)
        np.maximum.at(high, group, values)
        differ = (size > 1) & (low < high)
        chosen = np.flatnonzero(differ)[: self.missing]
        if len(chosen):
            self.kept.append(batch[np.isin(group, chosen)])
        self.rounds += 1
        self.generated += len(uids)
        self.kept_groups += len(chosen)
        self.surplus += int(differ.sum()) - len(chosen)
        self.flat += low[~differ].tolist()
        self.samples, self.total = self.samples + len(values), self.total + float(values.sum())
        self.low, self.high = min(self.low, float(low.min())), max(self.high, float(high.max()))
        return int(differ.sum())

    def metrics(self) -> dict[str, float]:
        several = self.low < self.high
        counts = {
            "rounds": self.rounds,
            "generated_groups": self.generated,
            "kept_groups": self.kept_groups,
            "surplus_groups": self.surplus,
            "dropped_groups": len(self.flat),
            "dropped_highest": self.flat.count(self.high) if several or self.high > 0 else 0,
            "dropped_lowest": self.flat.count(self.low) if several or self.low <= 0 else 0,
            "kept_ratio": self.kept_groups / self.generated,
            "metric_mean": self.total / self.samples,
        }
        return {f"filter_groups/{name}": float(value) for name, value in counts.items()}


class GroupFilter:
    """The filter of a run. `event(kind, **facts)` records what the run should remember."""

    def __init__(self, config: PPOConfig, event: Callable[..., None]):
        self.config, self.event = config.algorithm.filter_groups, event
        self.score_for_acc: bool | None = None  # not known before the first round
        self.warned = False

    def values(self, batch: DataProto) -> np.ndarray:
        """(B,): the metric of each sample. RewardError where the reward function did not return it."""
        metric = self.config.metric
        if metric in SCORES or (metric == "acc" and self._score_stands_for_acc(batch)):
            return np.asarray(batch.batch["token_level_scores"].double().sum(-1))
        return np.array([_value(batch, i, metric) for i in range(len(batch))], dtype=np.float64)

    def report(self, sieve: Sieve, step: int) -> None:
        """How far a step is that takes many rounds: logged after 2, 4, 8, … of them."""
        if sieve.missing and sieve.rounds > 1 and sieve.rounds.bit_count() == 1:
            log.info(
                "step %d, dynamic sampling: %d rounds, %d groups generated, %d of %d kept (mean %s %.3g)",
                *(step, sieve.rounds, sieve.generated, sieve.kept_groups, sieve.wanted),
                *(self.config.metric, sieve.total / sieve.samples),
            )

    def finish(self, sieve: Sieve, step: int, metrics: dict[str, float]) -> DataProto:
        """The step's batch: the groups that were kept. NothingToLearn where there is none."""
        metrics.update(sieve.metrics())
        if not sieve.kept:
            raise NothingToLearn(self._nothing(sieve, step))
        if sieve.missing:
            facts = {"kept": sieve.kept_groups, "wanted": sieve.wanted, "generated": sieve.generated}
            self.event("filter_groups_short", step=step, rounds=sieve.rounds, **facts)
            if not self.warned:
                text = (
                    "step %d trains on %d of %d groups: of the %d that were generated in %d rounds, the others have "
                    "one %s for all their samples. More rounds: %s.max_num_gen_batches. Later such steps are in "
                    "events.jsonl"
                )
                counts = (step, sieve.kept_groups, sieve.wanted, sieve.generated, sieve.rounds)
                log.warning(text, *counts, self.config.metric, KEY)
            self.warned = True
        return joined(sieve.kept)

    def _score_stands_for_acc(self, batch: DataProto) -> bool:
        """Whether the run does without `acc`: its first round decides, and the others must be like it. So a run that
        goes through has one kind of round, and one that is resumed needs no memory of it."""
        columns = batch.non_tensor_batch
        having = [i for i, info in enumerate(columns["reward_info"]) if info.get("acc") is not None]
        if self.score_for_acc is None:
            self.score_for_acc = not having
            if self.score_for_acc:
                log.warning("%s.metric=acc: the reward function returns no acc, so the score is used instead", KEY)
        if self.score_for_acc and having:
            raise RewardError(
                f"{KEY}.metric=acc: the reward function returned acc for uid {columns['uid'][having[0]]} (data_source "
                f"{columns['data_source'][having[0]]}) but not in earlier rounds, in which the score was used. "
                f"Return it for every sample, or set {KEY}.metric=score"
            )
        return self.score_for_acc

    def _nothing(self, sieve: Sieve, step: int) -> str:
        values = [f"{value:g} in {count}" for value, count in Counter(sieve.flat).most_common(3)]
        most = self.config.max_num_gen_batches
        more = f"raise {KEY}.max_num_gen_batches={most}, " if most else ""
        metric = "score" if self.score_for_acc else self.config.metric
        verdict = "Are the prompts too hard or too easy for this policy"
        if set(sieve.flat) == {1.0}:
            verdict = "The policy solves these prompts"
        return (
            f"step {step}: nothing to learn from: in each of the {sieve.generated} groups of {sieve.rounds} rounds all "
            f"samples have the same {metric} ({KEY}.metric={self.config.metric}): {', '.join(values)}. {verdict}, or "
            f"does the reward function give all answers the same? Otherwise {more}raise actor_rollout_ref.rollout.n "
            "or data.gen_batch_size"
        )


def _value(batch: DataProto, row: int, metric: str) -> float:
    columns = batch.non_tensor_batch
    info = columns["reward_info"][row]
    value = info.get(metric)
    result = columns.get("score_result", {row: None})[row]
    if value is None and result is not None and result.error is not None:
        return 0.0  # it could not be scored, and reward.on_error=zero gave it 0
    if not isinstance(value, int | float) or not math.isfinite(value):
        there = ", ".join(name for name, other in info.items() if other is not None) or "nothing"
        found = "no such value" if value is None else f"{value!r}, which is no finite number,"
        raise RewardError(
            f"{KEY}.metric={metric}: what the reward function returned for uid {columns['uid'][row]} (data_source "
            f"{columns['data_source'][row]}) has {found} under that name; it has {there}. Return it for every sample, "
            f"or set {KEY}.metric to one that is always there, such as score"
        )
    return float(value)
