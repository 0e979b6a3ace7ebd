"""`Mesh`: the processes that hold one model together, and which part of a batch each of them works on.

    replicas × shards   for weights: `shards` neighbours share one copy (`fsdp_config.fsdp_size`), and there are as many
                        copies as that leaves (hybrid sharding where it is more than one)
    data × ulysses      for rows: `ulysses` neighbours work on the same sequences, each on a slice of every one

None: a model in one process. Models laid out alike share a mesh: each used group costs a GPU some hundred MB.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from burnish.config.placement import shards_of
from burnish.errors import ConfigError


@dataclass(frozen=True)
class Mesh:
    """This process's place among those that hold a model."""

    devices: DeviceMesh  # what FSDP2 shards over: one dimension, or (replicas, shards)
    control: dist.ProcessGroup  # of all, on the CPU: for numbers, not for weights
    ulysses: dist.ProcessGroup | None = None  # with whom each sequence is shared
    even: bool = True  # deal rows by their cost, not by their number

    @classmethod
    def of(
        cls,
        device: torch.device,
        *,
        fsdp_size: int = -1,
        ulysses: int = 1,
        even: bool = True,
        timeout_s: float | None = None,
    ) -> "Mesh | None":
        """The mesh of this process's group; None where it is alone. All processes of the group call it together. A
        collective that somebody does not join fails after `timeout_s`; None: after as long as torch waits."""
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return None
        everyone = dist.group.WORLD
        if everyone not in _made:  # the first in a world: groups of the one before it are of no use
            _made.clear()
            _made[everyone] = {}
        layout = (device.type, shards_of(fsdp_size, dist.get_world_size()), ulysses, even, timeout_s)
        if layout not in _made[everyone]:
            for name, size in (("fsdp_config.fsdp_size", layout[1]), ("ulysses_sequence_parallel_size", ulysses)):
                if (n := dist.get_world_size()) % size:
                    raise ConfigError(f"{name}={size} does not divide the {n} processes of the pool; choose a divisor")
            timeout = None if timeout_s is None else timedelta(seconds=timeout_s)
            _made[everyone][layout] = cls(
                devices=_devices(device.type, layout[1], timeout),
                control=dist.new_group(backend="gloo", timeout=timeout),
                ulysses=_own_group(_rows(ulysses), timeout) if ulysses > 1 else None,
                even=even,
            )
        return _made[everyone][layout]

    @property
    def rank(self) -> int:
        return dist.get_rank()

    @property
    def size(self) -> int:
        return dist.get_world_size()

    @property
    def shards(self) -> dist.ProcessGroup:
        """The processes that share this one's copy of the weights."""
        return self.devices.get_group("shards")

    @property
    def ulysses_size(self) -> int:
        return 1 if self.ulysses is None else dist.get_world_size(self.ulysses)

    @property
    def data_size(self) -> int:
        """The number of parts that rows are dealt into."""
        return dist.get_world_size() // self.ulysses_size

    @property
    def data_rank(self) -> int:
        """Which of those parts is this process's."""
        return dist.get_rank() // self.ulysses_size

    @property
    def reports_rows(self) -> bool:
        """Whether this process reports the results of its rows; of those that share sequences, one does."""
        return self.ulysses is None or dist.get_rank(self.ulysses) == 0

    @property
    def writes(self) -> bool:
        """Whether this process writes its shard of the weights; of hybrid sharding's copies, the first does."""
        return self.rank < dist.get_world_size(self.shards)

    def gather(self, thing: Any) -> list[Any]:
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, thing, group=self.control)
        return found

    def add_up(self, tensor: Tensor) -> Tensor:
        """The sum over all processes of a tensor on the CPU, in place."""
        dist.all_reduce(tensor, group=self.control)
        return tensor


_made: dict[Any, dict[tuple[Any, ...], Mesh]] = {}  # by the group of all processes, and by layout


def _devices(device: str, shards: int, timeout: timedelta | None) -> DeviceMesh:
    """With groups that have this timeout: those that `init_device_mesh` makes wait half an hour, whatever happens."""
    everyone = dist.group.WORLD
    assert everyone is not None, "there is a world of several processes"
    if shards == dist.get_world_size():
        return DeviceMesh.from_group(everyone, device, mesh_dim_names=("shards",))
    ranks = _rows(shards)
    groups = [_own_group(list(map(list, zip(*ranks, strict=True))), timeout), _own_group(ranks, timeout)]
    return DeviceMesh.from_group(groups, device, ranks, mesh_dim_names=("replicas", "shards"))


def _rows(size: int) -> list[list[int]]:
    """All ranks in groups of `size` neighbours."""
    return [list(range(start, start + size)) for start in range(0, dist.get_world_size(), size)]


def _own_group(ranks: list[list[int]], timeout: timedelta | None) -> dist.ProcessGroup:
    """A group for each list of ranks, made by all processes; the one that this process is in."""
    own, _ = dist.new_subgroups_by_enumeration(ranks, timeout=timeout)
    assert own is not None, "every rank is in one of the lists"
    return own
