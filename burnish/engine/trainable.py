"""`Trainable`: an HF module with its optimiser; what actor and critic are made of.

Consumes batches and functions over their micro-batches: `infer` collects what a function returns per row, `update`
takes one optimiser step on the sum of losses. Both cut the batch into micro-batches here and nowhere else. `save`
and `load` keep all that the next update depends on, so training goes on bit for bit after a restart.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from burnish.algorithms.tally import Metrics, merge, part_of_sum
from burnish.engine import state
from burnish.engine.batching import MicroBatch
from burnish.engine.optim import clip_gradients, learning_rate, make_optimizer
from burnish.protocol import DataProto

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from burnish.config.optim import OptimConfig

Loss = Callable[[DataProto], tuple[Tensor, Metrics]]


def infer(
    module: "PreTrainedModel",
    function: Callable[[DataProto], Mapping[str, Tensor]],
    batch: DataProto,
    micro: MicroBatch,
    device: torch.device | str = "cpu",
) -> dict[str, Tensor]:
    """Run `function` over micro-batches without gradients; its (b, …) tensors come back on the CPU, in batch order."""
    module.eval()
    cut = micro.cut(_lengths(batch))
    with torch.no_grad():
        parts = [function(batch[rows].to(device)) for rows in cut]
    order = torch.cat([torch.from_numpy(rows) for rows in cut]).argsort()
    return {name: torch.cat([part[name].cpu() for part in parts])[order] for name in parts[0]}


class Trainable:
    """A module, its optimiser and its schedule. `step` counts the updates so far."""

    def __init__(
        self,
        module: "PreTrainedModel",
        optim: "OptimConfig",
        *,
        grad_clip: float | None = 1.0,
        total_steps: int,
        device: torch.device | str = "cpu",
    ):
        self.module = nn.Module.to(module, device)  # moves in place; HF types its own wrapper of `to` wrongly
        self.device = torch.device(device)
        self.grad_clip = grad_clip
        self.step = 0
        self.learning_rate = learning_rate(optim, total_steps)
        self.parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        # What the optimiser steps on: float32 throughout; a float32 parameter is its own master.
        self.masters = {n: p if p.dtype == torch.float32 else _master(p) for n, p in self.parameters.items()}
        self.optimizer = make_optimizer(self.masters.values(), optim)

    def infer(
        self, function: Callable[[DataProto], Mapping[str, Tensor]], batch: DataProto, micro: MicroBatch
    ) -> dict[str, Tensor]:
        return infer(self.module, function, batch, micro, self.device)

    def update(
        self, batch: DataProto, loss_fn: Loss, micro: MicroBatch, *, schedule: int | None = None
    ) -> dict[str, float]:
        """One optimiser step. `loss_fn` gives a micro-batch's share of the loss; shares are summed.

        So a loss that is a mean must already be divided by the whole mini-batch's count, and the cut changes nothing;
        its metrics are tallies for the same reason. `schedule` is the place in the learning-rate schedule (None: the
        number of updates so far). Returns the metrics with `loss`, `grad_norm`, `lr` and `bad_step`: 1 where loss or
        gradient was NaN or infinite; such a step is not applied. It still counts in the schedule.
        """
        self.module.train()
        self.optimizer.zero_grad(set_to_none=True)
        parts: list[Metrics] = []
        for rows in micro.cut(_lengths(batch)):
            loss, metrics = loss_fn(batch[rows].to(self.device))
            loss.backward()
            self._collect_gradients()
            parts.append({**metrics, "loss": part_of_sum(loss)})
        merged = merge(parts)
        return merged | self._apply(merged["loss"], self.step if schedule is None else schedule)

    def save(self, folder: str | Path) -> None:
        """Write the HF model and, beside it, what the next update needs; see `state`."""
        state.save(self, Path(folder))

    def load(self, folder: str | Path) -> None:
        """Go on from a folder that `save` wrote; a CheckpointError says what does not fit."""
        state.load(self, Path(folder))

    def write_compute_weights(self) -> None:
        """Round the masters into the module's own weights, in place."""
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                if self.masters[name] is not parameter:
                    parameter.copy_(self.masters[name])

    def _apply(self, loss: float, schedule: int) -> dict[str, float]:
        norm = float(clip_gradients(self.masters.values(), self.grad_clip))
        lr = self.learning_rate(schedule)
        bad = not (math.isfinite(loss) and math.isfinite(norm))
        if not bad:
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            self.optimizer.step()
            self.write_compute_weights()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return {"grad_norm": norm, "lr": lr, "bad_step": float(bad)}

    def _collect_gradients(self) -> None:
        """Add low-precision gradients to their masters after each micro-batch, so that the cut cannot round them."""
        for name, parameter in self.parameters.items():
            master = self.masters[name]
            if master is parameter or parameter.grad is None:
                continue
            gradient = parameter.grad.float()
            master.grad = gradient if master.grad is None else master.grad.add_(gradient)
            parameter.grad = None


def _master(parameter: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(parameter.detach().float().clone())


def _lengths(batch: DataProto) -> list[int]:
    assert batch.batch is not None, "a batch without tensors has nothing to run a model on"
    return batch.batch["attention_mask"].sum(-1).tolist()
