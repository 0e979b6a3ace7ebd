"""Rows in, finished and scored trajectories out.

Every row is one task in one event loop: its agent loop runs, its output is checked, and it is scored while the others
generate. A task waits for the rollout engine, for what its loop awaits, and for the scorer. Past `deadline_s` the
waiting tasks are cancelled and named. A tool, a retriever or an interaction that fails ends its trajectory, and so does
`rollout.trajectory_timeout`; it is returned as failed (`extra_fields["failure"]`). Any other failure ends the run,
naming the trajectory.

The loop runs while `finish` waits; where generation runs ahead of training (`trainer.async_rollout.staleness`) it has
its own thread. What tools and clients open in one call is still good in the next; `close` ends it.
"""

import asyncio
import copy
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from burnish.agents.base import SECTION, AgentLoopOutput, find_loop, user_loops
from burnish.agents.environment import CLOSE_S, TOOL_LOOPS, AgentSettings, Environment
from burnish.agents.server import ServerManager
from burnish.data.chat import ChatRenderer, to_messages
from burnish.errors import AgentError, DeadlineError, ToolFailure, UserError, WorkerError, text_of
from burnish.loop_thread import LoopThread
from burnish.rollout.base import Completion, RolloutEngine, Sampling
from burnish.waits import BatchProgress, waiting

log = logging.getLogger(__name__)

CANCELLED_S = 20.0  # for cancelled trajectories to close what they have open
GREEDY = "greedy"  # the column of rows that take the likeliest tokens, so that a baseline runs with its samples

Score = Callable[[dict[str, Any], AgentLoopOutput, str], Awaitable[Any]]


@dataclass
class Trajectory:
    """One row's result. `text` is what the policy wrote, without special tokens: what scorers read."""

    row: dict[str, Any]
    output: AgentLoopOutput
    text: str
    score_result: Any = None
    completions: list[Completion] = field(default_factory=list)  # the engine's own record, by turn


@dataclass(frozen=True)
class RolloutCall:
    """What all trajectories of one call have in common."""

    sampling: Sampling
    namespace: str  # keeps the noise of training and validation apart
    seed: int
    score: Score | None = None  # `score(row, output, text)` is awaited for each trajectory as it finishes
    deadline_s: float | None = None  # for all of them
    doing: str = "generating"  # as their progress is shown


