"""The base class of agent loops, as verl has it, and `VerlLoop`, which runs one of them as a loop of burnish.

A loop is made for each trajectory, with those of verl's arguments that its constructor takes, and `run` is called with
the columns of the row. Where verl's generations differ, all forms are there: `init_class` (0.6), `rollout_config`,
`data_config` and `apply_chat_template` (from 0.7 on), `tools` (0.9).

How it differs: a reply always has its log-probs, and is never longer than what is left of the response; and with
`remove_system_prompt=True`, `apply_chat_template` gives exactly what the template writes between two turns of the
assistant, such as the line break after its end token, which verl leaves out.
"""

import asyncio
import copy
import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from weakref import WeakKeyDictionary

from omegaconf import DictConfig
from pydantic import BaseModel, ConfigDict

from burnish import agents
from burnish.agents.environment import Environment
from burnish.agents.output import as_ids
from burnish.agents.server import ServerManager
from burnish.config.data import DataConfig
from burnish.data.chat import to_messages
from burnish.errors import ConfigError, DataError, NotAvailable
from verl._config import as_omegaconf
from verl.tools.base_tool import taken
from verl.tools.tool_registry import RUN, ToolListWrap, tools_of
from verl.workers.rollout.replica import TokenOutput

__all__ = [
    "AgentLoopBase",
    "AgentLoopMetrics",
    "AgentLoopOutput",
    "AsyncLLMServerManager",
    "DictConfigWrap",
    "TokenOutput",
    "ToolListWrap",
    "register",
]

Loop = TypeVar("Loop", bound="type[AgentLoopBase]")

# Parameters of vLLM that change no token id.
OF_TEXT = ("detokenize", "skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output")
MEDIA = "images, videos and audio in a trajectory"


class AgentLoopMetrics(BaseModel):
    """Seconds, and whatever numbers a loop adds; they are reported as `agent_loop/<name>`."""

    model_config = ConfigDict(extra="allow")

    generate_sequences: float = 0.0
    tool_calls: float = 0.0
    compute_score: float = 0.0
    num_preempted: int = -1  # -1: not known


class AgentLoopOutput(BaseModel):
    """One trajectory. Further fields, which other versions have, are kept and not read."""

    model_config = ConfigDict(extra="allow")

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]  # 1 = sampled by the policy
    response_logprobs: list[float] | None = None
    multi_modal_data: dict[str, Any] | None = None
    reward_score: float | None = None
    num_turns: int = 0
    metrics: AgentLoopMetrics
    extra_fields: dict[str, Any] = {}

    def to_burnish(self) -> agents.AgentLoopOutput:
        if any((self.multi_modal_data or {}).values()):
            raise NotAvailable(MEDIA, "Return an output without multi_modal_data.")
        metrics = self.metrics.model_dump(exclude_unset=True)
        if metrics.get("num_preempted", 0) < 0:
            del metrics["num_preempted"]
        return agents.AgentLoopOutput(
            prompt_ids=self.prompt_ids,
            response_ids=self.response_ids,
            response_mask=self.response_mask,
            response_logprobs=self.response_logprobs,
            reward_score=self.reward_score,
            num_turns=self.num_turns,
            metrics={f"agent_loop/{name}": value for name, value in metrics.items()},
            extra_fields=self.extra_fields,
        )


