"""Rollouts by agent loops in separate processes, over engines in the policy's: the policy as experience asks it."""

from collections.abc import Sequence

from burnish.controller import WorkerGroup
from burnish.data.files import Row
from burnish.protocol import DataProto
from burnish.workers.rollout_metrics import replica_metrics
from burnish.workers.rollouts import RoundSettings


class RemoteRollouts:
    """Publishes weights to the replicas and has the agent loops generate with them, up to `staleness` rounds ahead."""

    def __init__(self, policy: WorkerGroup, agents: WorkerGroup, staleness: int = 0):
        self.policy, self.agents = policy, agents
        agents.connect(policy.peers(1 + staleness))
        self._counted: list[dict[str, float]] = policy.engine_stats()  # up to the last batch

    def update_weights(self, version: int) -> None:
        """Bring the newest weights to every replica; each proves that they have arrived, or raises."""
        self.policy.update_weights(version)

    def begin_sequences(self, rows: Sequence[Row], settings: RoundSettings) -> None:
        """Begin one trajectory for each row."""
        self.agents.begin_sequences(rows, settings)

    def finish_sequences(self, number: int) -> DataProto:
        """Wait for what was begun under this number. Its metrics count what the replicas did since the batch before."""
        answered: DataProto = self.agents.finish_sequences(number)
        before, self._counted = self._counted, self.policy.engine_stats()
        metrics = answered.meta_info.setdefault("metrics", {})
        metrics.update({name: [value] for name, value in replica_metrics(before, self._counted).items()})
        return answered
