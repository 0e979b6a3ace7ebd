"""`Trainable`: an HF module with its optimiser; what actor and critic are made of.

A batch is cut into micro-batches here and nowhere else. The processes of a mesh call all of this together, with the
same batch: each works on its share of the rows and has a slice of the weights, and results are the same in all.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from burnish.algorithms.tally import Metrics, merge, on_cpu, part_of_sum
from burnish.config.actor import PARTS
from burnish.config.fsdp import FSDPConfig
from burnish.config.model import ModelConfig
from burnish.engine import state
from burnish.engine.batching import MicroBatch, passes
from burnish.engine.forward import Forward
from burnish.engine.mesh import Mesh
from burnish.engine.offload import HostState, activation_offload, moves_state
from burnish.engine.optim import clip_gradients, learning_rate, make_optimizer
from burnish.engine.retry import attempts
from burnish.engine.sharding import local, reshard, slices_of
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
    mesh: Mesh | None = None,
) -> dict[str, Tensor]:
    """Run `function` over micro-batches without gradients; its (b, …) tensors come back on the CPU, in batch order."""
    return infer_rows(module, lambda rows: function(batch[rows].to(device)), _lengths(batch), micro, mesh)


def infer_rows(
    module: "PreTrainedModel",
    function: Callable[[np.ndarray], Mapping[str, Tensor]],
    lengths: Sequence[int],
    micro: MicroBatch,
    mesh: Mesh | None = None,
) -> dict[str, Tensor]:
    """`infer` of rows that are known by their lengths: `function` takes their numbers. No rows, no tensors."""
    module.eval()
    for attempt in attempts(lengths, micro, mesh):
        whole: dict[str, Tensor] = {}
        with attempt, torch.no_grad():
            for rows, counts in passes(lengths, attempt.micro, mesh):
                for name, part in function(rows).items():
                    if name not in whole:
                        whole[name] = torch.zeros(len(lengths), *part.shape[1:], dtype=part.dtype)
                    if counts and (mesh is None or mesh.reports_rows):
                        whole[name][rows] = part.cpu()
    if mesh is None:
        return whole
    reshard(module)  # what was gathered last would else stay next to the slices, and be used when these have changed
    return {name: mesh.add_up(tensor) for name, tensor in whole.items()}


def frozen(
    module: "PreTrainedModel", model: ModelConfig, fsdp: FSDPConfig | None = None, mesh: Mesh | None = None
) -> Forward:
    """How a module that is not trained is run: spread over the mesh where there is one, in the type it comes in."""
    return Forward(module.requires_grad_(False).eval(), model, fsdp=fsdp, mesh=mesh)


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
        model: ModelConfig | None = None,
        fsdp: FSDPConfig | None = None,
        mesh: Mesh | None = None,
    ):
        """`model` sets how the module is run, it and `fsdp` what waits in host memory; None: the defaults. With a
        `mesh` the module is sharded as `fsdp` says, from wherever it is to `device`."""
        model = model or ModelConfig()
        self.moves_activations = model.enable_activation_offload
        self.moves_state = moves_state(fsdp, is_sharded=mesh is not None)
        self.device, self.mesh = torch.device(device), mesh
        self.module = module if mesh else nn.Module.to(module, device)  # in place; HF types its own `to` wrongly
        self.forward = Forward(self.module, model, fsdp=fsdp, mesh=mesh)
        self.grad_clip = grad_clip
        self.step = 0
        self.learning_rate = learning_rate(optim, total_steps)
        self.parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.slices = slices_of(self.parameters, mesh)
        # What the optimiser steps on: float32 throughout. A float32 parameter is its own master, and so is its slice.
        self.masters = {
            name: p if p.dtype == torch.float32 else nn.Parameter(p.detach().float().clone())
            for name, p in self.parameters.items()
        }
        if mesh is not None:
            self.masters = {name: nn.Parameter(local(p)) for name, p in self.parameters.items()}
        self.optimizer = make_optimizer(self.masters.values(), optim)
        self.gradients: dict[str, Tensor] = {}  # float32, of the mini-batch that is being worked on
        self.host_state = HostState(self._update_state, self.device)
        self.host_state.to_host()

    def infer(
        self, function: Callable[[DataProto], Mapping[str, Tensor]], batch: DataProto, micro: MicroBatch
    ) -> dict[str, Tensor]:
        return infer(self.module, function, batch, micro, self.device, self.mesh)

    def forward_backward(self, batch: DataProto, loss_fn: Loss, micro: MicroBatch) -> dict[str, float]:
        """A mini-batch's `gradients`; returns metrics with `loss`. `loss_fn` gives a micro-batch's share of the loss:
        shares are summed, so a mean is divided by the count of the whole mini-batch, and metrics are tallies."""
        self.module.train()
        for attempt in attempts(_lengths(batch), micro, self.mesh):
            self._forget_gradients()
            parts, loss = list[Metrics](), torch.zeros(0)  # what a failed attempt held is let go
            with attempt:
                for rows, counts in passes(attempt.lengths, attempt.micro, self.mesh):
                    with activation_offload(self.module, self.device) if self.moves_activations else nullcontext():
                        loss, metrics = loss_fn(batch[rows].to(self.device))
                        (loss if counts else loss * 0).backward()
                    self._collect_gradients()
                    if counts:
                        parts.append({**metrics, "loss": part_of_sum(loss)})
        if self.mesh is not None:
            mine = [on_cpu(part) for part in parts] if self.mesh.reports_rows else []
            parts = [part for of_one in self.mesh.gather(mine) for part in of_one]
        return merge(parts)

    def optim_step(self, loss: float, schedule: int | None = None) -> dict[str, float]:
        """One optimiser step on the gradients there are. `schedule` is the place in the learning-rate schedule (None:
        the number of updates so far). Returns `grad_norm`, `lr` and `bad_step`: 1 where loss or gradient was NaN or
        infinite; such a step is not applied. It still counts in the schedule."""
        norm = float(clip_gradients(self.gradients.values(), self.grad_clip, self.mesh.shards if self.mesh else None))
        lr = self.learning_rate(self.step if schedule is None else schedule)
        bad = not (math.isfinite(loss) and math.isfinite(norm))
        if not bad:
            self.host_state.to_device()
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            for name, gradient in self.gradients.items():
                self.masters[name].grad = gradient
            self.optimizer.step()
            self.write_compute_weights()
        self._forget_gradients()
        self.host_state.to_host()
        self.step += 1
        return {"grad_norm": norm, "lr": lr, "bad_step": float(bad)}

    def save(self, folder: str | Path, contents: Sequence[str] = PARTS) -> None:
        state.capture(self, contents, copy=False).write(Path(folder))

    def capture(self, contents: Sequence[str] = PARTS) -> state.Snapshot:
        """Copy what `save` would write now into host memory; its `write` is the rest, in any thread."""
        return state.capture(self, contents, copy=True)

    def load(self, folder: str | Path, contents: Sequence[str] = PARTS) -> None:
        """Resume from a folder that `save` wrote; a CheckpointError says what does not fit."""
        state.load(self, Path(folder), contents)

    def write_compute_weights(self) -> None:
        """Round the masters into the module's own weights, in place; slices are those weights themselves."""
        if self.mesh is not None:
            return
        with torch.no_grad():
            own = [name for name, parameter in self.parameters.items() if self.masters[name] is not parameter]
            if own:
                torch._foreach_copy_([self.parameters[name] for name in own], [self.masters[name] for name in own])

    def _collect_gradients(self) -> None:
        """Add up gradients in float32 after each micro-batch, so that the cut cannot round them."""
        sums, added = [], []
        for name, parameter in self.parameters.items():
            if parameter.grad is None:
                continue
            if parameter.dtype == torch.float32:  # its own master: autograd adds up on its own
                self.gradients[name] = local(parameter.grad)
                continue
            if name in self.gradients:
                sums.append(self.gradients[name])
                added.append(parameter.grad)
            else:
                self.gradients[name] = parameter.grad.float()
            parameter.grad = None
        if sums:
            torch._foreach_add_(sums, added)

    def _forget_gradients(self) -> None:
        self.gradients = {}
        for name, parameter in self.parameters.items():
            parameter.grad = self.masters[name].grad = None

    def _update_state(self) -> Iterator[Tensor]:
        """What only an update reads, and waits in host memory between updates: masters that are not the parameters
        themselves (slices are, and stay), and the optimiser's moments."""
        if not self.moves_state:
            return
        if self.mesh is None:
            yield from (master for name, master in self.masters.items() if master is not self.parameters[name])
        for moments in self.optimizer.state.values():
            yield from (value for value in moments.values() if isinstance(value, Tensor))


def _lengths(batch: DataProto) -> list[int]:
    assert batch.batch is not None, "a batch without tensors has nothing to run a model on"
    return batch.batch["attention_mask"].sum(-1).tolist()
