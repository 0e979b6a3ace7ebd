"""What all workers that hold a model have in common: the model in one process, or spread over those of the pool; and of
those that train it, how a batch becomes optimiser steps, what these report, and checkpoints."""

import asyncio
import contextlib
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from burnish.config import PPOConfig
from burnish.config.actor import PARTS, CheckpointConfig
from burnish.config.fsdp import FSDPConfig
from burnish.config.model import ModelConfig
from burnish.config.optim import OptimConfig
from burnish.controller import Dispatch, register
from burnish.engine.batching import MicroBatch, mini_batches
from burnish.engine.dump import BadSteps, Update
from burnish.engine.flops import mfu, sequence_flops
from burnish.engine.mesh import Mesh
from burnish.engine.offload import HostModule
from burnish.engine.retry import OOM_RETRIES, OomRetries
from burnish.engine.seeding import seed_torch
from burnish.engine.state import Snapshot, Write
from burnish.engine.trainable import Loss, Trainable
from burnish.errors import CheckpointError
from burnish.protocol import DataProto
from burnish.workers.profiler import ProfiledWorker

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class ModelWorker(ProfiledWorker):
    """One process of a role. With several in the pool, all of them are called together and work as one."""

    def __init__(self, config: PPOConfig, total_steps: int):
        self.config, self.total_steps = config, total_steps
        self.profile_sections()  # whose errors come before a model is loaded
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
        """`loader(device=…)`: on the device, or mapped from its files for a mesh, which puts shares on the devices."""
        return loader(device=self.device if mesh is None else None)


class ModelFolder:
    """A model's folder in a checkpoint: one `Trainable` with its tokenizer; all parts, unless `config` says otherwise.
    `save` may be called from any thread. Processes that share a model call all of it together, with one folder."""

    def __init__(
        self, trainable: Trainable, tokenizer: "PreTrainedTokenizerBase", config: CheckpointConfig | None = None
    ):
        self.trainable, self.tokenizer = trainable, tokenizer
        self.save_contents = config.save_contents if config else PARTS
        self.load_contents = config.load_contents if config else PARTS
        self._captured: Snapshot | None = None

    def capture(self) -> None:
        """Copy into host memory what `save` is to write while training continues."""
        self._captured = self.trainable.capture(self.save_contents)
        if self._writes_tokenizer:
            _ = self._write_tokenizer  # made here: a tokenizer is not to be used by two threads at a time

    def save(self, folder: Path) -> None:
        """Write what was captured, or else the model as it is."""
        captured, self._captured = self._captured, None
        if not folder.parent.is_dir():
            raise CheckpointError(
                f"cannot write {folder}: {folder.parent}, which the run created, does not exist on "
                f"{socket.gethostname()}. Set trainer.default_local_dir to a folder on storage that all machines of "
                "the run share"
            )
        if captured is None:
            self.trainable.save(folder, self.save_contents)
        else:
            captured.write(folder)
        if self._writes_tokenizer:
            self._write_tokenizer(folder)
        if self.trainable.mesh is not None:
            _sync_files(folder)

    def load(self, folder: Path) -> None:
        """Resume from a folder that `save` wrote; a CheckpointError says what does not fit."""
        self.trainable.load(folder, self.load_contents)

    @property
    def _writes_tokenizer(self) -> bool:
        return self.trainable.mesh is None or self.trainable.mesh.rank == 0

    @cached_property
    def _write_tokenizer(self) -> Write:
        """Tokenizers do not change while a model trains, so their files are made once."""
        return written_now(self.tokenizer.save_pretrained)