class TrajectoryRunner:
    """Runs agent loops over `engine`."""

    def __init__(self, engine: RolloutEngine, tokenizer: Any, settings: AgentSettings):
        self.engine = engine
        self.tokenizer = tokenizer
        self.settings = settings
        self.chat = ChatRenderer(
            tokenizer, settings.data.apply_chat_template_kwargs, escape=settings.data.escape_special_tokens
        )
        self.environment = Environment(settings, tokenizer, self.chat)
        self.user_loops = user_loops(settings.agent)
        self.default_loop = settings.agent.default_agent_loop
        self._usual: dict[str, float] = {}  # tokens of a trajectory in the last batch, by namespace
        find_loop(self.default_loop, f"{SECTION}.default_agent_loop")  # a wrong name is reported before anything runs
        owner, close_s = "the runner of agent loops", CANCELLED_S + CLOSE_S + 5.0
        self._loop = LoopThread(
            owner, self.environment.close, "agent-loops", close_s=close_s, threaded=settings.runs_ahead
        )

    def begin(self, rows: Sequence[dict[str, Any]], call: RolloutCall) -> "Future[list[Trajectory]]":
        """Begin one trajectory per row. A row has `uid`, `sample` and `raw_prompt`."""
        if {(row.get("agent_name") or self.default_loop).removesuffix("_loop") for row in rows} & {*TOOL_LOOPS}:
            _ = self.environment.tools  # here, because what starts a server would hold up all trajectories
        return self._loop.run(self._run_all(rows, call))

    def finish(self, begun: "Future[list[Trajectory]]", what: str, deadline_s: float | None = None) -> list[Trajectory]:
        """The trajectories, in the order of the rows. `what` names them where they are waited for."""
        if not self._loop.threaded:
            return self._loop.result(begun)
        # `_run_all` ends at the deadline.
        with waiting("engine", "", f"{what}, in thread {self._loop.name}", deadline_s, report_only=True):
            return self._loop.result(begun)

    def run(self, rows: Sequence[dict[str, Any]], sampling: Sampling, **settings: Any) -> list[Trajectory]:
        """`begin` and `finish`, with the settings of a `RolloutCall`. Blocks an event loop that runs in this thread."""
        call = RolloutCall(sampling, **settings)
        return self.finish(self.begin(rows, call), f"{len(rows)} trajectories of {call.namespace}", call.deadline_s)

    def close(self) -> None:
        """End what the environment started, and the event loop; trajectories on their way are cancelled first."""
        self._loop.close()

    async def _run_all(self, rows: Sequence[dict[str, Any]], call: RolloutCall) -> list[Trajectory]:
        limit = self.settings.data.response_limit
        sampling = replace(call.sampling, max_tokens=min(call.sampling.max_tokens or limit, limit))
        call, deadline_s = replace(call, sampling=sampling), call.deadline_s
        deadline = None if deadline_s is None else time.monotonic() + deadline_s
        stages = ["starting"] * len(rows)  # what each trajectory waits for, to be reported when it waits too long
        tasks = [
            asyncio.create_task(self._one(row, call, deadline, partial(stages.__setitem__, i)), name=_who(row))
            for i, row in enumerate(rows)
        ]
        if not tasks:
            return []
        progress = self._progress(tasks, call, limit)
        try:
            with waiting("engine", "", f"{len(tasks)} trajectories of {call.namespace}", deadline_s) as wait:
                wait.progress = progress
                _, pending = await asyncio.wait(tasks, timeout=deadline_s, return_when=asyncio.FIRST_EXCEPTION)
                failed = next((task for task in tasks if task.done() and task.exception()), None)
                if failed is None and pending:
                    wait.overdue()  # while they still are where they hang
            if failed is None and pending:
                waits = [f"{task.get_name()} {stages[i]}" for i, task in enumerate(tasks) if task in pending]
                raise DeadlineError(
                    f"rollout: {len(pending)} of {len(tasks)} trajectories were not done after {deadline_s} s: "
                    f"{'; '.join(waits[:3])}. Raise actor_rollout_ref.rollout.timeout (null: no limit), or see what "
                    "they wait for"
                )
            trajectories = [task.result() for task in ([failed] if failed else tasks)]
            self._usual[call.namespace] = sum(map(_sampled, trajectories)) / len(trajectories)
            return trajectories
        finally:
            await _cancelled(tasks)

    def _progress(
        self, tasks: Sequence[asyncio.Task[Trajectory]], call: RolloutCall, limit: int
    ) -> Callable[[], BatchProgress]:
        """How far the tasks are. The time left is that of as many tokens as a trajectory of the batch before had, or at
        first may have. Tokens of those that are not done are known where the engine computes in this process."""
        began, before = time.monotonic(), self.engine.stats().get("generated_tokens")
        usual = self._usual.get(call.namespace, limit)

        def progress() -> BatchProgress:
            ended = [task for task in tasks if task.done() and not task.cancelled() and task.exception() is None]
            whole = sum(_sampled(task.result()) for task in ended)
            tokens = whole if before is None else self.engine.stats().get("generated_tokens", before) - before
            open_, seconds = len(tasks) - len(ended), time.monotonic() - began
            # Where they are longer than usual already, half of the mean so far is expected of each.
            rest = max(open_ * usual - max(tokens - whole, 0), open_ * tokens / len(tasks) / 2)
            left = rest * seconds / tokens if tokens > 0 else None
            return BatchProgress(call.doing, len(ended), len(tasks), tokens / max(seconds, 1e-3), left, seconds)

        return progress

    async def _one(
        self, row: dict[str, Any], call: RolloutCall, deadline: float | None, enter: Callable[[str], None]
    ) -> Trajectory:
        """`enter` is called with each stage that the trajectory comes to."""
        name = row.get("agent_name") or self.default_loop
        uid, sample = int(row["uid"]), int(row["sample"])
        sampling = call.sampling
        if row.get(GREEDY):  # the same limits and stops, but the likeliest token each time
            sampling = replace(sampling, temperature=0.0, top_k=-1, top_p=1.0, min_p=0.0)
        identity: dict[str, Any] = {"namespace": call.namespace, "seed": call.seed, "uid": uid, "sample": sample}
        server = ServerManager(self.engine, sampling, **identity, deadline=deadline)
        try:
            make, config = self.user_loops.get(name) or find_loop(name), self.settings.loop_config
            loop = make(config=config, server_manager=server, tokenizer=self.tokenizer, chat=self.chat)
            loop.environment = self.environment
            enter(f"in agent loop {name}")
            returned = await self._in_time(loop.run(sampling.to_params(), **self._arguments(row)), name)
            output = self._finished(returned, server.completions)
        except ToolFailure as failure:
            nothing = [self.tokenizer.pad_token_id or 0]  # no token of a trajectory that could not continue is trained
            extra = {"failure": text_of(failure), "finish_reason": "abort"}
            output = AgentLoopOutput(nothing, nothing, [0], [0.0], extra_fields=extra)
        except (UserError, WorkerError, DeadlineError):
            raise  # say what to fix, or that the process of an engine died or hangs
        except asyncio.CancelledError as error:
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise  # by the runner
            raise AgentError(f"agent loop {name} failed for {_who(row)}: what it awaited was cancelled") from error
        except (Exception, SystemExit) as error:  # the latter would end the event loop of all
            said = f"{type(error).__name__}: {text_of(error)}"
            raise AgentError(f"agent loop {name} failed for {_who(row)}: {said}") from error
        text = self._text(output.policy_turns() or [turn.token_ids for turn in server.completions])
        trajectory = Trajectory(row, output, text, completions=server.completions)
        if call.score is not None:
            enter("being scored")
            trajectory.score_result = await call.score(row, output, text)
        return trajectory

    async def _in_time(self, run: Awaitable[Any], name: str) -> Any:
        """What a loop returns, or a ToolFailure if that takes longer than one trajectory may."""
        limit = asyncio.timeout(self.settings.rollout.trajectory_timeout)
        try:
            async with limit:
                return await run
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise ToolFailure(
                f"agent loop {name} did not end in {self.settings.rollout.trajectory_timeout:g} s; raise "
                "actor_rollout_ref.rollout.trajectory_timeout (null: no limit)"
            ) from error

    def _text(self, turns: Sequence[Sequence[int]]) -> str:
        """What the policy wrote, each turn on a new line, because other text stood between them."""
        ids = [np.array(turn, dtype=np.int64) for turn in turns]  # of a list, transformers asks each number what it is
        return "\n".join(self.tokenizer.decode(turn, skip_special_tokens=True) for turn in ids)

    def _arguments(self, row: dict[str, Any]) -> dict[str, Any]:
        """The row as a loop receives it: a copy, because rows of a group share what is inside them."""
        if "sampling_params" in row:
            raise AgentError("the row has a column named sampling_params, which is an argument of run; rename it")
        turns = self.settings.multi_turn.max_assistant_turns or self.settings.max_turns
        own = copy.deepcopy(row)
        return {"max_turns": turns, **own, "messages": to_messages(own["raw_prompt"])}

    def _finished(self, output: Any, completions: list[Completion]) -> AgentLoopOutput:
        """The checked output with log-probs filled in, cut to what a response may have."""
        if not isinstance(output, AgentLoopOutput):
            raise AgentError(f"run returned a {type(output).__name__}; expected an AgentLoopOutput")
        if output.response_logprobs is None:
            output = replace(output, response_logprobs=_recorded_log_probs(output, completions))
        limit = self.settings.data.response_limit
        cut = output.cut(limit)
        if not any(cut.response_mask):
            raise AgentError(f"no token of the response (its first {limit} count) was sampled by the policy")
        reason = "length" if cut is not output else completions[-1].finish_reason if completions else None
        cut.extra_fields.setdefault("finish_reason", reason)
        return cut


