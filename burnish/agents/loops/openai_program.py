"""A plain program as an agent: it calls an OpenAI-compatible endpoint in its own loop, and its calls are trained.

`main(base_url, api_key, row, **arguments)` is called once for each trajectory, in its own thread, so that it may block
(docs/own-agents.md). Once its time is up its key is no longer valid, so its next call fails. Which of its calls are
trained, and how they become one sequence, is in `agents/endpoint/session.py`.
"""

import asyncio
import inspect
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.agents.base import AgentLoopBase, AgentLoopOutput
from burnish.agents.guarded import finite, in_thread
from burnish.agents.targets import load_from_folder
from burnish.data.chat import ChatRenderer
from burnish.errors import ConfigError, ToolFailure, install_command
from burnish.openai_wire.requests import TOO_LONG
from burnish.user_code import user_traceback
from burnish.waits import waiting

if TYPE_CHECKING:
    from burnish.agents.endpoint.session import Session
    from burnish.agents.server import ServerManager

PACKAGES = ("fastapi", "uvicorn")


class OpenAIProgramLoop(AgentLoopBase):
    def __init__(
        self,
        config: Any,
        server_manager: "ServerManager",
        tokenizer: Any,
        chat: ChatRenderer,
        *,
        program: str,
        timeout: float = 600.0,
        arguments: dict[str, Any] | None = None,
    ):
        super().__init__(config, server_manager, tokenizer, chat)
        self.name, self.timeout, self.arguments = program, timeout, arguments or {}

    @staticmethod
    def check_entry(arguments: dict[str, Any], folder: Path) -> None:
        """ConfigError for what is wrong with an entry of the file in `folder`, before anything is loaded."""
        missing = [name for name in PACKAGES if find_spec(name) is None]
        if missing:
            raise ConfigError(
                f"an agent that is a program needs the package {' and '.join(missing)}; install it with "
                f"{install_command('serve')}"
            )
        timeout, further = arguments.get("timeout", 1), arguments.get("arguments", {})
        if (finite(timeout) or 0) <= 0:
            raise ConfigError(f"timeout={timeout!r}: expected seconds above 0")
        program = load_from_folder(str(arguments["program"]), folder, "program")
        if not isinstance(further, dict):
            raise ConfigError(f"arguments={further!r}: expected names and values")
        try:
            inspect.signature(program).bind(base_url="", api_key="", row={}, **further)
        except TypeError as error:
            raise ConfigError(
                f"program={arguments['program']}: it is called with base_url, api_key, row and what the entry's "
                f"arguments name, and does not take that: {error}"
            ) from error

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        from burnish.agents.endpoint.server import admit
        from burnish.agents.endpoint.session import Session

        session = Session(self, sampling_params, row)
        async with admit(session) as (base_url, api_key):
            reward = await self._reward(session, base_url=base_url, api_key=api_key, row=row, **self.arguments)
        return self._output(session, reward)

    async def _reward(self, session: "Session", **arguments: Any) -> float | None:
        """Wait for the program, its deadline, or a failure of the run; what the program returned."""
        about, path = f"program {self.name}", self.environment.settings.agent.agent_loop_config_path
        main = load_from_folder(self.name, Path(path or ".").expanduser().parent, "program")
        program = asyncio.ensure_future(in_thread(partial(_called, main, about, arguments), about))
        try:
            with waiting("tool", "", about, self.timeout) as wait:
                await asyncio.wait({program, session.failed}, timeout=self.timeout, return_when=asyncio.FIRST_COMPLETED)
                if not program.done() and not session.failed.done():
                    wait.overdue()
            if session.failed.done():
                session.failed.result()  # raises
            if not program.done():
                raise ToolFailure(f"program {self.name}: not done after {self.timeout:g} s (its timeout)")
            try:
                reward = program.result()
            except ToolFailure as failure:
                if session.full and TOO_LONG in str(failure):  # it stands in the error of any client
                    return None  # a program need not know about full contexts: the trajectory ends there, as truncated
                raise
        finally:
            if not program.cancel():
                program.exception()  # asked for here at the latest, or asyncio complains
        number = finite(reward)
        if reward is None or number is not None:
            return number
        shown = repr(reward) if isinstance(reward, float) else f"a {type(reward).__name__}"
        raise ToolFailure(f"program {self.name}: returned {shown}; expected the reward, a finite number, or None")

    def _output(self, session: "Session", reward: float | None) -> AgentLoopOutput:
        conversations = session.conversations
        if conversations.trained is None:
            raise ToolFailure(
                f"program {self.name}: ended without a reply from the policy, so there is nothing to train; make it "
                "use the base_url and api_key that it is called with"
            )
        if conversations.left_out:
            self.environment.warn_once(
                "program %s: %d of the %d calls of a trajectory are not trained: a trajectory is one sequence, and "
                "they do not belong to its longest conversation. A call continues a conversation if its messages "
                "begin with those of an earlier call and the reply exactly as it was given; the metric is "
                "openai/calls_not_trained",
                self.name,
                conversations.left_out,
                len(conversations.turns),
            )
        trained = conversations.trained
        trained.transcript.is_full = trained in session.full
        return trained.transcript.output(
            reward_score=reward,
            num_turns=2 * trained.calls,
            extra_fields={"finish_reason": trained.transcript.turns[-1].finish_reason},
            metrics={
                "openai/calls": len(conversations.turns),
                "openai/calls_not_trained": conversations.left_out,
                "openai/malformed_calls": session.malformed,
                "openai/context_full": len(session.full),
            },
        )


def _called(function: Callable[..., Any], about: str, arguments: dict[str, Any]) -> Any:
    """What it returns. A coroutine is run here too, in this thread, because nobody can see whether it blocks."""
    try:
        result = function(**arguments)
        return asyncio.run(result) if inspect.iscoroutine(result) else result
    except BaseException as error:  # sys.exit comes here too
        raise ToolFailure(f"{about} raised {type(error).__name__}\n{user_traceback()}") from error
