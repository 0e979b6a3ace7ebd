"""What a run uses to score: built from the configuration, asked once per finished trajectory.

`Scoring.from_config(config)`, then `validate()` before any model loads, `check_row(row)` on each row of a dataset,
`await score(row, output, text)` as each trajectory finishes, `close()` at the end. It serves training, validation and
`burnish eval` alike. Where a response is scored follows from who scores it:

    a user's function         in a ScorePool; one in the batch form too, with all responses in one call
    a scorer called "here"    in place, because a process would cost more than the score
    "process"                 in the ScorePool
    "sandbox"                 in a SandboxPool

Only what is scored in place takes time of the caller's event loop: generation continues meanwhile.

A Scoring is itself a `compute_score`: called by keyword it blocks and returns what the function returned. That is what
managers get, so a user's manager needs to know nothing about processes.
"""

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from burnish.config.evaluation import EvalConfig
from burnish.config.reward import RuleConfig
from burnish.errors import ConfigError, RewardError
from burnish.rewards.contract import NEW_PROMPTS, FunctionSpec, ScoreRequest, ScoreResult
from burnish.rewards.function import bind, score_here
from burnish.rewards.pool import ScorePool
from burnish.rewards.request import LoopOutput, facts_of, loop_result, request_for
from burnish.rewards.routing import (
    MODEL,
    check_row,
    data_source_of,
    default_compute_score,
    option_annotations,
    scorer_for,
    scorer_options,
    style_of,
    value_problem,
)
from burnish.rewards.sandboxed import SandboxPool
from burnish.rewards.signature import KWARGS
from burnish.user_code import listed, nearest
from burnish.waits import waiting

if TYPE_CHECKING:
    from burnish.config.ppo import PPOConfig


