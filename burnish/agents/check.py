"""Checks, before anything is loaded, that a run has all the agents that its rows ask for.

Consumes the rows one by one; `finish` then checks what is needed once, such as a retrieval server if a row searches.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from burnish.agents.base import SECTION, find_loop, user_loops
from burnish.agents.environment import MULTI_TURN, TOOL_LOOPS, AgentSettings, Environment
from burnish.agents.loops.tool import REACT, make_protocol
from burnish.agents.parsers import find_parser
from burnish.agents.tools.base import BaseTool
from burnish.agents.tools.python import PythonTool
from burnish.agents.tools.search import SearchTool
from burnish.agents.tools.session import ToolSession
from burnish.data.chat import ChatRenderer, to_messages
from burnish.errors import ConfigError, DataError, UserError
from burnish.loop_thread import run_to_end
from burnish.search.client import probe
from burnish.user_code import user_traceback

log = logging.getLogger(__name__)

SEARCH = "search_agent"
READ_NO_TOOLS = ("single_turn_agent", SEARCH)


class AgentCheck:
    """Raises a ConfigError for the first unknown loop, tool, format or interaction, and a DataError for the first row
    with wrong settings of a tool, that its interaction cannot use, or whose prompt is too long with the tools it
    shows."""

    def __init__(self, settings: AgentSettings, tokenizer: Any):
        self.settings = settings
        self.default = settings.agent.default_agent_loop
        user_loops(settings.agent)  # registers them
        find_loop(self.default, f"{SECTION}.default_agent_loop")
        self.chat = ChatRenderer(
            tokenizer, settings.data.apply_chat_template_kwargs, escape=settings.data.escape_special_tokens
        )
        self.environment = Environment(settings, tokenizer, self.chat)
        self.loops: set[str] = set()
        self.tools: dict[str, BaseTool] = {}
        self.call_limits: set[float] = set()  # seconds of one call, of rows with the tool python
        self._seen: set[str] = set()
        self._prompts: list[tuple[str, Callable[[], str]]] = []  # of rows that show tools

    def row(self, row: Mapping[str, Any], where: Callable[[], str] = lambda: "") -> None:
        """One row, which messages call `where()`. What several rows ask for alike is checked once."""
        given = row.get("agent_name") or self.default
        loop = given.removesuffix("_loop")
        interaction = row.get("interaction_kwargs") or {}
        shapes = _shape(row.get("tools_kwargs")), _shape(interaction), interaction.get("name")
        configs = row.get("tool_config"), (row.get("extra_info") or {}).get("tool_config")
        asks = repr((loop, *configs, *shapes))
        try:
            if asks not in self._seen:
                find_loop(given)
                self._check_agent(row, loop)
                self._seen.add(asks)
            if loop in TOOL_LOOPS:
                self._check_interaction(row)
            if loop in TOOL_LOOPS and self.settings.data.truncation == "error":
                call_format = REACT if loop == "react_agent" else self.environment.call_format(row)
                protocol = make_protocol(self.environment, call_format, self.environment.tools_of(row))
                text = self.chat.text(*protocol.opening(to_messages(row["raw_prompt"])))  # with the tools it shows
                self._prompts.append((text, where))
        except (ConfigError, DataError) as error:
            kind = DataError if isinstance(error, DataError) else ConfigError
            raise kind(": ".join(filter(None, (where(), str(error))))) from error

    def finish(self) -> None:
        loops = self.loops or {self.default.removesuffix("_loop")}  # where rows are not known before they are drawn
        if SEARCH in loops:
            self._check_observation_length()
        if SEARCH in loops or isinstance(self.tools.get("search"), SearchTool):
            retriever = self.settings.retriever
            probe(retriever.url, retriever.timeout, retriever.topk)
        if isinstance(python := self.tools.get("python"), PythonTool):
            self._check_programs(python)
        self._check_prompt_lengths()

    def _check_agent(self, row: Mapping[str, Any], loop: str) -> None:
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
        ToolSession(tools, "", row.get("tools_kwargs") or {}, None)  # checks them
        if self.environment.interaction_of(row) is None and not tools:
            log.warning(
                "rows of %s have neither tools nor an interaction; name tools in the file of "
                "%s.tool_config_path or in tools_kwargs, or an interaction in interaction_kwargs", loop, MULTI_TURN,
            )  # fmt: skip
        find_parser(self.environment.call_format(row))
        self.environment.chat_turns.role("user")  # raises for a template that cannot be continued
        self.tools |= tools
        if "python" in tools:
            self.call_limits.add(self.environment.limits_of(row).tool_timeout)

    def _check_interaction(self, row: Mapping[str, Any]) -> None:
        if (interaction := self.environment.interaction_of(row)) is None:
            return
        try:
            interaction.check_row(**row["interaction_kwargs"])
        except UserError:
            raise
        except Exception:  # noqa: BLE001  a user's class may raise anything
            name = row["interaction_kwargs"]["name"]
            raise DataError(f"interaction {name}: check_row failed\n{user_traceback()}") from None

    def _check_prompt_lengths(self) -> None:
        data = self.settings.data
        counts = self.chat.token_counts([text for text, _ in self._prompts], data.start_limit)
        for count, (_, where) in zip(counts, self._prompts, strict=True):
            if count > data.start_limit:
                raise DataError(
                    f"{where()}: with the tools that it shows, the prompt has {count} tokens, over "
                    f"{data.start_limit_key}={data.start_limit}; raise it (the longest has {max(counts)}), or cut "
                    "prompts with data.truncation=left, right or middle"
                )

    def _check_observation_length(self) -> None:
        """Both tags around retrieved text fit, and at least one token of it."""
        markers, limit = self.settings.state_masking, self.settings.data.max_obs_length
        tags = f"\n\n{markers.start_state_marker}", f"{markers.end_state_marker}\n\n"
        least = sum(len(self.environment.observations.ids(tag)) for tag in tags) + 1
        if limit is not None and limit < least:
            raise ConfigError(
                f"data.max_obs_length={limit}: the tags of a search result and one token of text need {least} "
                "tokens; raise it"
            )

    def _check_programs(self, python: PythonTool) -> None:
        """Programs can be run, and a tool call lasts longer than one may."""
        if reason := run_to_end(python.unavailable_reason()):
            raise ConfigError(f"the tool python runs programs, and none can be run: {reason}")
        call, program = min(self.call_limits), self.settings.sandbox
        if call <= program.timeout:
            name = (
                f"{MULTI_TURN}.tool_timeout" if call == self.settings.multi_turn.tool_timeout else "tool_config.timeout"
            )
            raise ConfigError(
                f"{name}={call:g} is not more than reward_model.sandbox."
                f"timeout={program.timeout:g}, so an endless program would end its trajectory instead of "
                "getting an error message; raise the one, or lower the other"
            )


def _shape(given: Any) -> Any:
    """The structure without its values: rows that differ only in values ask for the same."""
    if isinstance(given, Mapping):
        return {name: _shape(value) for name, value in given.items()}
    return type(given).__name__