class AsyncLLMServerManager:
    """Generates for one trajectory."""

    def __init__(self, server: ServerManager, data: DataConfig):
        self._server, self._data = server, data
        self._prompt: list[int] | None = None  # of the first turn

    async def generate(
        self,
        request_id: str,
        *,
        prompt_ids: Sequence[int],
        sampling_params: Mapping[str, Any],
        image_data: Any = None,
        video_data: Any = None,
        audio_data: Any = None,
        **others: Any,
    ) -> TokenOutput:
        if image_data or video_data or audio_data:
            raise NotAvailable(MEDIA)
        if further := [name for name, value in others.items() if value]:
            raise NotAvailable(f"generate(…, {further[0]}=…)", "Leave it out.")
        ids, params = as_ids(prompt_ids), dict(sampling_params)
        if params.pop("repetition_penalty", 1.0) != 1.0 or params.pop("n", 1) != 1:
            raise NotAvailable("repetition_penalty and n in sampling_params", "Leave them at 1.")
        for name in OF_TEXT:
            params.pop(name, None)
        most = params.pop("max_new_tokens", None) or params.get("max_tokens") or self._data.response_limit
        params["max_tokens"] = max(min(most, self._room(ids)), 1)
        done = await self._server.generate(str(request_id), prompt_ids=ids, sampling_params=params)
        stopped = "aborted" if done.finish_reason == "abort" else "completed"
        return TokenOutput(done.token_ids, done.log_probs, stop_reason=stopped)

    def _room(self, ids: list[int]) -> int:
        """What is left of the response; for a prompt that does not continue the first one, of the whole context."""
        self._prompt = self._prompt or ids
        start = len(self._prompt)
        begun = start if ids[:start] == self._prompt else self._data.start_limit
        return begun + self._data.response_limit - len(ids)


class DictConfigWrap:
    def __init__(self, config: DictConfig):
        self.config = config


_DummyConfig = DictConfigWrap  # its name in 0.6


