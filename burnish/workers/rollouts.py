"""Rows in, a batch of finished and scored trajectories out: what a worker needs to generate, whoever its engine is.

`ActorRolloutRefWorker` has one over the engine in its own process; an `AgentLoopWorker` has one over the replicas of
other processes. It runs the trajectories (agents/runner.py), scores them (rewards/scoring.py), packs them into columns
(trajectories.py) and counts what was done as metrics. Weights and memory of the engine are its worker's.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from burnish.agents.output import AgentLoopOutput
from burnish.agents.runner import RolloutCall, Score, Trajectory, TrajectoryRunner
from burnish.agents.settings import AgentSettings
from burnish.config import PPOConfig
from burnish.protocol import DataProto
from burnish.rewards.contract import ScoreResult
from burnish.rewards.failures import FailureWatch
from burnish.rewards.scoring import Scoring
from burnish.rollout.base import RolloutEngine, Sampling
from burnish.workers.rollout_metrics import engine_metrics, retrieval_metrics
from burnish.workers.trajectories import to_batch


@dataclass(frozen=True)
class RoundSettings:
    """How one round of trajectories is generated.

    number      by which it is finished
    namespace   keeps the noise of training and validation apart
    score       score each trajectory as it finishes, with the configured function; otherwise the results are None
    """

    number: int
    sampling: Sampling
    namespace: str
    score: bool


class Rollouts:
    """Runs and scores trajectories over `engine`, which is awake.

    Where generation runs ahead of training, several batches may be on their way between `begin` and `finish`.
    """

    def __init__(self, config: PPOConfig, tokenizer: Any, engine: RolloutEngine):
        self.config, self.tokenizer, self.engine = config, tokenizer, engine
        self.scoring = Scoring.from_config(config)
        self.runner = TrajectoryRunner(engine, tokenizer, AgentSettings.of(config))
        self._begun: dict[int, Future[list[Trajectory]]] = {}  # by number
        self._counted = engine.stats(), self.runner.environment.retriever_stats()  # up to the last batch

    @property
    def deadline_s(self) -> float | None:
        """`rollout.timeout`, as often as there are rounds at a time that share the engine, validation's too."""
        seconds = self.config.actor_rollout_ref.rollout.timeout
        return None if seconds is None else seconds * (1 + self.config.staleness)

    def begin(self, rows: Sequence[dict[str, Any]], settings: RoundSettings, total: int | None = None) -> None:
        """Begin one trajectory per row.

        total   rows of the whole batch, where this is a part of it: what a ratio of failures is a ratio of
        """
        score = self._scorer(total or len(rows)) if settings.score else None
        seed = self.config.trainer.seed
        call = RolloutCall(settings.sampling, settings.namespace, seed, score, self.deadline_s)
        self._begun[settings.number] = self.runner.begin(rows, call)

    def finish(self, number: int) -> DataProto | None:
        """Wait for what was begun under this number; None where nothing was.

        Metrics count what was done since the batch before, which may have run at the same time.
        """
        begun = self._begun.pop(number, None)
        if begun is None:
            return None
        trajectories = self.runner.finish(begun, f"the trajectories of round {number}", self.deadline_s)
        (engine, retriever), now = self._counted, (self.engine.stats(), self.runner.environment.retriever_stats())
        self._counted = now
        batch = to_batch(
            trajectories,
            self.tokenizer.pad_token_id,
            log_probs=self.config.actor_rollout_ref.rollout.calculate_log_probs,
            versions=self.config.staleness > 0,
        )
        batch.meta_info["metrics"] = engine_metrics(engine, now[0]) | retrieval_metrics(retriever, now[1])
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