class Scoring:
    """Scores responses with the custom function, or with the scorer of their data source.

    rules          settings of the built-in scorers; `spec.reward_kwargs` takes precedence
    reward_model   rows of style `model` are left to a reward model
    """

    def __init__(
        self,
        spec: FunctionSpec,
        *,
        num_workers: int = 1,
        timeout: float = 60.0,
        retries: int = 0,
        reward_fn_key: str = "data_source",
        rules: RuleConfig | None = None,
        reward_model: bool = False,
    ):
        self.spec, self.reward_fn_key, self.reward_model = spec, reward_fn_key, reward_model
        rules = rules or RuleConfig()
        options = {} if spec.path else {**options_of(rules), **spec.reward_kwargs}
        self._built_in = bind(default_compute_score, spec.key, options)
        pooled = spec if spec.path else dataclasses.replace(spec, reward_kwargs=options)
        self.pool = ScorePool(pooled, num_workers, timeout, retries)
        at_once = rules.sandbox.max_concurrent
        self.sandbox = SandboxPool(rules.sandbox, options, at_once, num_workers, timeout, retries)

    @classmethod
    def from_config(cls, config: "PPOConfig | EvalConfig") -> "Scoring":
        reward = config.reward
        return cls(
            cls.spec_of(config),
            num_workers=reward.num_workers,
            timeout=reward.timeout,
            retries=reward.retries,
            reward_fn_key=config.data.data_source_key if isinstance(config, EvalConfig) else config.data.reward_fn_key,
            rules=config.reward_model,
            # `burnish eval` has no model: it sees to rows that ask for one before they come here.
            reward_model=isinstance(config, EvalConfig) or config.reward_model.enable,
        )

    @staticmethod
    def spec_of(config: "PPOConfig | EvalConfig") -> FunctionSpec:
        """The function that a configuration names."""
        custom = config.custom_reward_function
        return FunctionSpec(custom.path or None, custom.name, dict(custom.reward_kwargs))

    @property
    def one_by_one(self) -> bool:
        """Whether a trajectory can be scored alone: not where the function takes a batch (known by `validate`)."""
        return not self.pool.batch

    def validate(self) -> None:
        """ConfigError where the function cannot be loaded or called, or where the built-in scorers have no such option
        or value. A custom function is tried in a child process."""
        if self.spec.path is not None:
            self.pool.check()
            self.pool.rest()  # where it is not this process that scores, nothing shall be left idle
            return
        options = scorer_options() if self.spec.reward_kwargs else frozenset()
        for name, value in self.spec.reward_kwargs.items():
            if name not in options:
                raise ConfigError(
                    f"{KWARGS}.{name}: no built-in scorer has this option{nearest(name, options)} "
                    f"(known: {listed(options)}). For a function of your own, set custom_reward_function.path"
                )
            if problem := value_problem(option_annotations(name), value):
                raise ConfigError(f"{KWARGS}.{name}={value}: {problem}")

    def check_row(self, row: Mapping[str, Any]) -> str | None:
        """What keeps this row from being scored, or None. ConfigError where it is this machine."""
        required = self.pool.required  # None before `validate` has loaded the function: taken to read the ground truth
        problem = check_row(
            row,
            self.reward_fn_key,
            custom=self.spec.path is not None,
            reads_ground_truth=required is None or "ground_truth" in required,
            reward_model=self.reward_model,
        )
        if problem is None and self.runs_programs(row) and (reason := self.sandbox.why_not):
            source = data_source_of(row, self.reward_fn_key)
            raise ConfigError(f"data_source={source!r} is scored by running programs, and none can be run: {reason}")
        return problem

    def runs_programs(self, row: Mapping[str, Any]) -> bool:
        """Whether a response to this row, which can be scored, is run in the sandbox."""
        if self.spec.path is not None or self.leaves_to_model(row):
            return False
        return scorer_for(data_source_of(row, self.reward_fn_key)).runs == "sandbox"

    def leaves_to_model(self, row: Mapping[str, Any]) -> bool:
        """Whether only the reward model scores this row."""
        return self.reward_model and style_of(row) == MODEL

    def request_for(self, row: Mapping[str, Any], response_text: str, facts: Mapping[str, Any]) -> ScoreRequest:
        """The request for one response to `row`; see the function of the same name."""
        return request_for(row, response_text, facts, self.reward_fn_key)

    async def score(self, row: Mapping[str, Any], output: LoopOutput, text: str) -> ScoreResult | None:
        """Score one finished trajectory: by the reward its agent loop gave, where it gave one, else by the function.
        None: it is left to the reward model."""
        given = loop_result(output, data_source_of(row, self.reward_fn_key))
        if given is not None or self.leaves_to_model(row):
            return given
        return await self.score_request(self.request_for(row, text, facts_of(output)))

    async def score_request(self, request: ScoreRequest) -> ScoreResult:
        """Score one response. A failure comes back inside the result."""
        found = self._begin(request)
        return found if isinstance(found, ScoreResult) else await asyncio.wrap_future(found)

    def score_all(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Score many and wait for all, for callers without an event loop; one call, for a function that takes lists."""
        if self.spec.path is not None:
            return self.pool.submit_all(requests).result()
        begun = [self._begin(request) for request in requests]
        return [item if isinstance(item, ScoreResult) else item.result() for item in begun]

    def _begin(self, request: ScoreRequest) -> ScoreResult | Future[ScoreResult]:
        runs = "process" if self.spec.path is not None else scorer_for(request.data_source).runs
        if runs == "here":
            with waiting("reward", "", f"the scorer of {request.data_source}", self.pool.timeout):
                return score_here(self._built_in, [request], self.spec.label)[0]
        return (self.sandbox if runs == "sandbox" else self.pool).submit(request)

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
        self.sandbox.close()


def options_of(rules: RuleConfig) -> dict[str, Any]:
    """The built-in scorers' settings from a configuration; each gets those it names."""
    return {
        "structure_format_score": rules.structure_format_score,
        "final_format_score": rules.final_format_score,
        "retrieval_score": rules.retrieval_score,
        "sandbox": dataclasses.asdict(rules.sandbox),
    }
