"""Rows in, a batch of finished and scored trajectories out: what a worker needs to generate, whoever its engine is.

`ActorRolloutRefWorker` has one over the engine in its own process; an `AgentLoopWorker` has one over the replicas of
other processes. It sees to the trajectories (agents/runner.py), their scores (rewards/scoring.py), the columns they
become (trajectories.py) and what is told of them as metrics. Weights and memory of the engine are its worker's.
"""

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from burnish.agents.output import AgentLoopOutput
from burnish.agents.runner import Score, Trajectory, TrajectoryRunner
from burnish.agents.settings import AgentSettings
from burnish.config import PPOConfig
from burnish.protocol import DataProto
from burnish.rewards.contract import ScoreResult
from burnish.rewards.failures import FailureWatch
from burnish.rewards.scoring import Scoring
from burnish.rollout.base import RolloutEngine, Sampling
from burnish.waits import waiting
from burnish.workers.rollout_metrics import engine_metrics, retrieval_metrics
from burnish.workers.trajectories import to_batch


@dataclass(frozen=True)
class Counters:
    """What the engine and the retriever have done so far."""

    engine: dict[str, float]
    retriever: dict[str, float]


class Rollouts:
    """Runs and scores trajectories over `engine`, which is awake.

    `begin` and `finish` are for generation that runs ahead of training: several batches may be on their way.
    """

    def __init__(self, config: PPOConfig, tokenizer: Any, engine: RolloutEngine):
        self.config, self.tokenizer, self.engine = config, tokenizer, engine
        self.scoring = Scoring.from_config(config)
        self.runner = TrajectoryRunner(engine, tokenizer, AgentSettings.of(config))
        self._ahead: dict[int, Future[list[Trajectory]]] = {}  # by number
        self._told = self._counters()

    def generate(
        self, prompts: DataProto, sampling: Sampling, namespace: str, score: bool, total: int | None = None
    ) -> DataProto:
        """Run one trajectory per row; adds the rollout columns and `score_result`, and what the engine did as metrics.

        namespace   keeps the noise of training and validation apart
        score       score each trajectory as it finishes, with the configured function; otherwise the results are None
        total       rows of the whole batch, where this is a part of it: what a ratio of failures is a ratio of
        """
        trajectories = self.runner.run(_rows(prompts), sampling, **self._how(namespace, score, total or len(prompts)))
        return self._batch(trajectories)

    def begin(
        self,
        number: int,
        prompts: DataProto,
        sampling: Sampling,
        namespace: str,
        score: bool,
        total: int | None = None,
    ) -> None:
        """Begin what `generate` does, under a number."""
        how = self._how(namespace, score, total or len(prompts))
        self._ahead[number] = self.runner.start(_rows(prompts), sampling, **how)

    def finish(self, number: int) -> DataProto | None:
        """Wait for what was begun under this number; None where nothing was."""
        future = self._ahead.pop(number, None)
        if future is None:
            return None
        with waiting("engine", "", f"the trajectories of round {number}", self._deadline_s):
            trajectories = future.result()
        return self._batch(trajectories)

    @property
    def _deadline_s(self) -> float | None:
        """`rollout.timeout`, as often as there are rounds at a time that share the engine, validation's too."""
        seconds = self.config.actor_rollout_ref.rollout.timeout
        return None if seconds is None else seconds * (1 + self.config.staleness)

    def _how(self, namespace: str, score: bool, total: int) -> dict[str, Any]:
        return {
            "namespace": namespace,
            "seed": self.config.trainer.seed,
            "score": self._scorer(total) if score else None,
            "deadline_s": self._deadline_s,
        }

    def _counters(self) -> Counters:
        return Counters(self.engine.stats(), self.runner.environment.retriever_stats())

    def _batch(self, trajectories: list[Trajectory]) -> DataProto:
        """Its metrics tell what was done since those of the batch before it, which may run beside it."""
        rollout = self.config.actor_rollout_ref.rollout
        before, now = self._told, self._counters()
        self._told = now
        batch = to_batch(
            trajectories,
            self.tokenizer.pad_token_id,
            log_probs=rollout.calculate_log_probs,
            versions=self.config.staleness > 0,
        )
        batch.meta_info["metrics"] = engine_metrics(before.engine, now.engine)
        batch.meta_info["metrics"] |= retrieval_metrics(before.retriever, now.retriever)
        return batch

    def close(self) -> None:
        """End what agents started, trajectories that are on their way first, and the processes that score them."""
        try:
            self.runner.close()
        finally:
            self.scoring.close()

    def _scorer(self, total: int) -> Score:
        """Scores trajectories as they finish; RewardError as soon as more of `total` have failed than may."""
        watch = FailureWatch(total, self.config.reward.max_failure_ratio)

        async def score(row: dict[str, Any], output: AgentLoopOutput, text: str) -> ScoreResult | None:
            result = await self.scoring.score(row, output, text)
            if result is not None:  # else it is left to the reward model
                watch.add(row["uid"], result)
            return result

        return score


def _rows(prompts: DataProto) -> list[dict[str, Any]]:
    columns = prompts.non_tensor_batch
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