class AgentLoopBase(ABC):
    """Base of users' loops. `config` has burnish's keys, which can be read as attributes, with `[]` and with `get`."""

    _class_initialized = False

    def __init__(
        self,
        trainer_config: DictConfigWrap,
        server_manager: AsyncLLMServerManager,
        tokenizer: Any,
        processor: Any = None,
        dataset_cls: Any = None,
        data_config: DictConfigWrap | None = None,
        **kwargs: Any,
    ):
        self.config = trainer_config.config
        self.rollout_config = self.config.actor_rollout_ref.rollout
        self.data_config = self.config.data
        self.apply_chat_template_kwargs = self.data_config.apply_chat_template_kwargs
        self.mm_processor_kwargs: dict[str, Any] = {}
        self.server_manager, self.tokenizer = server_manager, tokenizer
        self.processor, self.dataset_cls = processor, dataset_cls
        self.loop = asyncio.get_running_loop()
        self._environment = RUN.get()
        self.init_class(config=self.config, tokenizer=tokenizer, processor=processor, **kwargs)

    @classmethod
    def init_class(cls, config: DictConfig, tokenizer: Any, processor: Any, **kwargs: Any) -> None:
        """Called for each trajectory; what those of a run share is made where `_class_initialized` is false."""
        cls._class_initialized = True

    @abstractmethod
    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        """Make the trajectory; `kwargs` are the columns of the row."""

    async def apply_chat_template(
        self,
        messages: Sequence[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        images: Any = None,
        videos: Any = None,
        audios: Any = None,
        mm_processor_kwargs: Any = None,
        remove_system_prompt: bool = False,
    ) -> list[int]:
        """The ids of a prompt; with `remove_system_prompt`, of messages that follow a turn of the assistant."""
        if images or videos or audios:
            raise NotAvailable(MEDIA)
        turns = self._environment.chat_turns
        if remove_system_prompt:
            return turns.after(to_messages(list(messages)), ended=True)
        return turns.chat.prompt_ids(to_messages(list(messages)), tools or None)

    @functools.cached_property
    def system_prompt(self) -> list[int]:
        """What the template writes before the first message: of one message, all but what a second one adds."""
        chat, empty = self._environment.chat_turns.chat, {"role": "user", "content": ""}
        try:
            one, two = chat.whole([empty]), chat.whole([empty, empty])
        except DataError:  # a template that wants turns to alternate
            return []
        return one[: 2 * len(one) - len(two)]

    async def process_vision_info(self, messages: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {}

    process_multi_modal_info = process_vision_info

    def _get_mm_processor_kwargs(self, audio_data: Any = None) -> dict[str, Any]:
        return {}

    @classmethod
    def burnish_class(cls) -> "type[VerlLoop]":
        about = {"loop_class": cls, "__module__": cls.__module__, "__qualname__": cls.__qualname__}
        return type(cls.__name__, (VerlLoop,), about)


def register(agent_name: str) -> Callable[[Loop], Loop]:
    """Class decorator: makes the class the loop of rows whose `agent_name` is this one."""

    def decorate(cls: Loop) -> Loop:
        agents.register_agent_loop(agent_name, cls.burnish_class())
        return cls

    return decorate


class VerlLoop(agents.AgentLoopBase):
    """A loop for verl, as one of burnish."""

    loop_class: ClassVar[type[AgentLoopBase]]

    def __init__(self, config: Any, server_manager: ServerManager, tokenizer: Any, chat: Any, **arguments: Any):
        super().__init__(config, server_manager, tokenizer, chat)
        self.arguments = arguments

    @classmethod
    def check_entry(cls, arguments: dict[str, Any], folder: Path) -> None:
        """ConfigError for keys of an entry that the constructor does not take, before anything is loaded."""
        try:
            inspect.signature(cls.loop_class).bind(**taken(cls.loop_class, **_parts()), **arguments)
        except TypeError as error:
            raise ConfigError(f"{cls.__name__} cannot be made with the keys of the entry: {error}") from error

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> Any:
        RUN.set(self.environment)  # of this trajectory, which is a task of its own
        if self.environment not in _of_runs:
            _of_runs[self.environment] = RunParts.made(self.environment, self.config)
        run = _of_runs[self.environment]
        if self.loop_class not in run.classes:
            run.classes.add(self.loop_class)
            self.loop_class._class_initialized = False  # it may be true from another run of this process
        server = AsyncLLMServerManager(self.server_manager, self.environment.settings.data)
        parts = _parts(run.config, server, run.tokenizer)
        if "tools" in inspect.signature(self.loop_class).parameters:
            parts["tools"] = ToolListWrap(tools_of(self.environment))
        loop = self.loop_class(**taken(self.loop_class, **parts), **self.arguments)
        params = {name: sampling_params[name] for name in ("temperature", "top_p", "top_k")}
        params |= {"repetition_penalty": 1.0, "logprobs": True}
        columns = {name: value for name, value in row.items() if name != "agent_name"}
        columns |= {"raw_prompt": copy.deepcopy(row["messages"]), "tools_kwargs": row.get("tools_kwargs") or {}}
        returned = await loop.run(**taken(loop.run, sampling_params=params, **columns))
        return returned.to_burnish() if isinstance(returned, AgentLoopOutput) else returned


def _parts(config: Any = None, server_manager: Any = None, tokenizer: Any = None) -> dict[str, Any]:
    """What the constructor of a loop is given, in the names of all generations."""
    trainer, data = (DictConfigWrap(config), DictConfigWrap(config.data)) if config else (None, None)
    parts = {"trainer_config": trainer, "server_manager": server_manager, "tokenizer": tokenizer, "processor": None}
    return parts | {"dataset_cls": None, "data_config": data}


@dataclass
class RunParts:
    """What the loops of a run share."""

    config: DictConfig
    tokenizer: Any  # whose `apply_chat_template` returns a list of ids, as it did before transformers 5
    classes: set[type[AgentLoopBase]] = field(default_factory=set)  # those that a trajectory has used

    @classmethod
    def made(cls, environment: Environment, config: Any) -> "RunParts":
        chat, tokenizer = environment.chat_turns.chat, copy.copy(environment.tokenizer)
        template = chat.kwargs if chat.plain else {}  # where the tokenizer has none
        tokenizer.apply_chat_template = functools.partial(tokenizer.apply_chat_template, return_dict=False, **template)
        return cls(as_omegaconf(config), tokenizer)


_of_runs: WeakKeyDictionary[Environment, RunParts] = WeakKeyDictionary()
