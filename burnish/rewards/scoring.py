"""What a run uses to score: built from the configuration, asked once per finished trajectory. No torch.

`validate()` before any model loads, `check_row(row)` on each row of a dataset, `await score(row, output, text)` as each
trajectory finishes, `close()` at the end. A user's function, and scorers that run in a "process", are in a ScorePool;
scorers called "here" run in place, because a process would cost more than the score; those of the "sandbox" have a pool
of a few processes, each of which supervises many programs. Only what is scored in place delays the caller's event loop.
"""

import asyncio
import dataclasses
import functools
import logging
import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, Self

from burnish.config.reward import CustomRewardFunctionConfig, RewardConfig, RewardModelConfig, RuleConfig
from burnish.errors import ConfigError, RewardError
from burnish.loop_thread import run_to_end
from burnish.rewards import routing
from burnish.rewards.contract import NEW_PROMPTS, FunctionSpec, ScoreRequest, ScoreResult, score_problem
from burnish.rewards.function import SECTION, bind, score_here
from burnish.rewards.pool import ScorePool
from burnish.user_code import listed, nearest
from burnish.waits import waiting

log = logging.getLogger(__name__)

#: A score of a program runs all tests of its row and bounds itself below this; the limit is for one that does not.
SANDBOX_SECONDS = 310.0
FORMAT_SCORES = ("structure_format_score", "final_format_score", "retrieval_score")
#: What agent loops may report: the passages of each search, rewards of each turn, of tools and of an interaction.
OUTPUT_FIELDS = ("retrieved", "turn_scores", "tool_score", "interaction_score")
#: What `extra_info` holds of the trajectory; in a batch, columns of the same names, None where it is not known.
FACTS = ("num_turns", "num_tool_calls", "truncated", *OUTPUT_FIELDS)


class LoopOutput(Protocol):
    """What is read of an agent loop's output."""

    reward_score: float | None
    turn_rewards: list[float] | None
    add_score: bool
    num_turns: int
    metrics: dict[str, Any]
    extra_fields: dict[str, Any]


def facts_of(output: LoopOutput) -> dict[str, Any]:
    """The FACTS of a finished trajectory, as far as they are known."""
    return {
        "num_turns": output.num_turns,
        "num_tool_calls": output.metrics.get("num_tool_calls", 0),
        "truncated": output.extra_fields.get("finish_reason") == "length",
        **{name: output.extra_fields[name] for name in OUTPUT_FIELDS if name in output.extra_fields},
    }


def loop_result(output: LoopOutput, data_source: str, index: Any = None) -> ScoreResult | None:
    """The reward that the agent loop itself gave its trajectory, or that it failed; None where it gave none."""
    if "failure" in output.extra_fields:
        return ScoreResult(None, error=output.extra_fields["failure"], data_source=data_source, of_tool=True)
    for reward in (*(output.turn_rewards or ()), output.reward_score or 0.0):
        if problem := score_problem(reward):
            error = f"the agent loop gave a reward of {reward:g}; {problem}"
            return ScoreResult(None, error=error, data_source=data_source, index=index)
    if output.add_score:
        return None
    if output.turn_rewards is not None:
        turns = (*output.turn_rewards[:-1], math.fsum((output.turn_rewards[-1], output.reward_score or 0.0)))
        return ScoreResult(math.fsum(turns), data_source=data_source, turn_rewards=turns)
    if output.reward_score is not None:
        return ScoreResult(output.reward_score, data_source=data_source)
    return None


def request_for(
    row: Mapping[str, Any], response_text: str, facts: Mapping[str, Any], reward_fn_key: str = "data_source"
) -> ScoreRequest:
    """The request for one response, the policy's own text only. `extra_info` holds the row's, the other fields of its
    `reward_model`, and on top the FACTS of the trajectory and `prompt` (the row's, unless the facts have one)."""
    ground_truth, extra_info = routing.truth_of(row)
    extra_info |= {"prompt": row.get("raw_prompt"), **facts}
    return ScoreRequest(
        routing.data_source_of(row, reward_fn_key), response_text, ground_truth, extra_info, row.get("index")
    )


