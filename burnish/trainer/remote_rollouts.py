"""Rollouts by agent loops in processes of their own, over engines in the policy's: the policy as experience asks it."""

from burnish.controller import WorkerGroup
from burnish.protocol import DataProto
from burnish.rollout.base import Sampling
from burnish.workers.rollout_metrics import replica_metrics


class RemoteRollouts:
    """Publishes weights to the replicas and has the agent loops generate with them, up to `staleness` rounds ahead."""

    def __init__(self, policy: WorkerGroup, agents: WorkerGroup, staleness: int = 0):
        self.policy, self.agents = policy, agents
        agents.connect(policy.peers(1 + staleness))
        self._told: list[dict[str, float]] = policy.engine_stats()  # at the end of the batch before

    def update_weights(self, version: int) -> None:
        """Bring the newest weights to every replica; each proves that they have arrived, or raises."""
        self.policy.update_weights(version)

    def generate_sequences(self, prompts: DataProto, sampling: Sampling, namespace: str, score: bool) -> DataProto:
        """One trajectory for each row. What the replicas did since the batch before is told as metrics, beside those of
        the agents."""
        return self._with_metrics(self.agents.generate_sequences(prompts, sampling, namespace, score))

    def begin_sequences(self, prompts: DataProto, number: int, sampling: Sampling, namespace: str, score: bool) -> None:
        """The same, begun under a number."""
        self.agents.begin_sequences(prompts, number, sampling, namespace, score)

    def finish_sequences(self, number: int) -> DataProto:
        """Wait for what was begun under this number."""
        return self._with_metrics(self.agents.finish_sequences(number))

    def _with_metrics(self, answered: DataProto) -> DataProto:
        before, self._told = self._told, self.policy.engine_stats()
        metrics = answered.meta_info.setdefault("metrics", {})
        metrics.update({name: [value] for name, value in replica_metrics(before, self._told).items()})
        return answered
