"""SupervisedWorker: the model of `burnish sft` or `burnish rm`. Of several processes each holds a part of it (FSDP2)
and computes with its share of every batch; losses and weights are those of one process, up to the order of sums."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from burnish.controller import Dispatch, Worker, register
from burnish.engine.diagnosis import check_weights
from burnish.engine.dump import BadSteps, Update
from burnish.engine.mesh import Mesh
from burnish.engine.retry import OOM_RETRIES, OomRetries
from burnish.engine.seeding import seed_torch
from burnish.engine.trainable import Trainable
from burnish.protocol import DataProto
from burnish.workers.model_worker import ModelFolder

if TYPE_CHECKING:
    from burnish.trainer.supervised import Objective


class SupervisedWorker(Worker):
    def __init__(self, objective: "Objective[Any, Any]", total_steps: int):
        config, self.objective = objective.config, objective
        seed_torch(config.trainer.seed, deterministic=config.trainer.deterministic)
        mesh = Mesh.of(self.device, timeout_s=self.place.timeout_s) if self.world_size > 1 else None
        self.trainable = make_trainable(objective, total_steps, self.device, mesh)
        check_weights(self.trainable.module, f"model.path={config.model.path}")
        self.model_folder = ModelFolder(self.trainable, objective.tokenizer)
        self.dumps = BadSteps(config.trainer.default_local_dir, objective.command, config)

    @register(dispatch_mode=Dispatch.TOGETHER)
    def train(self, batch: DataProto, step: int) -> dict[str, float]:
        """One optimiser step, the `step`-th from 1 on."""
        objective, trainable = self.objective, self.trainable
        loss = objective.loss(trainable.forward, batch)
        update = trainable.forward_backward(batch, loss, objective.micro)
        update |= trainable.optim_step(update["loss"])
        if update["bad_step"]:
            self.dumps.write(
                Update(objective.command, step, 0, step - 1, update), batch, trainable, objective.tokenizer
            )
        return update | ({OOM_RETRIES: retries} if (retries := OomRetries.take()) else {})

    @register(dispatch_mode=Dispatch.TOGETHER)
    def row_values(self, batch: DataProto) -> dict[str, Tensor]:
        objective, forward = self.objective, self.trainable.forward
        return self.trainable.infer(lambda rows: objective.row_values(forward, rows), batch, objective.micro)

    @register(dispatch_mode=Dispatch.TOGETHER)
    def save_checkpoint(self, folder: Path) -> None:
        self.model_folder.save(folder)

    @register(dispatch_mode=Dispatch.TOGETHER)
    def load_checkpoint(self, folder: Path) -> None:
        """Resume from a folder that was saved, by any number of processes."""
        self.model_folder.load(folder)


def make_trainable(
    objective: "Objective[Any, Any]", total_steps: int, device: torch.device, mesh: Mesh | None = None
) -> Trainable:
    config = objective.config
    return Trainable(
        objective.load_model(device if mesh is None else None),  # for a mesh, mapped from its files
        config.optim,
        grad_clip=config.optim.grad_clip,
        total_steps=total_steps,
        device=device,
        model=config.model,
        mesh=mesh,
    )
