"""Whether a run can have all the agents that its rows ask for; told before anything is loaded.

Consumes the rows one by one; `finish` then asks for what is needed once, as a retrieval server where a row searches, be
it by the search agent or by the tool.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from burnish.agents.environment import MULTI_TURN, TOOL_LOOPS, Environment
from burnish.agents.loops.protocols import REACT, make_protocol
from burnish.agents.parsers import find_parser
from burnish.agents.tools.base import BaseTool
from burnish.agents.tools.python import PythonTool
from burnish.agents.tools.search import SearchTool
from burnish.agents.tools.session import ToolSession
from burnish.agents.user_loops import SECTION, check_names
from burnish.config import PPOConfig
from burnish.data.chat import ChatRenderer, to_messages
from burnish.errors import ConfigError, DataError
from burnish.loop_thread import run_to_end
from burnish.search.client import probe

log = logging.getLogger(__name__)

SEARCH = "search_agent"
READ_NO_TOOLS = ("single_turn_agent", SEARCH)


class AgentCheck:
    """Raises a ConfigError for the first loop, tool, format or interaction that there is not, and a DataError for the
    first row whose settings of a tool are none, or whose prompt is too long with the tools it shows."""

    def __init__(self, config: PPOConfig, tokenizer: Any):
        self.config = config
        self.default = config.actor_rollout_ref.rollout.agent.default_agent_loop
        check_names([self.default], config, f"{SECTION}.default_agent_loop")
        self.chat = ChatRenderer(tokenizer, config.data.apply_chat_template_kwargs)
        self.environment = Environment(config, tokenizer, self.chat)
        self.loops: set[str] = set()
        self.tools: dict[str, BaseTool] = {}
        self._seen: set[str] = set()
        self._prompts: list[tuple[str, Callable[[], str]]] = []  # of rows that show tools

    def row(self, row: Mapping[str, Any], where: Callable[[], str] = lambda: "") -> None:
        """One row, which messages call `where()`. What several rows ask for alike is looked at once."""
        given = row.get("agent_name") or self.default
        loop = given.removesuffix("_loop")
        interaction = row.get("interaction_kwargs") or {}
        shapes = _shape(row.get("tools_kwargs")), _shape(interaction), interaction.get("name")
        asks = repr((loop, row.get("tool_config"), *shapes))
        try:
            if asks not in self._seen:
                check_names([given], self.config)
                self._agent(row, loop)
                self._seen.add(asks)
            if loop in TOOL_LOOPS and self.config.data.truncation == "error":
                self._prompts.append((self._prompt(row, loop), where))
        except (ConfigError, DataError) as error:
            kind = DataError if isinstance(error, DataError) else ConfigError
            raise kind(": ".join(filter(None, (where(), str(error))))) from error

    def finish(self) -> None:
        """What is needed whatever the rows are."""
        loops = self.loops or {self.default.removesuffix("_loop")}  # where rows are not known before they are drawn
        if SEARCH in loops:
            self._observation_length()
        if SEARCH in loops or isinstance(self.tools.get("search"), SearchTool):
            retriever = self.config.retriever
            probe(retriever.url, retriever.timeout, retriever.topk)
        if isinstance(python := self.tools.get("python"), PythonTool):
            self._programs(python)
        self._prompt_lengths()

    def _agent(self, row: Mapping[str, Any], loop: str) -> None:
        self.loops.add(loop)
        asked = [name for name in ("tools_kwargs", "interaction_kwargs", "tool_config") if row.get(name)]
        if loop in READ_NO_TOOLS and asked:
            log.warning(
                "rows have %s, which %s does not read; set agent_name, or %s.enable=true, to use them",
                " and ".join(asked), loop, MULTI_TURN,
            )  # fmt: skip
        if loop not in TOOL_LOOPS:
            return
        tools = self.environment.tools_of(row)
        ToolSession(tools, "", row.get("tools_kwargs") or {}, None)  # says what is wrong with them
        if self.environment.interaction_of(row) is None and not tools:
            log.warning(
                "rows of %s have neither tools nor an interaction to talk to; name tools in the file of "
                "%s.tool_config_path or in tools_kwargs, or an interaction in interaction_kwargs", loop, MULTI_TURN,
            )  # fmt: skip
        find_parser(self.environment.call_format(row))
        self.environment.chat_turns.role("user")  # a template that cannot be continued is told here
        self.tools |= tools

    def _prompt(self, row: Mapping[str, Any], loop: str) -> str:
        """The prompt with the tools it shows."""
        call_format = REACT if loop == "react_agent" else self.environment.call_format(row)
        protocol = make_protocol(self.environment, call_format, self.environment.tools_of(row))
        return self.chat.text(*protocol.opening(to_messages(row["raw_prompt"])))

    def _prompt_lengths(self) -> None:
        data = self.config.data
        counts = self.chat.token_counts([text for text, _ in self._prompts])
        for count, (_, where) in zip(counts, self._prompts, strict=True):
            if count > data.start_limit:
                raise DataError(
                    f"{where()}: with the tools that it shows, the prompt has {count} tokens, over "
                    f"{data.start_limit_key}={data.start_limit}; raise it (the longest has {max(counts)}), or cut "
                    "prompts with data.truncation=left, right or middle"
                )

    def _observation_length(self) -> None:
        """Both tags around retrieved text fit, and some of it."""
        markers, limit = self.config.algorithm.state_masking, self.config.data.max_obs_length
        tags = f"\n\n{markers.start_state_marker}", f"{markers.end_state_marker}\n\n"
        least = sum(len(self.environment.observations.ids(tag)) for tag in tags) + 1
        if limit is not None and limit < least:
            raise ConfigError(
                f"data.max_obs_length={limit}: the tags around what a search brings, and a token of it, are {least} "
                "tokens; raise it"
            )

    def _programs(self, python: PythonTool) -> None:
        """Programs can be run, and a tool call lasts longer than one may."""
        if reason := run_to_end(python.why_not()):
            raise ConfigError(f"the tool python runs programs, and none can be run: {reason}")
        call, program = self.config.actor_rollout_ref.rollout.multi_turn.tool_timeout, self.config.reward_model.sandbox
        if call <= program.timeout:
            raise ConfigError(
                f"actor_rollout_ref.rollout.multi_turn.tool_timeout={call:g} is not more than reward_model.sandbox."
                f"timeout={program.timeout:g}, so a program that loops would end its trajectory instead of being told "
                "so; raise the one, or lower the other"
            )


def _shape(given: Any) -> Any:
    """What is given, without its values: rows that differ in these alone ask for the same."""
    if isinstance(given, Mapping):
        return {name: _shape(value) for name, value in given.items()}
    return type(given).__name__