class Scoring:
    """Scores responses with the custom function, or with the scorer of their data source. It is itself a
    `compute_score`, which is what managers get: they need to know nothing about processes.

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
        self._rules = rules or RuleConfig()
        self._options: dict[str, Any] = {}  # of the built-in scorers, each of which gets those it names
        if not spec.is_custom:
            self._options = {name: getattr(self._rules, name) for name in FORMAT_SCORES}
            self._options |= {"sandbox": dataclasses.asdict(self._rules.sandbox), **spec.reward_kwargs}
        self._built_in = bind(routing.default_compute_score, spec.key, self._options)
        pooled = spec if spec.is_custom else dataclasses.replace(spec, reward_kwargs=self._options)
        self.pool = ScorePool(pooled, num_workers, timeout, retries)
        self._reported: set[str] = set()  # data sources
        self.programs: ScorePool | None = None  # made for the first response that is a program

    @classmethod
    def from_config(
        cls, function: CustomRewardFunctionConfig, reward: RewardConfig, rules: RuleConfig, reward_fn_key: str
    ) -> Self:
        return cls(
            cls.spec_of(function),
            num_workers=reward.num_workers,
            timeout=reward.timeout,
            retries=reward.retries,
            reward_fn_key=reward_fn_key,
            rules=rules,
            # `burnish eval` has no model: it sees to rows that ask for one before they come here.
            reward_model=rules.enable if isinstance(rules, RewardModelConfig) else True,
        )

    @staticmethod
    def spec_of(function: CustomRewardFunctionConfig) -> FunctionSpec:
        if function.functions:
            below = f"{SECTION}.functions"
            parts = {name: FunctionSpec(**one, section=f"{below}.{name}") for name, one in function.functions.items()}
            return FunctionSpec(functions=parts)
        return FunctionSpec(function.path or None, function.name, dict(function.reward_kwargs))

    @property
    def one_by_one(self) -> bool:
        """Whether a trajectory can be scored alone: not where the function takes a batch (known by `validate`)."""
        return not self.pool.batch

    def validate(self) -> None:
        """ConfigError: a custom function, tried in a child process, cannot be called; or no scorer has the option."""
        if self.spec.is_custom:
            self.pool.check()
            self.pool.rest()  # where it is not this process that scores, nothing shall be left idle
            return
        options = routing.scorer_options() if self.spec.reward_kwargs else frozenset()
        for name, value in self.spec.reward_kwargs.items():
            if name not in options:
                raise ConfigError(
                    f"{SECTION}.reward_kwargs.{name}: no built-in scorer has this option{nearest(name, options)} "
                    f"(known: {listed(options)}). For a function of your own, set custom_reward_function.path"
                )
            if problem := routing.value_problem(routing.option_annotations(name), value):
                raise ConfigError(f"{SECTION}.reward_kwargs.{name}={value}: {problem}")

    def check_row(self, row: Mapping[str, Any]) -> str | None:
        """What keeps this row from being scored, or None. ConfigError where it is this machine."""
        required = self.pool.required  # None before `validate` has loaded the function: taken to read the ground truth
        problem = routing.check_row(
            row,
            self.reward_fn_key,
            custom=self.spec.is_custom,
            reads_ground_truth=required is None or "ground_truth" in required,
            reward_model=self.reward_model,
        )
        if problem is None and self.runs_programs(row):
            source = routing.data_source_of(row, self.reward_fn_key)
            if reason := self.no_programs:
                cause = "is scored by running programs, and none can be run"
                raise ConfigError(f"data_source={source!r} {cause}: {reason}")
            self._report_grading(source)
        return problem

    def report_truths(self, what: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Warn of rows without the ground truth that a custom function insists on."""
        scored = [row for row in rows if not self.leaves_to_model(row)]
        if "ground_truth" in (self.pool.required or ()) and (missing := routing.missing_truths(scored)):
            log.warning("%s: %s gets None as ground_truth: %s", what, self.spec.label, missing)

    def _report_grading(self, source: str) -> None:
        from burnish.rewards.scores.code import gives_shares

        if source in self._reported:
            return
        self._reported.add(source)
        shares = gives_shares(source, self._options.get("continuous"))
        score, other = "the share of its tests that pass", "1 if all tests pass, else 0"
        if not shares:
            score, other = other, score
        switch = f"{SECTION}.reward_kwargs.continuous={str(not shares).lower()}"
        log.info("data_source=%s: the score of a program is %s (%s: %s)", source, score, switch, other)

    @functools.cached_property
    def no_programs(self) -> str | None:
        """Why this machine, or the server that `reward_model.sandbox` names, cannot run programs, with the fix."""
        from burnish.sandbox import open_sandbox  # a run without programs needs none of it

        return run_to_end(open_sandbox(self._rules.sandbox).unavailable_reason())

    def runs_programs(self, row: Mapping[str, Any]) -> bool:
        """Whether a response to this row, which can be scored, is run in the sandbox."""
        if self.spec.is_custom or self.leaves_to_model(row):
            return False
        return routing.scorer_for(routing.data_source_of(row, self.reward_fn_key)).runs == "sandbox"

    def leaves_to_model(self, row: Mapping[str, Any]) -> bool:
        """Whether only the reward model scores this row."""
        return self.reward_model and routing.style_of(row) == routing.MODEL

    async def score(self, row: Mapping[str, Any], output: LoopOutput, text: str) -> ScoreResult | None:
        """Score one finished trajectory: by the reward its agent loop gave, where it gave one, else by the function.
        None: it is left to the reward model."""
        given = loop_result(output, routing.data_source_of(row, self.reward_fn_key), row.get("index"))
        if given is not None or self.leaves_to_model(row):
            return given
        return await self.score_request(request_for(row, text, facts_of(output), self.reward_fn_key))

    async def score_request(self, request: ScoreRequest) -> ScoreResult:
        """Score one response. A failure comes back inside the result."""
        found = self._begin(request)
        return found if isinstance(found, ScoreResult) else await asyncio.wrap_future(found)

    def score_all(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Score many and wait for all, for callers without an event loop; one call, for a function that takes lists."""
        if self.spec.is_custom:
            return self.pool.submit_all(requests).result()
        begun = [self._begin(request) for request in requests]
        return [item if isinstance(item, ScoreResult) else item.result() for item in begun]

    def _begin(self, request: ScoreRequest) -> ScoreResult | Future[ScoreResult]:
        runs = "process" if self.spec.is_custom else routing.scorer_for(request.data_source).runs
        if runs == "here":
            with waiting("reward", "", f"the scorer of {request.data_source}", self.pool.timeout):
                return score_here(self._built_in, [request], self.spec.label)[0]
        if runs == "process":
            return self.pool.submit(request)
        if self.programs is None:
            self.programs = self._sandbox_pool()
        return self.programs.submit(request)

    def _sandbox_pool(self) -> ScorePool:
        """`max_concurrent` programs at a time in all, in as many processes as score, at most one per core."""
        scorer, at_once = routing.scorer_for("mbpp"), self._rules.sandbox.max_concurrent
        num_workers = min(len(self.pool.processes), os.cpu_count() or 1, at_once)
        share = {"max_concurrent": at_once // num_workers}  # of each process
        options = {**self._options, "sandbox": {**self._options["sandbox"], **share}}
        return ScorePool(
            FunctionSpec(scorer.module.__name__, reward_kwargs=scorer.named(options)),
            num_workers,
            max(self.pool.timeout, SANDBOX_SECONDS),
            self.pool.retries,
            at_once=at_once,
            limit="{:g} s, all its tests together",
        )

    def __call__(
        self, data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None
    ) -> float | dict[str, Any]:
        """The `compute_score` contract: it blocks. RewardError where there is no score."""
        (result,) = self.score_all([ScoreRequest(data_source, solution_str, ground_truth, extra_info or {})])
        if result.score is None:
            raise RewardError(f"data_source={data_source!r}: {result.error}")
        info = result.info if result.new_prompts is None else {**result.info, NEW_PROMPTS: result.new_prompts}
        return {"score": result.score, **info} if info else result.score

    def close(self) -> None:
        self.pool.close()
        if self.programs is not None:
            self.programs.close()
