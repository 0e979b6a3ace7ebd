"""Experience: prompts in, whole groups of scored trajectories out.

A step publishes the weights, takes the next prompts of the stream (the data's, and those of `augment.py`), runs n
trajectories per prompt, with a greedy one where the algorithm needs a baseline, and scores them; with
`algorithm.filter_groups` in rounds (`filter.py`). With `async_rollout.staleness` = k > 0, up to k rounds after the one
waited for are begun: a step takes at least one, so no token is older than k versions. The state is that before the
oldest round begun: a resumed run begins it again.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from burnish.agents.runner import GREEDY
from burnish.algorithms.metrics import lengths
from burnish.config import Needs, PPOConfig
from burnish.config.rollout import BaseRolloutConfig
from burnish.controller import WorkerGroup
from burnish.data.dataset import CustomDataset, RLDataset, collate, with_same_fields
from burnish.data.files import Row
from burnish.data.order import CustomOrder, Order
from burnish.protocol import DataProto, object_column
from burnish.rewards.managers import RewardManager
from burnish.rollout.base import Sampling
from burnish.tracking.timer import timed
from burnish.trainer.augment import Augmentation
from burnish.trainer.filter import GroupFilter, Sieve
from burnish.trainer.groups import ROW, Passes, RemoteRollouts
from burnish.trainer.reward_model import RULE_SCORE, RewardModel, model_metrics
from burnish.trainer.score import (
    add_overlong_penalty,
    fold_baselines,
    outcomes,
    score,
    score_metrics,
    scores_at_once,
    with_observations,
)
from burnish.workers.rollouts import RoundSettings, with_speed

BeginPasses = Callable[[DataProto, dict[str, float]], Passes]


@dataclass(frozen=True)
class Round:
    number: int
    rows: list[Row]
    position: int
    drawn: int


class Experience:
    """The prompt stream and what turns it into batches. `end`: prompts to draw in all (None: endless). `scores_apart`:
    the reward model has its own devices, so passes of other models over a step need not wait for it."""

    def __init__(
        self,
        config: PPOConfig,
        dataset: RLDataset | CustomDataset,
        order: Order | CustomOrder,
        policy: WorkerGroup | RemoteRollouts,
        manager: RewardManager,
        needs: Needs,
        end: int | None,
        last_step: int,
        augmentation: Augmentation,
        reward_model: RewardModel | None = None,
        scores_apart: bool = False,
    ):
        self.config = config
        # Where groups are dropped by their scores, passes that began before would be wasted on most of them.
        self.passes_first = scores_apart and not config.algorithm.filter_groups.enable
        self.dataset, self.order = dataset, order
        self.policy, self.manager, self.needs = policy, manager, needs
        self.reward_model = reward_model
        self.sampling = training_sampling(config.actor_rollout_ref.rollout)
        self.at_once = scores_at_once(manager, config)
        self.augmentation = augmentation
        self.filter = GroupFilter(config, augmentation.event)
        self.end, self.last_step = end, last_step
        self.position = self.drawn = self.rounds = 0  # `rounds` counts those that were drawn, which numbers them
        self.begun: deque[Round] = deque()  # and not waited for, the oldest first

    @property
    def epoch(self) -> int:
        """The pass over the data that the next prompt to be trained on belongs to."""
        return self.order.epoch(self.begun[0].position if self.begun else self.position)

    def draw(
        self, step: int, metrics: dict[str, float], begin_passes: BeginPasses = Passes
    ) -> tuple[DataProto, Passes]:
        """At most train_batch_size groups of n samples, scored, and the passes of models over them, begun."""
        with timed(metrics, "update_weights"):
            self.policy.update_weights(step - 1)
        drawn, position, passes = self.drawn, self.position, None
        if self.config.algorithm.filter_groups.enable:
            batch = self._rounds(step, metrics)
        else:
            begin_first = begin_passes if self.passes_first else None
            batch, passes = self._round(self.config.data.train_batch_size, step, metrics, begin_first)
        penalised = self.config.algorithm.overlong_buffer.enable
        metrics.update(score_metrics(batch, penalised))
        metrics.update(self.augmentation.share(self.drawn - drawn, self.position - position))
        metrics.update(with_speed(metrics))
        if self.reward_model is not None:
            metrics.update(model_metrics(batch))
        return batch, passes or begin_passes(batch, metrics)

    def state_dict(self) -> dict[str, Any]:
        """Without augmentation all prompts are the data's, and the position says how many."""
        buffer = self.augmentation.buffer
        augmented = {} if buffer is None else {"drawn": self.drawn, "augment": buffer.state_dict()}
        return {"position": self.begun[0].position if self.begun else self.position, **augmented}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.position, self.drawn = state["position"], drawn_of(state)
        self.begun.clear()
        if self.augmentation.buffer is not None:
            self.augmentation.buffer.load_state_dict(state["augment"])

    def _rounds(self, step: int, metrics: dict[str, float]) -> DataProto:
        """Rounds until enough groups differ, up to the limit; without one, until a pass over the data brought none."""
        limit = self.config.algorithm.filter_groups.max_num_gen_batches
        sieve, found_at = Sieve(self.config.data.train_batch_size), self._taken
        while sieve.missing:
            batch, _ = self._round(self.config.data.gen_batch_size, step, metrics)
            if sieve.add(batch, self.filter.values(batch)):
                found_at = self._taken
            self.filter.report(sieve, step)
            in_pass = self.order.start(self.epoch + 1) - self.order.start(self.epoch)  # prompts, the next one's
            is_fruitless = not limit and self._taken - found_at >= in_pass
            if sieve.rounds == limit or is_fruitless:
                break
        return self.filter.finish(sieve, step, metrics)

    def _round(
        self, size: int, step: int, metrics: dict[str, float], begin_passes: BeginPasses | None = None
    ) -> tuple[DataProto, Passes | None]:
        """The next `size` prompts, answered and scored. What a round reports is added to the step's metrics."""
        new = self._new_rounds(size, step)
        with timed(metrics, "gen"):
            for one in new:
                settings = RoundSettings(one.number, self.sampling, "train", self.at_once)
                self.policy.begin_sequences(one.rows, settings)
            self.begun.extend(new)
            oldest = self.begun.popleft()
            answered: DataProto = self.policy.finish_sequences(oldest.number)
        for name, parts in answered.meta_info.pop("metrics", {}).items():  # of each worker
            metrics[name] = metrics.get(name, 0) + sum(parts)
        batch, passes = collate(oldest.rows).union(answered), None
        generated = int(lengths(batch.batch)[1].sum())
        metrics["perf/generated_tokens"] = metrics.get("perf/generated_tokens", 0) + generated
        if begin_passes is not None:
            batch.non_tensor_batch[ROW] = object_column(list(range(len(batch))))  # some rows may be dropped
            passes = begin_passes(batch, metrics)
        with timed(metrics, "reward"):
            batch = self._scored(batch, metrics)
        self.augmentation.collect(batch, step, metrics)
        return batch, passes

    def _new_rounds(self, size: int, step: int) -> list[Round]:
        """Draw the rounds to begin now: the one to wait for, unless it is on its way, and those that run ahead."""
        wanted = 1 + self.config.staleness
        # Where a step takes one round, there is none for a step after the last.
        if self.config.staleness and not self.config.algorithm.filter_groups.enable:
            wanted = min(wanted, 1 + self.last_step - step)
        new: list[Round] = []
        while len(self.begun) + len(new) < wanted and (self.end is None or self.drawn < self.end):
            self.rounds += 1
            position, drawn = self.position, self.drawn
            new.append(Round(self.rounds, self._next_rows(size), position, drawn))
        return new

    def _scored(self, batch: DataProto, metrics: dict[str, float]) -> DataProto:
        algorithm, model = self.config.algorithm, self.reward_model
        compares = self.needs.groups or algorithm.filter_groups.enable
        batch = score(batch, self.manager, self.config.reward, metrics, needs_groups=compares, model=model)
        if self.needs.process_reward:
            batch.batch["outcomes"] = outcomes(batch, ("acc", RULE_SCORE) if model else ("acc",))
        if algorithm.overlong_buffer.enable:
            add_overlong_penalty(batch, self.config.data.response_limit, algorithm.overlong_buffer)
        if not self.config.actor_rollout_ref.actor.state_masking:
            batch = with_observations(batch)
        return fold_baselines(batch) if self.needs.greedy_baseline else batch

    @property
    def _taken(self) -> int:
        """Prompts drawn so far, without those that are on their way."""
        return self.begun[0].drawn if self.begun else self.drawn

    def _next_rows(self, size: int) -> list[Row]:
        """n rows for each of the next prompts, numbered, and after them its greedy row where a baseline is needed."""
        size = size if self.end is None else min(size, self.end - self.drawn)
        proposed = self.augmentation.take(size)
        positions = range(self.position, self.position + size - len(proposed))
        of_data = [self.dataset[self.order.index(position)] for position in positions]
        # Spread evenly, each in its order, so that mini-batches of adjacent rows hold the same mixture.
        placed = [((i + 0.5) / len(part), row) for part in (proposed, of_data) for i, row in enumerate(part)]
        mixed = [row for _, row in sorted(placed, key=lambda place: place[0])]
        n, greedy = self.config.actor_rollout_ref.rollout.n, self.needs.greedy_baseline
        # The uid is the place in the stream of drawn prompts: a row drawn twice makes two groups.
        rows = [
            {**row, "uid": uid, "sample": sample, **({GREEDY: sample == n} if greedy else {})}
            for uid, row in enumerate(with_same_fields(mixed), self.drawn)
            for sample in range(n + greedy)
        ]
        self.position, self.drawn = positions.stop, self.drawn + size
        return rows


def drawn_of(state: Mapping[str, Any]) -> int:
    """How many prompts were drawn up to a saved state: without augmentation, its position in the data."""
    return int(state.get("drawn", state["position"]))


def training_sampling(rollout: BaseRolloutConfig) -> Sampling:
    return Sampling(
        temperature=rollout.temperature if rollout.do_sample else 0.0,
        top_k=rollout.top_k,
        top_p=rollout.top_p,
        min_p=rollout.min_p,
        max_tokens=rollout.response_length,
        stop=tuple(rollout.stop),
        stop_token_ids=tuple(rollout.stop_token_ids),
        ignore_eos=rollout.ignore_eos,
    )
