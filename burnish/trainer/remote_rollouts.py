"""Rollouts by agent loops in processes of their own, over engines in the policy's: the policy as experience asks it."""

from burnish.controller import WorkerGroup
from burnish.protocol import DataProto
from burnish.rollout.base import Sampling
from burnish.workers.rollout_metrics import replica_metrics


class RemoteRollouts:
    """Publishes weights to the replicas and has the agent loops generate with them."""

    def __init__(self, policy: WorkerGroup, agents: WorkerGroup):
        self.policy, self.agents = policy, agents
        agents.connect(policy.peers())

    def update_weights(self, version: int) -> None:
        """Bring the newest weights to every replica; each proves that they have arrived, or raises."""
        self.policy.update_weights(version)

    def generate_sequences(self, prompts: DataProto, sampling: Sampling, namespace: str, score: bool) -> DataProto:
        """One trajectory for each row. What the replicas did for it is told as metrics, beside those of the agents."""
        before = self.policy.engine_stats()
        answered: DataProto = self.agents.generate_sequences(prompts, sampling, namespace, score)
        counted = replica_metrics(before, self.policy.engine_stats())
        metrics = answered.meta_info.setdefault("metrics", {})
        metrics.update({name: [value] for name, value in counted.items()})
        return answered
