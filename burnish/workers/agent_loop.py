"""Agent loops in a separate process: they ask the replicas of the policy for tokens, and score what comes out.

No model is here. Several such workers share the rows of a batch by whole groups and the replicas by load; see
`GROUPED_ROLLOUTS` in trajectories.py and rollout/replicas.py. Metrics of a batch are those of the retriever: what the
engines did is counted on the replicas (`ActorRolloutRefWorker.engine_stats`), where a count belongs to no one of their
clients.
"""

import copy
from collections.abc import Sequence
from typing import Any

from burnish.config import PPOConfig
from burnish.controller import Dispatch, Worker, register
from burnish.errors import WorkerError
from burnish.loop_thread import run_to_end
from burnish.models.loading import load_tokenizer
from burnish.protocol import DataProto
from burnish.rollout.replicas import ReplicaPeer, Replicas
from burnish.workers.rollouts import Rollouts, RoundSettings
from burnish.workers.trajectories import BEGUN_ROLLOUTS, GROUPED_ROLLOUTS


class AgentLoopWorker(Worker):
    """Runs and scores trajectories over engines that are elsewhere."""

    def __init__(self, config: PPOConfig, total_steps: int):
        self.config = config
        self.rollouts: Rollouts | None = None
        self._begun: dict[int, tuple[set[int], str]] = {}  # round → its prompts, and their namespace

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def connect(self, peers: Sequence[ReplicaPeer]) -> None:
        """Meet the replicas, which can take requests from now on. Again after their group was made again."""
        self.close()
        model = self.config.actor_rollout_ref.model
        tokenizer = load_tokenizer(model.tokenizer_path or model.path, model.trust_remote_code)
        self.replicas = run_to_end(Replicas.over(peers))
        self.rollouts = Rollouts(share_of(self.config, self.world_size), tokenizer, self.replicas)

    @register(dispatch_mode=GROUPED_ROLLOUTS)
    def begin_sequences(
        self, rows: Sequence[dict[str, Any]], settings: RoundSettings, total: int | None = None
    ) -> None:
        """As `Rollouts.begin`, for this worker's groups of a batch of `total` rows."""
        self._connected().begin(rows, settings, total)
        self._begun[settings.number] = {row["uid"] for row in rows}, settings.namespace

    @register(dispatch_mode=BEGUN_ROLLOUTS)
    def finish_sequences(self, number: int) -> DataProto | None:
        """Wait for what was begun under this number; None where this worker had no part in it."""
        rollouts = self._connected()
        try:
            return rollouts.finish(number)
        finally:
            self.replicas.forget(*self._begun.pop(number, ((), "")))

    def _connected(self) -> Rollouts:
        if self.rollouts is None:
            raise WorkerError("agent loops have no policy to ask yet; call connect with the peers of its group first")
        return self.rollouts

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def close(self) -> None:
        """End the processes that score, and what agents started."""
        rollouts, self.rollouts = self.rollouts, None
        if rollouts is not None:
            rollouts.close()


def share_of(config: PPOConfig, workers: int) -> PPOConfig:
    """The configuration of one of several workers: what it says of all processes that score, they share."""
    own = copy.deepcopy(config)
    own.reward.num_workers = -(-config.reward.num_workers // workers)
    own.reward_model.sandbox.max_concurrent = -(-config.reward_model.sandbox.max_concurrent // workers)
    return own
