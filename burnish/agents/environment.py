"""What all trajectories of a run share: settings, tools, interactions, the retriever, the chat template.

Everything is made when it is first used. It lives on the one event loop of the run; `close` ends what it started.
"""

import asyncio
import inspect
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from burnish.agents.chat_turns import ChatTurns
from burnish.agents.guarded import awaited, finite, within
from burnish.agents.interactions import BaseInteraction
from burnish.agents.interactions.load import load_interactions
from burnish.agents.observation import Observations
from burnish.agents.parsers import Schema
from burnish.agents.targets import check_keys
from burnish.agents.tools.base import BaseTool
from burnish.agents.tools.load import load_tools
from burnish.config.algorithm import StateMaskingConfig
from burnish.config.data import DataConfig
from burnish.config.reward import SandboxConfig
from burnish.config.rollout import AgentConfig, BaseRolloutConfig, MultiTurnConfig, RetrieverConfig
from burnish.data.chat import ChatRenderer
from burnish.errors import ConfigError
from burnish.search.client import RetrieverClient
from burnish.user_code import listed, nearest

log = logging.getLogger(__name__)

MULTI_TURN = "actor_rollout_ref.rollout.multi_turn"
TOOL_LOOPS = ("tool_agent", "react_agent")
CLOSE_S = 20.0  # for a part to end
USUAL = "function_calling"  # a row's `tool_format` that leaves the format to the configuration
ROW_KEYS = ("available_tools", "tool_format", "max_tool_calls", "timeout")  # of a row's `tool_config`
SEARCH_TAGS = ("<think>", "</think>", "<search>", "</search>", "<answer>", "</answer>")


@dataclass(frozen=True)
class AgentSettings:
    """What agents read of a run's configuration. `loop_config` is what a user's own loop gets as `config`: all of it in
    training; in `burnish generate` the sections that it has, under the names that they have in training."""

    data: DataConfig  # limits of prompts and responses, arguments of the chat template
    rollout: BaseRolloutConfig  # multi_turn, agent, stop_token_ids
    retriever: RetrieverConfig
    max_turns: int
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)
    state_masking: StateMaskingConfig = field(default_factory=StateMaskingConfig)
    runs_ahead: bool = False  # trajectories continue while their owner trains
    loop_config: Any = None

    @property
    def multi_turn(self) -> MultiTurnConfig:
        return self.rollout.multi_turn

    @property
    def agent(self) -> AgentConfig:
        return self.rollout.agent


