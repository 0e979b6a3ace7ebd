"""The agent contract: the base class of loops, and the table of loops by name.

A loop is made for one trajectory. It prompts the policy through `self.server_manager.generate` as often as it likes
and returns an `AgentLoopOutput`. Adding a built-in loop is adding a file in `loops/` and a line here.

Loops of a user are named in the YAML file of `rollout.agent.agent_loop_config_path`: `{name: mine, _target_:
package.MyAgent}`. Other keys of an entry go to the class's constructor. A class that has a method
`check_entry(arguments, folder)` says with it, by a ConfigError, what is wrong with them.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from burnish.agents.output import AgentLoopOutput
from burnish.agents.server import ServerManager, Transcript
from burnish.agents.targets import load_from_folder, read_yaml
from burnish.config.rollout import AgentConfig
from burnish.data.chat import ChatRenderer, Message
from burnish.errors import AgentError, ConfigError, DataError
from burnish.rollout.base import Completion
from burnish.user_code import listed, nearest

if TYPE_CHECKING:
    from burnish.agents.environment import Environment

__all__ = ["AgentLoopBase", "AgentLoopOutput", "find_loop", "register", "register_agent_loop", "user_loops"]

SECTION = "actor_rollout_ref.rollout.agent"
KEY = f"{SECTION}.agent_loop_config_path"

BUILT_IN = {
    "single_turn_agent": "burnish.agents.loops.single_turn:SingleTurnAgentLoop",
    "tool_agent": "burnish.agents.loops.tool:ToolAgentLoop",
    "react_agent": "burnish.agents.loops.tool:ReactAgentLoop",
    "search_agent": "burnish.agents.loops.search:SearchAgentLoop",
}
_registered: dict[str, type["AgentLoopBase"]] = {}
Loop = TypeVar("Loop", bound="type[AgentLoopBase]")


class AgentLoopBase(ABC):
    """Base of all loops. One instance runs one trajectory, so it may keep state on itself. `config` is for users' own
    loops: the run's configuration, by the names of its keys."""

    environment: "Environment"  # what all trajectories of a run share; set by the runner before `run`

    def __init__(self, config: Any, server_manager: ServerManager, tokenizer: Any, chat: ChatRenderer):
        self.config = config
        self.server_manager = server_manager
        self.tokenizer = tokenizer
        self.chat = chat

    @abstractmethod
    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        """Make the trajectory. `row` is the data row, plus `messages` (its prompt) and `max_turns`."""

    def prompt_ids(self, messages: Sequence[Message], tools: list[dict[str, Any]] | None = None) -> list[int]:
        """The rendered prompt, at most `data.start_limit` tokens long, as `data.truncation` says."""
        data = self.environment.settings.data
        try:
            return self.chat.prompt_cut(messages, tools, data.start_limit, data.truncation)
        except DataError as error:
            raise DataError(
                f"prompt of uid {self.server_manager.uid}: {error}; raise {data.start_limit_key}, drop such rows with "
                "data.filter_overlong_prompts=True, or cut them with data.truncation=left, right or middle"
            ) from error

    def transcript(self, prompt_ids: list[int]) -> Transcript:
        return Transcript(self.server_manager, prompt_ids, self.environment.settings.data.response_limit)

    def text(self, completion: Completion, *, keep_end: bool = False) -> str:
        """What the policy wrote in one turn; special tokens as text, but for the one that ended it."""
        drop = self.has_ended(completion) and not keep_end
        ids = completion.token_ids[:-1] if drop else completion.token_ids
        return str(self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def has_ended(self, completion: Completion) -> bool:
        """Whether the policy itself ended its turn, by a token; a plain one of `rollout.stop_token_ids` only stops."""
        plain = set(self.environment.settings.rollout.stop_token_ids) - self.environment.chat_turns.special_ids
        return isinstance(completion.stop, int) and completion.stop not in plain


def register(name: str) -> Callable[[Loop], Loop]:
    """Class decorator: `register_agent_loop(name, cls)`."""

    def decorate(cls: Loop) -> Loop:
        register_agent_loop(name, cls)
        return cls

    return decorate


def register_agent_loop(name: str, cls: type[AgentLoopBase]) -> None:
    """Make `cls` the loop of rows whose `agent_name` is `name`."""
    if not isinstance(cls, type) or not issubclass(cls, AgentLoopBase):
        raise AgentError(f"agent loop {name!r}: {cls!r} is not a subclass of AgentLoopBase")
    taken = _registered.get(name)
    if name in BUILT_IN or (taken is not None and _identity(taken) != _identity(cls)):
        owner = BUILT_IN.get(name) or _identity(taken)  # type: ignore[arg-type]
        raise AgentError(f"agent loop {name!r} is already registered ({owner}); choose another name")
    _registered[name] = cls


def find_loop(name: str, key: str = "agent_name") -> type[AgentLoopBase]:
    """The class of a loop; `X_agent_loop` means `X_agent`. `key` is the column or configuration key that named it."""
    for spelling in (name, name.removesuffix("_loop")):
        if spelling in _registered:
            return _registered[spelling]
        if spelling in BUILT_IN:
            module, class_name = BUILT_IN[spelling].split(":")
            return getattr(import_module(module), class_name)
    known = {*BUILT_IN, *_registered}
    raise ConfigError(
        f"{key}={name}: there is no such agent loop{nearest(name, known)} (there are {listed(known)}). "
        f"Register your own with @register in a module of actor_rollout_ref.model.external_lib, or name it in {KEY}"
    )


def _identity(cls: type) -> str:
    """Equal for a class and its redefinition, as when a notebook cell or a file is run again."""
    return f"{cls.__module__}.{cls.__qualname__}"


def user_loops(agent: AgentConfig) -> dict[str, Callable[..., AgentLoopBase]]:
    """Import and register every loop of the configured file; by name, what makes one. None where there is no file."""
    path = agent.agent_loop_config_path
    if not path:
        return {}
    entries = read_yaml(path, KEY)
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"{KEY}={path}: expected a list of entries with name and _target_")
    return dict(_load_entry(entry, i, Path(path).expanduser()) for i, entry in enumerate(entries))


def _load_entry(entry: Any, position: int, file: Path) -> tuple[str, Callable[..., AgentLoopBase]]:
    where = f"{KEY}={file}, entry {position}"
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise ConfigError(f"{where}: an entry needs a name and a _target_, got {entry!r}")
    name, target = entry["name"], entry.get("_target_")
    if not isinstance(target, str):
        raise ConfigError(f"{where} ({name}): _target_ is missing; write package.module.Class or file.py:Class")
    cls = load_from_folder(target, file.parent, f"{where} ({name}): _target_")
    try:
        register_agent_loop(name, cls)
    except AgentError as error:
        raise ConfigError(f"{where} ({name}): _target_={target}: {error}") from error
    arguments = {key: value for key, value in entry.items() if key not in ("name", "_target_")}
    # Checked now rather than by the first trajectory, when a model is loaded.
    parts = dict.fromkeys(("config", "server_manager", "tokenizer", "chat"))
    try:
        inspect.signature(cls).bind(**parts, **arguments)
    except TypeError as error:
        problem = f"{cls.__name__} cannot be made with the keys of the entry: {error}"
        raise ConfigError(f"{where} ({name}): {problem}") from error
    try:
        if hasattr(cls, "check_entry"):
            cls.check_entry(arguments, file.parent)
    except ConfigError as error:
        raise ConfigError(f"{where} ({name}): {error}") from error
    return name, partial(cls, **arguments) if arguments else cls
