"""The base class of managers with `run_single`, and `LoopManager`, which runs one of them as a manager of burnish.

All rows of a batch are scored at the same time, in one event loop of the process, when the batch is generated. A
failure of `run_single` ends the run. A reward model is burnish's own: `reward_router_address` is None.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from omegaconf import DictConfig

from burnish.errors import RewardError
from burnish.loop_thread import LoopThread
from burnish.protocol import DataProto
from burnish.rewards import managers
from verl._config import as_omegaconf
from verl.tools.base_tool import taken
from verl.workers.reward_manager.batch import OwnVerify

Manager = TypeVar("Manager", bound="type[RewardManagerBase]")

_LOOP = LoopThread("reward managers", kind="reward")  # one, because the objects of a class share its semaphores


class RewardManagerBase(ABC):
    """`config` has burnish's keys, which can be read as attributes, with `[]` and with `get`."""

    _class_initialized = False

    def __init__(self, config: DictConfig, tokenizer: Any, compute_score: Any = None):
        self.config, self.tokenizer, self.compute_score = config, tokenizer, compute_score
        self.loop = asyncio.get_running_loop()
        self.init_class(config, tokenizer)

    @classmethod
    def init_class(cls, config: DictConfig, tokenizer: Any) -> None:
        """Called for each object; what those of a class share is made where `_class_initialized` is false."""
        cls._class_initialized = True

    @abstractmethod
    async def run_single(self, data: DataProto) -> dict[str, Any]:
        """{"reward_score": …, "reward_extra_info": {…}} of a batch of one row."""

    @classmethod
    def burnish_class(cls) -> "type[LoopManager]":
        about = {"loop_class": cls, "__module__": cls.__module__, "__qualname__": cls.__qualname__}
        return type(cls.__name__, (LoopManager,), about)


def register(name: str) -> Callable[[Manager], Manager]:
    """Class decorator: `reward_model.reward_manager=name` is this class."""

    def decorate(cls: Manager) -> Manager:
        managers.register(name)(cls.burnish_class())
        return cls

    return decorate


class LoopManager(OwnVerify):
    """A manager with `run_single`, as one of burnish."""

    loop_class: ClassVar[type[RewardManagerBase]]

    def __init__(
        self,
        tokenizer: Any,
        num_examine: int,
        compute_score: Callable[..., Any] | None = None,
        reward_fn_key: str = "data_source",
        config: Any = None,
    ):
        super().__init__(tokenizer, num_examine, compute_score, reward_fn_key)
        parts = {"config": as_omegaconf(config), "tokenizer": tokenizer, "compute_score": self.compute_score}
        parts |= {"reward_router_address": None, "reward_model_tokenizer": None}

        async def made() -> RewardManagerBase:
            return self.loop_class(**taken(self.loop_class, **parts))

        self.manager = _LOOP.result(_LOOP.run(made()))

    def verify(self, data: DataProto) -> list[Any]:
        async def scored() -> list[dict[str, Any]]:
            return await asyncio.gather(*(self.manager.run_single(data[i : i + 1]) for i in range(len(data))))

        answers = _LOOP.result(_LOOP.run(scored()))
        if wrong := [answer for answer in answers if "reward_score" not in answer]:
            raise RewardError(
                f"{type(self).__name__}.run_single returned {wrong[0]!r:.200}; "
                'return {"reward_score": number, "reward_extra_info": {…}}'
            )
        return [{**answer.get("reward_extra_info", {}), "score": answer["reward_score"]} for answer in answers]