async def _cancelled(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel those that are not done, and give them time to end."""
    unfinished = [task for task in tasks if not task.done()]
    for task in tasks:
        task.cancel()
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # only the first is reported
    if not unfinished:
        return
    with waiting("engine", "", f"{len(unfinished)} cancelled trajectories to end", CANCELLED_S) as wait:
        _, left = await asyncio.wait(unfinished, timeout=CANCELLED_S)
        if left:
            wait.overdue()
    if left:
        names = ", ".join(task.get_name() for task in left)
        log.error("%d cancelled trajectories did not stop and were abandoned: %.200s", len(left), names)


def _recorded_log_probs(output: AgentLoopOutput, completions: list[Completion]) -> list[float]:
    """Log-probs from the engine's record, possible where the response holds all that was sampled and nothing else."""
    if [token for completion in completions for token in completion.token_ids] != output.policy_ids:
        raise AgentError(
            "response_logprobs is missing, and the tokens with mask 1 are not exactly those that were sampled; "
            "return the log_probs of the completions you used"
        )
    recorded = iter([log_prob for completion in completions for log_prob in completion.log_probs])
    return [next(recorded) if sampled else 0.0 for sampled in output.response_mask]


def _sampled(trajectory: Trajectory) -> int:
    return sum(len(completion.token_ids) for completion in trajectory.completions)


def _who(row: dict[str, Any]) -> str:
    return f"uid {row['uid']}, sample {row['sample']}"
