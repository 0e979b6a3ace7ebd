"""A module whose weights are spread over the processes of a mesh, by FSDP2.

After `shard` each parameter is a `DTensor` of which this process holds a slice of its rows, in float32 where it is
trained: that slice is the master which the optimiser steps on. Of weights that are mapped from their files
(`models/loading.py`) no other rows are read. FSDP2 gathers weights in hooks of `forward`; passes of burnish compute
with parts of a module directly, so they go through `run`, which has the hooks of that part around it.
"""

import itertools
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor

from burnish.config.fsdp import FSDPConfig
from burnish.engine.mesh import Mesh
from burnish.errors import ConfigError
from burnish.models.loading import COMPUTE_TYPE

if TYPE_CHECKING:
    from transformers import PreTrainedModel

T = TypeVar("T")
ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name since torch 2.13
HOOKED = "run_hooked"  # the method of a sharded module, and of its layers, that has FSDP2's hooks around it
CHUNK = 2**22  # elements of a checksum at a time
FACTOR = 0x2545F4914F6CDD1D  # odd, so that every place has another factor
BUCKET_BYTES = 256 * 2**20  # of whole weights that exist at a time next to the model


@dataclass(frozen=True)
class Slice:
    """Rows `start` to `stop` of a parameter of this `shape`; of one without dimensions, all of it."""

    start: int
    stop: int
    shape: tuple[int, ...]


def shard(module: "PreTrainedModel", mesh: Mesh, fsdp: FSDPConfig) -> None:
    """Spread the weights of `module` over the mesh, layer by layer; it computes in their type, and sums in float32.
    Gradients are added up over processes, never averaged: losses are divided by counts of the whole mini-batch."""
    # Some models of transformers keep weights in float32 next to others (`_keep_in_fp32_modules`); FSDP2 has one type
    # for all that it gathers. Buffers it leaves as they are.
    if own := [name for name, p in module.named_parameters() if p.is_floating_point() and p.dtype != module.dtype]:
        dtype = str(module.dtype).removeprefix("torch.")
        raise ConfigError(
            f"{type(module).__name__} in {dtype} keeps {len(own)} of its weights in another type, such as {own[0]} in "
            f"{str(module.get_parameter(own[0]).dtype).removeprefix('torch.')}, and several processes would compute "
            f"with them in {dtype}. Set its model.dtype=float32, or run it in one process"
        )
    compute: torch.dtype = getattr(module, COMPUTE_TYPE, module.dtype)
    keeps: OffloadPolicy = OffloadPolicy()
    if fsdp.offload_policy:
        keeps = CPUOffloadPolicy(pin_memory=mesh.devices.device_type == "cuda")
    policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32, cast_forward_inputs=False)
    # The repeated layers: those of the longest list of modules that is in no other list, such as one of experts.
    lists = {name: part for name, part in module.named_modules() if isinstance(part, nn.ModuleList) and len(part) > 0}
    outer = [part for name, part in lists.items() if not any(name.startswith(f"{other}.") for other in lists)]
    layers: list[nn.Module] = list(max(outer, key=len, default=()))
    rows = _without_memory(module, mesh, compute)
    for layer in layers:
        fully_shard(
            layer, mesh=mesh.devices, mp_policy=policy, offload_policy=keeps,
            reshard_after_forward=fsdp.reshard_after_forward,
        )  # fmt: skip
    fully_shard(module, mesh=mesh.devices, mp_policy=policy, offload_policy=keeps)
    _fill(module, rows, compute, "cpu" if fsdp.offload_policy else mesh.devices.device_type)
    parts: list[Any] = [*layers, module]
    for part in parts:
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)  # gloo has no other; the factor of 1 costs nothing
        setattr(part, HOOKED, types.MethodType(lambda _part, function, *args: function(*args), part))
        register_fsdp_forward_method(part, HOOKED)
    if fsdp.forward_prefetch:
        for layer, following in itertools.pairwise(layers):
            layer.set_modules_to_forward_prefetch([following])  # type: ignore[operator]


def run(module: nn.Module, function: Callable[..., T], *args: Any) -> T:
    """Call a function that computes with `module`, the whole or one of its layers; the weights are whole meanwhile, but
    for those of layers inside. What comes out leads gradients back to shards. A module not sharded needs nothing."""
    if not isinstance(module, FSDPModule):
        return function(*args)
    hooked: Callable[..., T] = getattr(module, HOOKED)
    return hooked(function, *args)


def reshard(module: nn.Module) -> None:
    """Free the full weights that a pass without gradients left: each parameter is a slice again."""
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.reshard()


def computes_in(module: nn.Module) -> torch.dtype:
    """The type that a sharded module's weights are gathered in."""
    state: Any = fully_shard.state(module)  # type: ignore[attr-defined]
    dtype: torch.dtype = state._mp_policy.param_dtype
    return dtype


def local(tensor: Tensor) -> Tensor:
    """The slice of a parameter that is here, in its own memory; a plain tensor is itself."""
    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor


