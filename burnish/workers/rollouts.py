"""Rows in, a batch of finished and scored trajectories out: what a worker needs to generate, whoever its engine is.

`ActorRolloutRefWorker` has one over the engine in its own process; an `AgentLoopWorker` has one over the replicas of
other processes. It sees to the trajectories (agents/runner.py), their scores (rewards/scoring.py), the columns they
become (trajectories.py) and what is told of them as metrics. Weights and memory of the engine are its worker's.
"""

from typing import Any

from burnish.agents.output import AgentLoopOutput
from burnish.agents.runner import Score, TrajectoryRunner
from burnish.config import PPOConfig
from burnish.protocol import DataProto
from burnish.rewards.contract import ScoreResult
from burnish.rewards.failures import FailureWatch
from burnish.rewards.scoring import Scoring
from burnish.rollout.base import RolloutEngine, Sampling
from burnish.workers.rollout_metrics import engine_metrics, retrieval_metrics
from burnish.workers.trajectories import to_batch


class Rollouts:
    """Runs and scores trajectories over `engine`, which is awake."""

    def __init__(self, config: PPOConfig, tokenizer: Any, engine: RolloutEngine):
        self.config, self.tokenizer, self.engine = config, tokenizer, engine
        self.scoring = Scoring.from_config(config)
        self.runner = TrajectoryRunner(engine, tokenizer, config)

    def generate(
        self, prompts: DataProto, sampling: Sampling, namespace: str, score: bool, total: int | None = None
    ) -> DataProto:
        """Run one trajectory per row; adds the rollout columns and `score_result`, and what the engine did as metrics.

        namespace   keeps the noise of training and validation apart
        score       score each trajectory as it finishes, with the configured function; otherwise the results are None
        total       rows of the whole batch, where this is a part of it: what a ratio of failures is a ratio of
        """
        columns, rollout = prompts.non_tensor_batch, self.config.actor_rollout_ref.rollout
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        before, asked = self.engine.stats(), self.runner.environment.retriever_stats()
        trajectories = self.runner.run(
            rows,
            sampling,
            namespace=namespace,
            seed=self.config.trainer.seed,
            score=self._scorer(total or len(rows)) if score else None,
            deadline_s=rollout.timeout,
        )
        batch = to_batch(trajectories, self.tokenizer.pad_token_id, log_probs=rollout.calculate_log_probs)
        batch.meta_info["metrics"] = engine_metrics(before, self.engine.stats())
        batch.meta_info["metrics"] |= retrieval_metrics(asked, self.runner.environment.retriever_stats())
        return batch

    def close(self) -> None:
        """End the processes that score, and what agents started."""
        self.scoring.close()
        self.runner.close()

    def _scorer(self, total: int) -> Score:
        """Scores trajectories as they finish; RewardError as soon as more of `total` have failed than may."""
        watch = FailureWatch(total, self.config.reward.max_failure_ratio)

        async def score(row: dict[str, Any], output: AgentLoopOutput, text: str) -> ScoreResult | None:
            result = await self.scoring.score(row, output, text)
            if result is not None:  # else it is left to the reward model
                watch.add(row["uid"], result)
            return result

        return score