class TrainedModelWorker(ModelWorker):
    """A worker whose model is in a checkpoint. What is declared here is there once the model is loaded."""

    tokenizer: "PreTrainedTokenizerBase"
    dumps: BadSteps
    model_folder: ModelFolder
    weights: HostModule  # of the module that is trained

    def trainable(
        self,
        load: Callable[..., "PreTrainedModel"],
        model: ModelConfig,
        optim: OptimConfig,
        grad_clip: float | None,
        total_steps: int,
        fsdp: FSDPConfig | None = None,
        ulysses: int = 1,
    ) -> Trainable:
        """The model, loaded by `load`, with its optimiser."""
        mesh = self.mesh(fsdp or FSDPConfig(), ulysses)
        return Trainable(
            self.load(partial(load, model.path, model, seed=self.config.trainer.seed), mesh),
            optim,
            grad_clip=grad_clip,
            total_steps=total_steps,
            device=self.device,
            model=model,
            fsdp=fsdp,
            mesh=mesh,
        )

    def update_rows(
        self, data: DataProto, step: int, mini_batch_size: int, epochs: int = 1, shuffle: bool = False
    ) -> Iterator[np.ndarray]:
        """The rows of each optimiser step: `epochs` times over the batch in mini-batches of whole groups."""
        count, uids = self.config.data.train_batch_size // mini_batch_size, data.non_tensor_batch["uid"]
        for epoch in range(epochs):
            seed = self.config.data.seed
            yield from mini_batches(uids, count, epoch=step * epochs + epoch, shuffle=shuffle, seed=seed)

    def objective(self, mini: DataProto) -> Loss:
        """What is minimised on a mini-batch; called on each of its micro-batches."""
        raise NotImplementedError

    def train(
        self, role: str, trainable: Trainable, micro: MicroBatch, data: DataProto, step: int, rows: Iterator[np.ndarray]
    ) -> dict[str, list[float]]:
        """Train on the batch, in optimiser steps on these rows; one value per optimiser step and metric."""
        start = time.perf_counter()
        updates: list[dict[str, float]] = []
        computed: list[int] = []
        with self.weights.on_device():
            for number, chosen in enumerate(rows):
                mini = data[chosen]
                update = trainable.forward_backward(mini, self.objective(mini), micro)
                update |= trainable.optim_step(update["loss"], step - 1)
                if update["bad_step"]:
                    self.dumps.write(Update(role, step, number, step - 1, update), mini, trainable, self.tokenizer)
                updates.append(update)
                computed += lengths(mini)
        return update_metrics(role, updates, trainable, computed, time.perf_counter() - start)

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


def lengths(data: DataProto) -> list[int]:
    """Tokens of each sequence, prompt and response."""
    return list(data.batch["attention_mask"].sum(-1).tolist())


def update_metrics(
    role: str, updates: list[dict[str, float]], trainable: Trainable, computed: list[int], seconds: float
) -> dict[str, list[float]]:
    """The metrics of the optimiser steps of one batch, by name; what every update reports is named after the role.
    `computed`: lengths of all sequences that the updates ran the model on, forward and backward."""
    metrics: dict[str, list[float]] = {}
    for update in updates:
        for name, value in update.items():
            metrics.setdefault(name if "/" in name else f"{role}/{name}", []).append(value)
    if retries := OomRetries.take():
        metrics[OOM_RETRIES] = [retries]
    processes = 1 if trainable.mesh is None else trainable.mesh.size
    flops = sequence_flops(trainable.module, computed, backward=True) / processes
    if (utilisation := mfu(flops, seconds, trainable.device)) is not None:
        metrics[f"perf/mfu/{role}"] = [utilisation]
    if trainable.device.type == "cuda":
        metrics["perf/max_memory_allocated_gb"] = [torch.cuda.max_memory_allocated(trainable.device) / 2**30]
        metrics["perf/device_memory_gb"] = [torch.cuda.get_device_properties(trainable.device).total_memory / 2**30]
    return metrics


def _sync_files(folder: Path) -> None:
    """Bring what this machine has written to the disk: the controller, on another one, can only do so for its own.
    A file that goes meanwhile is a temporary one of another process, which syncs its own."""
    for path in (*(path for path in folder.rglob("*") if path.is_file()), folder):
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def written_now(write: Write) -> Write:
    """Call `write`; returns a function that writes the same files into any other folder, whenever it is called."""
    try:
        with tempfile.TemporaryDirectory(prefix="burnish-") as place:
            write(Path(place))
            files = {path.relative_to(place): path.read_bytes() for path in Path(place).rglob("*") if path.is_file()}
    except Exception as error:
        if not isinstance(error, OSError) and type(error) is not Exception:  # tokenizers has no error type
            raise
        where = tempfile.tempdir or "of this machine"  # where there is none at all, the error names those tried
        raise CheckpointError(
            f"cannot write the tokenizer's files to the temporary folder {where}: {error}. Free space there, or name "
            "another folder in the environment variable TMPDIR, then run the same command again"
        ) from error

    def write_again(folder: Path) -> None:
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)

    return write_again
