"""Rows in, a batch of finished and scored trajectories out: runs the trajectories (agents/runner.py), scores them
(rewards/scoring.py), packs them into columns (trajectories.py) and counts what engine and retriever did as metrics.
"""

import copy
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from burnish.agents.environment import AgentSettings
from burnish.agents.output import AgentLoopOutput
from burnish.agents.runner import RolloutCall, Trajectory, TrajectoryRunner
from burnish.config import PPOConfig
from burnish.controller import Dispatch, register
from burnish.errors import WorkerError
from burnish.loop_thread import run_to_end
from burnish.models.loading import load_tokenizer
from burnish.protocol import DataProto
from burnish.rewards.contract import ScoreResult
from burnish.rewards.failures import FailureWatch
from burnish.rewards.scoring import Scoring
from burnish.rollout.base import RolloutEngine, Sampling
from burnish.rollout.replicas import ReplicaPeer, Replicas
from burnish.workers.profiler import ProfiledWorker
from burnish.workers.trajectories import BEGUN_ROLLOUTS, GROUPED_ROLLOUTS, to_batch

COUNTED = ("generated_tokens", "steps", "prefill_tokens", "shared_tokens", "prefix_hit_tokens", "preemptions")
FAILURES = ("replica_restarts", "requests_again")  # see rollout/replacing.py
REQUESTS, RETRIEVAL_S = "retrieval/requests", "retrieval/request_seconds"
GENERATED, ENGINE_S, SPEED = "rollout/generated_tokens", "timing_s/engine", "perf/rollout_tokens_per_s"


@dataclass(frozen=True)
class RoundSettings:
    """How one round of trajectories is generated."""

    number: int  # by which it is finished
    sampling: Sampling
    namespace: str  # keeps the noise of training and validation apart
    score: bool  # score each trajectory as it finishes, with the configured function; otherwise the results are None


def agent_settings(config: PPOConfig) -> AgentSettings:
    """What agents read of a run's configuration."""
    return AgentSettings(
        data=config.data,
        rollout=config.actor_rollout_ref.rollout,
        retriever=config.retriever,
        max_turns=config.max_turns,
        sandbox=config.reward_model.sandbox,
        state_masking=config.algorithm.state_masking,
        runs_ahead=config.staleness > 0,
        loop_config=config,
    )


class Rollouts:
    """Runs and scores trajectories over `engine`, which is awake. Where generation runs ahead of training, several
    batches may be on their way between `begin` and `finish`."""

    def __init__(self, config: PPOConfig, tokenizer: Any, engine: RolloutEngine):
        self.config, self.tokenizer, self.engine = config, tokenizer, engine
        custom, rules = config.custom_reward_function, config.reward_model
        self.scoring = Scoring.from_config(custom, config.reward, rules, config.data.reward_fn_key)
        self.runner = TrajectoryRunner(engine, tokenizer, agent_settings(config))
        self._begun: dict[int, Future[list[Trajectory]]] = {}  # by number
        self._counted = engine.stats(), self.runner.environment.retriever_stats()  # up to the last batch

    @property
    def deadline_s(self) -> float | None:
        """`rollout.timeout`, as often as there are rounds at a time that share the engine, validation's too."""
        seconds = self.config.actor_rollout_ref.rollout.timeout
        return None if seconds is None else seconds * (1 + self.config.staleness)

    def begin(self, rows: Sequence[dict[str, Any]], settings: RoundSettings, total: int | None = None) -> None:
        """Begin one trajectory per row. `total`: rows of the whole batch, where this is a part of it."""
        watch = FailureWatch(total or len(rows), self.config.reward.max_failure_ratio)

        async def score(row: dict[str, Any], output: AgentLoopOutput, text: str) -> ScoreResult | None:
            result = await self.scoring.score(row, output, text)
            if result is not None:  # else it is left to the reward model
                watch.add(row["uid"], result)  # RewardError as soon as more have failed than may
            return result

        seed, scorer = self.config.trainer.seed, score if settings.score else None
        doing = "validating" if settings.namespace == "val" else "generating"
        call = RolloutCall(settings.sampling, settings.namespace, seed, scorer, self.deadline_s, doing)
        self._begun[settings.number] = self.runner.begin(rows, call)

    def finish(self, number: int) -> DataProto | None:
        """Wait for what was begun under this number; None where nothing was. Metrics count what was done since the
        batch before, which may have run at the same time."""
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


class AgentLoopWorker(ProfiledWorker):
    """Agent loops in a separate process, without a model: they ask the replicas of the policy for tokens. Several such
    workers share a batch by whole groups and the replicas by load. What engines did is counted on the replicas."""

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


def engine_metrics(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """What an engine did, from two `stats()`: sums, so that rounds of a step are added up. What it does not count has
    no metric; a failure has one only where there was any."""
    metrics = {f"rollout/{name}": after[name] - before[name] for name in COUNTED if name in after}
    if "busy_s" in after:
        metrics[ENGINE_S] = after["busy_s"] - before["busy_s"]
    failed = {f"failures/{name}": after.get(name, 0.0) - before.get(name, 0.0) for name in FAILURES}
    return metrics | {name: count for name, count in failed.items() if count}


def replica_metrics(before: Sequence[Mapping[str, float]], after: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """From two `stats()` of each replica, in the same order. They work at the same time: the seconds are those of the
    one that was busy longest, so that tokens per second are those of all of them together."""
    each = [engine_metrics(*counters) for counters in zip(before, after, strict=True)]
    names = dict.fromkeys(name for metrics in each for name in metrics)
    return {name: (max if name == ENGINE_S else sum)(metrics.get(name, 0.0) for metrics in each) for name in names}


def retrieval_metrics(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """From two `stats()` of a retriever's client; nothing where it was not asked."""
    counts = {name: value - before.get(name, 0.0) for name, value in after.items()}
    if not counts.get("queries"):
        return {}
    seconds = counts.pop("seconds")
    return {f"retrieval/{name}": value for name, value in counts.items()} | {RETRIEVAL_S: seconds}


def with_speed(metrics: Mapping[str, float]) -> dict[str, float]:
    """Tokens per second while the engine computed, where it says how long that was, and the time of a retrieval."""
    seconds, requests = metrics.get(ENGINE_S, 0.0), metrics.get(REQUESTS, 0.0)
    speed = {SPEED: metrics[GENERATED] / seconds} if seconds > 0 else {}
    return speed | ({"retrieval/seconds_per_request": metrics[RETRIEVAL_S] / requests} if requests > 0 else {})