def slices_of(parameters: Mapping[str, Tensor], mesh: Mesh | None) -> dict[str, Slice]:
    """Which rows of each parameter this process holds."""
    slices = {}
    for name, parameter in parameters.items():
        shape = tuple(parameter.shape)
        start, stop = 0, shape[0] if shape else 0
        if mesh is not None and shape:
            rows = -(-shape[0] // dist.get_world_size(mesh.shards))  # FSDP2 cuts as torch.chunk does
            start = min(rows * dist.get_rank(mesh.shards), shape[0])
            stop = min(start + rows, shape[0])
        slices[name] = Slice(start, stop, shape)
    return slices


def whole_buckets(
    tensors: Mapping[str, Tensor],
    slices: Mapping[str, Slice],
    mesh: Mesh | None,
    *,
    dtype: torch.dtype | None = None,
    size: int = BUCKET_BYTES,
) -> Iterator[dict[str, Tensor]]:
    """Whole tensors from the slices (of float32 or another type) that processes hold, about `size` bytes at a time. All
    processes go through it together; without a mesh, slices are whole. They travel as `dtype`."""
    bucket: list[str] = []
    filled = 0
    for name in tensors:
        wide = torch.Size(slices[name].shape).numel() * (dtype or torch.float32).itemsize
        if bucket and filled + wide > size:
            yield {part: _whole(tensors[part], slices[part], mesh, dtype) for part in bucket}
            bucket, filled = [], 0
        bucket.append(name)
        filled += wide
    if bucket:
        yield {part: _whole(tensors[part], slices[part], mesh, dtype) for part in bucket}


def checksums(
    tensors: Mapping[str, Tensor], slices: Mapping[str, Slice], mesh: Mesh | None, dtype: torch.dtype | None = None
) -> Tensor:
    """A number (n,) for each whole tensor, from its bits and their places, as values of `dtype`. Each process adds up
    what it holds itself, so nothing is gathered. The same bits at the same places give the same number however they are
    cut; a slice that is missing, old or out of place gives another."""
    sums = [_checksum(tensor.detach().to(dtype or tensor.dtype), slices[name]) for name, tensor in tensors.items()]
    total = torch.stack(sums).cpu() if sums else torch.zeros(0, dtype=torch.int64)
    if mesh is None:
        return total
    return mesh.add_up(total if mesh.writes else torch.zeros_like(total))


def _checksum(tensor: Tensor, held: Slice) -> Tensor:
    bits = tensor.contiguous().view({4: torch.int32, 2: torch.int16}[tensor.element_size()]).flatten()
    row = torch.Size(held.shape[1:]).numel()
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for start in range(0, bits.numel(), CHUNK):
        part = bits[start : start + CHUNK].long()
        places = torch.arange(len(part), device=part.device) + (held.start * row + start)
        total += (part * (places * FACTOR + 1)).sum()  # modulo 2**64
    return total


def _whole(tensor: Tensor, held: Slice, mesh: Mesh | None, dtype: torch.dtype | None) -> Tensor:
    """One tensor from its slices. Every process sends as many rows as the largest slice has; the surplus is dropped."""
    mine = tensor.detach().to(dtype or tensor.dtype)
    if mesh is None or not held.shape:
        return mine
    count = dist.get_world_size(mesh.shards)
    rows = -(-held.shape[0] // count)  # of all slices but the last ones
    padded = mine.new_zeros((rows, *held.shape[1:]))
    padded[: held.stop - held.start] = mine
    gathered = mine.new_empty((rows * count, *held.shape[1:]))
    ALL_GATHER(gathered, padded, group=mesh.shards)
    return gathered[: held.shape[0]]


def _without_memory(module: nn.Module, mesh: Mesh, compute: torch.dtype) -> dict[str, Tensor]:
    """Parameters that FSDP2 makes shards of without reading them, in float32 where they are trained and else `compute`;
    returns, by name, the rows of the former ones that are this process's."""
    former = dict(module.named_parameters())
    rows = {name: former[name].detach()[held.start : held.stop] for name, held in slices_of(former, mesh).items()}
    made = {
        id(parameter): nn.Parameter(
            torch.empty_like(parameter, device="meta", dtype=torch.float32 if parameter.requires_grad else compute),
            requires_grad=parameter.requires_grad,
        )
        for parameter in former.values()
    }
    for part in module.modules():
        for name, parameter in list(part.named_parameters(recurse=False, remove_duplicate=False)):
            part.register_parameter(name, made[id(parameter)])  # tied ones stay tied
    return rows


@torch.no_grad()
def _fill(module: nn.Module, rows: dict[str, Tensor], compute: torch.dtype, device: str) -> None:
    """Give the slices their memory, and their rows as values of the type `compute`."""
    waiting = {id(parameter): rows.pop(name) for name, parameter in module.named_parameters()}

    def filled(tensor: Tensor) -> Tensor:
        if (mine := waiting.pop(id(tensor), None)) is None:  # a buffer, or a tied parameter that is filled already
            return tensor
        tensor = torch.empty_like(tensor, device=device)
        local(tensor).copy_(mine.to(compute))
        return tensor

    module._apply(filled)  # which FSDP2 follows
