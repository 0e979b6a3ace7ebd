"""What all workers that hold a model have in common: the model in one process, or spread over those of the pool; and
of those that train it, checkpoints."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from burnish.config import PPOConfig
from burnish.config.fsdp import FSDPConfig
from burnish.controller import Dispatch, Worker, register
from burnish.engine.mesh import Mesh
from burnish.engine.offload import HostModule
from burnish.engine.seeding import seed_torch
from burnish.workers.model_folder import ModelFolder

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class ModelWorker(Worker):
    """One process of a role. With several in the pool, all of them are called together and work as one."""

    def __init__(self, config: PPOConfig, total_steps: int):
        self.config, self.total_steps = config, total_steps
        # In a separate process nobody else does; in the trainer's, nothing was drawn since it did.
        seed_torch(config.trainer.seed, deterministic=config.trainer.deterministic)

    def mesh(self, fsdp: FSDPConfig, ulysses: int = 1) -> Mesh | None:
        """How the pool's processes share a model; None where this one is alone."""
        if self.world_size == 1:
            return None
        return Mesh.of(
            self.device,
            fsdp_size=fsdp.fsdp_size,
            ulysses=ulysses,
            even=self.config.trainer.balance_batch,
            timeout_s=self.place.timeout_s,
        )

    def load(self, loader: Callable[..., "PreTrainedModel"], mesh: Mesh | None) -> "PreTrainedModel":
        """Call `loader(device=…)` for a model that is then sharded over the mesh, if there is one.

        Each process reads the whole model into host memory, of which it then keeps its share on the device.
        """
        return loader(device=self.device if mesh is None else torch.device("cpu"))


class TrainedModelWorker(ModelWorker):
    """A worker whose model is in a checkpoint: `model_folder` and `weights` are there once it is loaded."""

    model_folder: ModelFolder
    weights: HostModule  # of the module that is trained

    @register(dispatch_mode=Dispatch.TOGETHER)
    def save_checkpoint(self, folder: Path) -> None:
        """The model as it is: HF format with the tokenizer, and the training state."""
        with self.weights.on_device():
            self.model_folder.save(folder)

    @register(dispatch_mode=Dispatch.TOGETHER)
    def capture_checkpoint(self) -> None:
        """Copy what `write_captured` is to write, which may then be called while training continues."""
        with self.weights.on_device():
            self.model_folder.capture()

    @register(dispatch_mode=Dispatch.DIRECT_ROLLOUT_METHOD)
    async def write_captured(self, folder: Path) -> None:
        """Write what was captured, while this process computes."""
        await asyncio.to_thread(self.model_folder.save, folder)

    @register(dispatch_mode=Dispatch.TOGETHER)
    def load_checkpoint(self, folder: Path) -> None:
        """Resume from a folder that was saved, by any number of processes."""
        with self.weights.on_device():
            self.model_folder.load(folder)
