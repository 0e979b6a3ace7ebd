"""A run that ran out of memory ends with the phase, planned and measured memory, and keys that need less."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from burnish.algorithms.needs import needs_of
from burnish.config.fit import advice
from burnish.config.ppo import PPOConfig
from burnish.errors import OutOfMemory, text_of
from burnish.models.device import measured_memory, memory_of, pick_device
from burnish.models.facts import read_model_facts
from burnish.tracking.failure import phase_of


@contextmanager
def memory_explained(kind: str, advise: Callable[[], str | None], at: str) -> Iterator[None]:
    """`kind` of device (`trainer.device`); `at`: the phase, where the error does not know it."""
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, OutOfMemory | torch.OutOfMemoryError | MemoryError):
            cause = cause.__cause__
        if cause is None:
            raise
        typed = isinstance(cause, OutOfMemory)
        said = text_of(cause) if typed else f"out of memory, {measured_memory(pick_device(kind))}"
        raise OutOfMemory(f"{phase_of(error) or at}: {said}; {advise() or 'no plan is known'}") from error


def ppo_memory_explained(config: PPOConfig, at: str) -> AbstractContextManager[None]:
    def advise() -> str | None:
        facts = {key: read_model_facts(model.path) for key, model in config.models.items()}
        memory = memory_of(pick_device(config.trainer.device), config.trainer.processes_per_gpu)
        return advice(config, facts, memory, needs_of(config), ran_out=True)

    return memory_explained(config.trainer.device, advise, at)
