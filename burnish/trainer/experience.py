"""Experience: prompts in, whole groups of scored trajectories out.

Each `draw` takes the next prompts of the stream, tells the rollout engine which weights are current, runs n
trajectories per prompt and scores them. The stream is endless and a pure function of its position, so the position is
all the state there is: it goes into the checkpoint, and a resumed run draws what the uninterrupted one would have.
Generation and training alternate here; running ahead is not built yet.
"""

from typing import Any

import numpy as np

from burnish.config import Needs, PPOConfig
from burnish.config.rollout import RolloutConfig
from burnish.controller import WorkerGroup
from burnish.data.collate import collate
from burnish.data.custom import CustomDataset, CustomOrder
from burnish.data.dataset import RLDataset
from burnish.data.order import Order
from burnish.protocol import DataProto
from burnish.rollout.base import Sampling
from burnish.tracking.timer import timed
from burnish.trainer.score import score, scores_at_once


class Experience:
    """The prompt stream and what turns it into batches. `end` is the position after the last prompt, None: endless."""

    def __init__(
        self,
        config: PPOConfig,
        dataset: RLDataset | CustomDataset,
        order: Order | CustomOrder,
        policy: WorkerGroup,
        manager: Any,
        needs: Needs,
        end: int | None,
    ):
        self.config = config
        self.dataset, self.order = dataset, order
        self.policy, self.manager, self.needs = policy, manager, needs
        self.sampling = training_sampling(config.actor_rollout_ref.rollout)
        self.at_once = scores_at_once(manager, config)
        self.end = end
        self.position = 0

    @property
    def epoch(self) -> int:
        """The pass over the data that the next prompt belongs to."""
        return self.order.epoch(self.position)

    def draw(self, step: int, metrics: dict[str, float]) -> DataProto:
        """The batch of training step `step`: at most train_batch_size groups of n samples, scored."""
        prompts = self._next_prompts().repeat(self.config.actor_rollout_ref.rollout.n, interleave=True)
        prompts.non_tensor_batch["sample"] = _sample_numbers(prompts.non_tensor_batch["uid"])
        with timed(metrics, "update_weights"):
            self.policy.update_weights(step - 1)
        with timed(metrics, "gen"):
            batch = prompts.union(self.policy.generate_sequences(prompts, self.sampling, "train", self.at_once))
        with timed(metrics, "reward"):
            return score(batch, self.manager, self.config.reward, metrics, needs_groups=self.needs.groups)

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]

    def _next_prompts(self) -> DataProto:
        stop = self.position + self.config.data.train_batch_size
        stop = stop if self.end is None else min(stop, self.end)
        # The uid is the place in the stream: a row drawn twice makes two groups.
        rows = [{**self.dataset[self.order.index(uid)], "uid": uid} for uid in range(self.position, stop)]
        self.position = stop
        return collate(rows)


def training_sampling(rollout: RolloutConfig) -> Sampling:
    """How training trajectories are sampled."""
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


def _sample_numbers(uids: np.ndarray) -> np.ndarray:
    """0, 1, … within each group."""
    seen: dict[int, int] = {}
    numbers = np.empty(len(uids), dtype=object)
    for i, uid in enumerate(uids):
        numbers[i] = seen.get(uid, 0)
        seen[uid] = numbers[i] + 1
    return numbers
