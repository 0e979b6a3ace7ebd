"""Worker processes of this machine for the commands that have one kind of worker (`sft`, `rm`, `generate`): how many
the keys ask for, and what starts them. `setup.py` does it for `burnish ppo`, whose roles may be on several machines."""

from pathlib import Path
from typing import Any

from burnish.config.generation import GenerationTrainerConfig
from burnish.config.load import libraries
from burnish.config.trainer import ProcessesConfig, RunConfig
from burnish.controller import processes
from burnish.controller.remote import RemoteWorkerGroup
from burnish.errors import ConfigError
from burnish.models.device import memory_of, pick_device


def process_count(trainer: RunConfig | GenerationTrainerConfig, gpus: int, *, auto: int = 1) -> int:
    """`trainer.n_gpus_per_node` as a number; `gpus` of the machine are used, 0 on a CPU."""
    count = auto if trainer.n_gpus_per_node == "auto" else int(trainer.n_gpus_per_node)
    if gpus and count > gpus * trainer.processes_per_gpu:
        raise ConfigError(
            f"trainer.n_gpus_per_node={count}: {count} processes with a GPU each, and this machine has {gpus}; lower "
            "it, let processes share a GPU (trainer.processes_per_gpu), or set trainer.device=cpu"
        )
    return count


def device_memory(trainer: RunConfig) -> int | None:
    """Bytes of a GPU that one process has; None on a CPU."""
    return memory_of(pick_device(trainer.device), trainer.processes_per_gpu)


def start(config: Any, trainer: ProcessesConfig, run: Path | None = None) -> type[RemoteWorkerGroup]:
    """`run`: the run folder, where processes leave their logs and report what they wait for."""
    return processes.start(
        logs=run and run / "logs",
        deadline_s=trainer.worker_timeout,
        start_deadline_s=trainer.ray_wait_register_center_timeout,
        per_gpu=trainer.processes_per_gpu,
        run=run,
        libraries=libraries(config),
    )
