"""What a run uses to score: built from the configuration, asked once per finished trajectory.

`Scoring.from_config(config)`, then `validate()` before any model loads, `check_row(row)` on each row of a dataset,
`await score(row, text, output)` as each trajectory finishes, `close()` at the end. It serves training, validation and
`burnish eval` alike. User functions run in a ScorePool; built-in scorers that the routing table calls quick run where
they are asked, because a process would cost more than the score.

A Scoring is itself a `compute_score`: called by keyword it blocks and returns what the function returned. That is what
managers get, so a user's manager needs to know nothing about processes.
"""

import difflib
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol

from burnish.config.evaluation import EvalConfig
from burnish.errors import ConfigError, RewardError
from burnish.rewards.contract import NEW_PROMPTS, FunctionSpec, ScoreRequest, ScoreResult
from burnish.rewards.function import bind, score_here
from burnish.rewards.pool import ScorePool
from burnish.rewards.routing import check_row, data_source_of, default_compute_score, scorer_for, scorer_options

if TYPE_CHECKING:
    from burnish.config.ppo import PPOConfig


class LoopOutput(Protocol):
    """What is read of an agent loop's output."""

    reward_score: float | None
    turn_rewards: list[float] | None
    num_turns: int
    metrics: dict[str, Any]
    extra_fields: dict[str, Any]


#: What a reward function learns about the trajectory in `extra_info`; in a batch, the columns of the same names.
FACTS = ("num_turns", "num_tool_calls", "truncated")


class Scoring:
    """Scores responses with the custom function, or with the scorer of their data source."""

    def __init__(
        self,
        spec: FunctionSpec,
        *,
        num_workers: int = 1,
        timeout: float = 60.0,
        retries: int = 0,
        reward_fn_key: str = "data_source",
    ):
        self.spec = spec
        self.reward_fn_key = reward_fn_key
        self._built_in = bind(default_compute_score, spec.key, {} if spec.path else spec.reward_kwargs)
        self.pool = ScorePool(spec, num_workers, timeout, retries)

    @classmethod
    def from_config(cls, config: "PPOConfig | EvalConfig") -> "Scoring":
        reward = config.reward
        return cls(
            cls.spec_of(config),
            num_workers=reward.num_workers,
            timeout=reward.timeout,
            retries=reward.retries,
            reward_fn_key=config.data.data_source_key if isinstance(config, EvalConfig) else config.data.reward_fn_key,
        )

    @staticmethod
    def spec_of(config: "PPOConfig | EvalConfig") -> FunctionSpec:
        """The function that a configuration names."""
        custom = config.custom_reward_function
        return FunctionSpec(custom.path or None, custom.name, dict(custom.reward_kwargs))

    def validate(self) -> None:
        """ConfigError where the function cannot be loaded or called. A custom one is tried in a child process."""
        if self.spec.path is not None:
            self.pool.check()
            self.pool.rest()  # where it is not this process that scores, nothing shall be left idle
            return
        options = scorer_options()
        for name in self.spec.reward_kwargs:
            if name not in options:
                near = difflib.get_close_matches(name, options, n=1)
                raise ConfigError(
                    f"custom_reward_function.reward_kwargs.{name}: no built-in scorer has this option"
                    f"{f'; did you mean {near[0]}?' if near else ''} (known: {', '.join(sorted(options))}). "
                    "For a function of your own, set custom_reward_function.path"
                )

    def check_row(self, row: Mapping[str, Any]) -> str | None:
        """What keeps this row from being scored, or None."""
        required = self.pool.required  # None before `validate` has loaded the function: taken to read the ground truth
        reads_truth = required is None or "ground_truth" in required
        return check_row(row, self.reward_fn_key, custom=self.spec.path is not None, reads_ground_truth=reads_truth)

    def request_for(self, row: Mapping[str, Any], response_text: str, facts: Mapping[str, Any]) -> ScoreRequest:
        """The request for one response to `row`; see the function of the same name."""
        return request_for(row, response_text, facts, self.reward_fn_key)

    async def score(self, row: Mapping[str, Any], output: LoopOutput, text: str) -> ScoreResult:
        """Score one finished trajectory: by the reward its agent loop gave, where it gave one, else by the function."""
        source = data_source_of(row, self.reward_fn_key)
        given = loop_result(output, source)
        if given is not None:
            return given
        return await self.score_request(self.request_for(row, text, facts_of(output)))

    async def score_request(self, request: ScoreRequest) -> ScoreResult:
        """Score one response. A failure comes back inside the result."""
        if self._is_quick(request):
            return score_here(self._built_in, request, self.spec.label)
        return await self.pool.score(request)

    def score_all(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Score many and wait for all, for callers without an event loop."""
        waiting: list[ScoreResult | Future[ScoreResult]] = [
            score_here(self._built_in, request, self.spec.label)
            if self._is_quick(request)
            else self.pool.submit(request)
            for request in requests
        ]
        return [item if isinstance(item, ScoreResult) else item.result() for item in waiting]

    def __call__(
        self, data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None
    ) -> float | dict[str, Any]:
        """The `compute_score` contract: a number, or a dict with "score". RewardError where there is no score."""
        (result,) = self.score_all([ScoreRequest(data_source, solution_str, ground_truth, extra_info or {})])
        if result.score is None:
            raise RewardError(f"data_source={data_source!r}: {result.error}")
        info = result.info if result.new_prompts is None else {**result.info, NEW_PROMPTS: result.new_prompts}
        return {"score": result.score, **info} if info else result.score

    def close(self) -> None:
        """End the worker processes."""
        self.pool.close()

    def _is_quick(self, request: ScoreRequest) -> bool:
        return self.spec.path is None and scorer_for(request.data_source).quick


def facts_of(output: LoopOutput) -> dict[str, Any]:
    """The FACTS of a finished trajectory."""
    return {
        "num_turns": output.num_turns,
        "num_tool_calls": output.metrics.get("num_tool_calls", 0),
        "truncated": output.extra_fields.get("finish_reason") == "length",
    }


def loop_result(output: LoopOutput, data_source: str) -> ScoreResult | None:
    """The reward that the agent loop itself gave its trajectory, None where it gave none."""
    if output.turn_rewards is not None:
        turns = tuple(output.turn_rewards)
        return ScoreResult(math.fsum(turns), data_source=data_source, turn_rewards=turns)
    if output.reward_score is not None:
        return ScoreResult(output.reward_score, data_source=data_source)
    return None


def request_for(
    row: Mapping[str, Any], response_text: str, facts: Mapping[str, Any], reward_fn_key: str = "data_source"
) -> ScoreRequest:
    """The request for one response to `row`. `response_text` is the policy's own text only.

    `extra_info` holds the row's, the other fields of its `reward_model`, and on top the FACTS of the trajectory and
    `prompt` (the row's messages, unless the facts have one).
    """
    reward_model = dict(row.get("reward_model") or {})
    ground_truth = reward_model.pop("ground_truth", None)
    extra_info = {**reward_model, **(row.get("extra_info") or {}), "prompt": row.get("raw_prompt"), **facts}
    return ScoreRequest(data_source_of(row, reward_fn_key), response_text, ground_truth, extra_info)