class Environment:
    def __init__(self, settings: AgentSettings, tokenizer: Any, chat: ChatRenderer):
        self.settings = settings
        self.tokenizer = tokenizer
        self.chat_turns = ChatTurns(chat)
        self._warned: set[str] = set()
        self._schemas: dict[tuple[str, ...], list[Schema]] = {}

    @cached_property
    def observations(self) -> Observations:
        markers = self.settings.state_masking
        tags = (*SEARCH_TAGS, markers.start_state_marker, markers.end_state_marker)
        return Observations(self.tokenizer, {*tags, *self.chat_turns.tags("tool")})

    @cached_property
    def retriever(self) -> RetrieverClient:
        asked = self.settings.retriever
        return RetrieverClient(
            asked.url, topk=asked.topk, timeout=asked.timeout, retries=asked.retries, cache=asked.cache
        )

    @cached_property
    def tools(self) -> dict[str, BaseTool]:
        paths = self.settings.multi_turn.tool_config_path, self.settings.multi_turn.function_tool_path
        return load_tools(*paths, retriever=lambda: self.retriever, sandbox=self.settings.sandbox)

    @cached_property
    def interactions(self) -> dict[str, BaseInteraction]:
        return load_interactions(self.settings.multi_turn.interaction_config_path)

    def tools_of(self, row: Mapping[str, Any]) -> dict[str, BaseTool]:
        """The tools that a row offers: those its `tool_config.available_tools` names, else those of the files, else
        those that its `tools_kwargs` set up. ConfigError for a name that is none."""
        named = tool_config(row).get("available_tools")
        set_up = [name for name, kwargs in (row.get("tools_kwargs") or {}).items() if kwargs is not None]
        for name in [*(named or ()), *set_up]:
            if name not in self.tools:
                raise ConfigError(
                    f"the row names the tool {name!r}, which does not exist{nearest(name, self.tools)} (there are "
                    f"{listed(self.tools)}). Add it to the file of {MULTI_TURN}.tool_config_path"
                )
        limits = self.settings.multi_turn
        if named is None and limits.tool_config_path is None and limits.function_tool_path is None:
            named = set_up
        return self.tools if named is None else {name: self.tools[name] for name in named}

    def schemas_of(self, tools: Mapping[str, BaseTool]) -> list[Schema]:
        """The schemas that the policy is shown, made harmless: an MCP server may have written them."""
        names = tuple(tools)
        if names not in self._schemas:
            self._schemas[names] = [self._harmless(tool.tool_schema) for tool in tools.values()]
        return self._schemas[names]

    def _harmless(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.observations.harmless(value)
        if isinstance(value, Mapping):
            return {key: self._harmless(inner) for key, inner in value.items()}
        return [self._harmless(inner) for inner in value] if isinstance(value, list | tuple) else value

    def limits_of(self, row: Mapping[str, Any]) -> MultiTurnConfig:
        """The limits of a trajectory: the configured ones, but for those that the row's `tool_config` sets."""
        own, limits = tool_config(row), self.settings.multi_turn
        return replace(
            limits,
            max_tool_calls=int(own["max_tool_calls"]) if "max_tool_calls" in own else limits.max_tool_calls,
            tool_timeout=float(own.get("timeout", limits.tool_timeout)),
        )

    def call_format(self, row: Mapping[str, Any]) -> str:
        asked = tool_config(row).get("tool_format")
        return self.settings.multi_turn.format if asked in (None, USUAL) else str(asked)

    def interaction_of(self, row: Mapping[str, Any]) -> BaseInteraction | None:
        """The interaction that a row names in `interaction_kwargs`, None if that is empty."""
        kwargs = row.get("interaction_kwargs") or {}
        if all(value is None for value in kwargs.values()):  # as tables have it for rows without
            return None
        name, known = kwargs.get("name"), self.interactions
        if not isinstance(name, str):
            raise ConfigError(
                f"interaction_kwargs.name={name!r:.100}: a row names one of its run's interactions: {listed(known)}"
            )
        if name not in known:
            raise ConfigError(
                f"interaction_kwargs.name={name:.100}: there is no such interaction{nearest(name, known)} (this run "
                f"has {listed(known)}). Name your own in the YAML file of {MULTI_TURN}.interaction_config_path"
            )
        return known[name]

    def warn_once(self, message: str, *values: Any) -> None:
        if message not in self._warned:
            self._warned.add(message)
            log.warning(message, *values)

    def warn_of_differences(self, role: str) -> None:
        """Warn once if this tokenizer's chat template would render a conversation otherwise than it is continued."""
        if role in self._warned:
            return
        self._warned.add(role)
        for difference in self.chat_turns.differences(role):
            log.warning(
                "the chat template cannot be continued exactly: %s. Rollout and training see the same tokens; a prompt "
                "rendered from such a conversation as a whole has other tokens",
                difference,
            )

    def retriever_stats(self) -> dict[str, float]:
        """Counts of the retriever so far; {} if it was never asked."""
        return self.retriever.stats() if "retriever" in self.__dict__ else {}

    async def close(self) -> None:
        """End what tools, interactions and the retriever's client hold; what does not end in time is left."""
        made = self.__dict__
        parts = [*made.get("tools", {}).values(), *made.get("interactions", {}).values()]
        parts += [made["retriever"]] if "retriever" in made else []

        async def close(part: Any) -> None:
            if hasattr(part, "close") and inspect.isawaitable(ended := part.close()):
                await ended

        calls = (within(CLOSE_S, f"{type(part).__name__} to close", awaited(close, part), hint="") for part in parts)
        for problem in await asyncio.gather(*calls, return_exceptions=True):
            if problem is not None:
                log.warning("%s", problem)


def tool_config(row: Mapping[str, Any]) -> dict[str, Any]:
    """The column `tool_config` of a row, or that of its `extra_info`, checked and without nulls; {} if it is empty."""
    given = row.get("tool_config") or (row.get("extra_info") or {}).get("tool_config") or {}
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"tool_config={given!r:.100}: it must be an object with {', '.join(ROW_KEYS)}, or some of them"
        )
    found = {key: value for key, value in given.items() if value is not None}
    check_keys(found, ROW_KEYS, "tool_config")
    named, most, seconds = found.get("available_tools"), found.get("max_tool_calls"), found.get("timeout")
    if named is not None and (isinstance(named, str) or not all(isinstance(name, str) for name in named)):
        raise ConfigError(f"tool_config.available_tools={named!r:.100}: it must be a list of names")
    if most is not None and ((number := finite(most)) is None or number < 0 or not number.is_integer()):
        raise ConfigError(f"tool_config.max_tool_calls={most!r:.100}: it must be a whole number, at least 0")
    if seconds is not None and ((number := finite(seconds)) is None or number <= 0):
        raise ConfigError(f"tool_config.timeout={seconds!r:.100}: it must be a number of seconds above 0")
    return found
