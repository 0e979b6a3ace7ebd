"""Host memory for what a GPU need not hold all the time: activations, optimiser state, and the weights of a module.

None of it changes a number. Copies go through pinned memory. On a CPU nothing is moved.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from burnish.engine.sharding import local

if TYPE_CHECKING:
    from burnish.config.fsdp import FSDPConfig

SCARCE = "cuda"  # the kind of device whose memory is spared
SMALLEST = 2**20  # bytes; less is not worth a copy
LEAVING = 4  # storages that may be on their way to the host before the computation waits for the first of them
AHEAD = 4  # storages brought back before the backward pass asks for them


def moves_state(fsdp: "FSDPConfig | None", *, is_sharded: bool) -> bool:
    """Whether masters and moments wait on the host (`optimizer_offload`). With FSDP2's own offload they stay there."""
    return fsdp is not None and fsdp.optimizer_offload and not (is_sharded and fsdp.offload_policy)


@contextmanager
def activation_offload(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Around a forward and backward pass of `module` on `device`: what the one saves for the other waits on the host.
    Copies run alongside the computation. Weights and whatever is small stay where they are."""
    if device.type != SCARCE:
        yield
        return
    activations = Activations(module, SideStream(device))
    try:
        with torch.autograd.graph.saved_tensors_hooks(activations.save, activations.give):
            yield
    finally:
        activations.close()


class SideStream:
    """Copies on a separate stream. Each comes with a mark that `wait` takes before the result is used; it holds the
    computing stream, never the host. Memory on the device always belongs to the computing stream, which waits for a
    copy before that memory is freed, so the peak does not depend on how far the host runs ahead."""

    def __init__(self, device: torch.device):
        self.device, self.side = device, torch.cuda.Stream(device)

    def to_host(self, data: Tensor) -> tuple[Tensor, torch.cuda.Event]:
        host = torch.empty(data.shape, dtype=data.dtype, pin_memory=True)
        return host, self._copy(host, data)

    def to_device(self, host: Tensor) -> tuple[Tensor, torch.cuda.Event]:
        data = torch.empty(host.shape, dtype=host.dtype, device=self.device)
        return data, self._copy(data, host)

    def wait(self, mark: torch.cuda.Event) -> None:
        torch.cuda.current_stream(self.device).wait_event(mark)

    def _copy(self, into: Tensor, source: Tensor) -> torch.cuda.Event:
        self.side.wait_stream(torch.cuda.current_stream(self.device))  # which made the data, or last used the memory
        with torch.cuda.stream(self.side):
            into.copy_(source, non_blocking=True)
            return self.side.record_event()


@dataclass(eq=False)
class _Moved:
    place: int  # in the order of saving
    storage: StorageWeakRef  # as long as it is held, no other storage gets the address
    version: int
    host: Tensor  # (bytes,)
    here: Tensor | None  # its bytes on the device: while they leave, and again when they are needed
    mark: Any | None  # of a copy that the computation has not waited for yet
    uses: int = 0  # saved tensors of this storage that were not asked for yet


class _Saved(NamedTuple):
    """What stands in the autograd graph for a tensor whose storage was moved."""

    moved: _Moved
    dtype: torch.dtype
    offset: int
    size: torch.Size
    stride: tuple[int, ...]


class Activations:
    """What leaves and when it comes back; `save` and `give` are hooks of autograd, `transfers` does the copying.
    Storages are moved whole and once, however many views of them are saved: they come back with the same strides, so
    the backward pass runs the same kernels. They come back in the reverse order of saving, some ahead of their use."""

    def __init__(self, module: nn.Module, transfers: SideStream, smallest: int = SMALLEST):
        self.transfers, self.smallest = transfers, smallest
        tensors = [*module.parameters(), *module.buffers()]
        self.weights = {tensor.untyped_storage()._cdata for tensor in tensors}
        self.known: dict[int, _Moved] = {}  # by the address of the storage
        self.order: list[_Moved | None] = []  # None: used up
        self.leaving: deque[_Moved] = deque()

    def save(self, tensor: Tensor) -> Tensor | _Saved:
        """Called by the forward pass with each tensor that the backward pass will need."""
        if type(tensor) is not Tensor or tensor.layout is not torch.strided or tensor.device.type != SCARCE:
            return tensor
        storage = tensor.untyped_storage()
        if storage.nbytes() < self.smallest or storage._cdata in self.weights:
            return tensor
        moved = self.known.get(storage._cdata)
        if moved is None or moved.version != tensor._version:
            data = _bytes(storage)
            host, mark = self.transfers.to_host(data)
            moved = _Moved(len(self.order), StorageWeakRef(storage), tensor._version, host, data, mark)
            self.known[storage._cdata] = moved
            self.order.append(moved)
            self.leaving.append(moved)
            while len(self.leaving) > LEAVING:
                self._let_go(self.leaving.popleft())
        moved.uses += 1
        return _Saved(moved, tensor.dtype, int(tensor.storage_offset()), tensor.size(), tensor.stride())

    def give(self, saved: Tensor | _Saved) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        moved = saved.moved
        data = self._fetched(moved)
        self._wait(moved)
        tensor = torch.empty(0, dtype=saved.dtype, device=data.device)
        tensor.set_(data.untyped_storage(), saved.offset, saved.size, saved.stride)
        moved.uses -= 1
        if moved.uses <= 0:  # the tensor itself keeps the memory as long as it is needed
            moved.here = None
            if self.order:
                self.order[moved.place] = None
        waiting = (other for other in reversed(self.order[: moved.place]) if other is not None)
        for other, _ in zip(waiting, range(AHEAD), strict=False):
            self._fetched(other)
        return tensor

    def close(self) -> None:
        """Drop what is left, once no copy of it is running."""
        for moved in (*filter(None, self.order), *self.leaving):
            self._let_go(moved)
        self.order.clear()
        self.leaving.clear()
        self.known.clear()

    def _fetched(self, moved: _Moved) -> Tensor:
        if moved.here is None:
            moved.here, moved.mark = self.transfers.to_device(moved.host)
        return moved.here

    def _let_go(self, moved: _Moved) -> None:
        self._wait(moved)
        moved.here = None

    def _wait(self, moved: _Moved) -> None:
        if moved.mark is not None:
            self.transfers.wait(moved.mark)
            moved.mark = None


class HostState:
    """Tensors that are in host memory, except between `to_device` and `to_host`. `tensors` is called each time, for
    moments are created by the first step. Each tensor stays the object that it is: its `data` is exchanged, and a
    checkpoint reads and writes it on the host. Single numbers (step counts) stay where they are."""

    def __init__(self, tensors: Callable[[], Iterable[Tensor]], device: torch.device):
        self.tensors, self.device = tensors, device

    def to_device(self) -> None:
        for tensor in self._all():
            tensor.data = tensor.data.to(self.device, non_blocking=True)

    def to_host(self) -> None:
        """Take everything to host memory; it can be read there when this returns."""
        is_cuda = self.device.type == "cuda"
        for tensor in self._all():
            host = torch.empty_like(tensor, device="cpu", pin_memory=is_cuda, requires_grad=False)
            tensor.data = host.copy_(tensor.detach(), non_blocking=True)
        if is_cuda:
            torch.cuda.current_stream(self.device).synchronize()

    def _all(self) -> list[Tensor]:
        return [tensor for tensor in self.tensors() if tensor.dim()] if self.device.type == SCARCE else []


class HostModule:
    """A module whose weights are in host memory, and on its device inside `with host_module.on_device():`. Parameters
    and buffers stay the objects that they are; only the memory behind them is exchanged, so references and views are
    valid again when it is back. Weights that can be trained are copied back after each use, frozen ones are not.
    Outside the `with` they must not be read. With `parks` false (`param_offload` of a role) they stay."""

    def __init__(self, module: nn.Module, *, parks: bool = True):
        self.module, self.parks = module, parks
        self._in_use = False
        self._homes: dict[int, tuple[torch.UntypedStorage, Tensor]] = {}  # by address: the storage, its bytes
        self._park()

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """For one use of the module at a time."""
        if self._in_use:  # a second copy from the host would undo what was trained
            raise RuntimeError("the weights are on their device already")
        self._in_use = True
        for storage, host in self._homes.values():
            storage.resize_(host.numel())
            _bytes(storage).copy_(host, non_blocking=True)
        try:
            yield
        finally:
            self._park()
            self._in_use = False

    def _park(self) -> None:
        found: dict[int, tuple[torch.UntypedStorage, bool]] = {}  # by address: the storage, and whether it is trained
        for tensor in (*self.module.parameters(), *self.module.buffers()) if self.parks else ():
            storage = local(tensor).untyped_storage()
            if storage.device.type == SCARCE and storage.nbytes():
                was_trained = found.get(storage._cdata, (storage, False))[1]
                found[storage._cdata] = (storage, was_trained or tensor.requires_grad)
        homes = {}
        for address, (storage, is_trained) in found.items():  # a pass may have merged weights into new ones
            host = self._homes[address][1] if address in self._homes else None
            if host is None or is_trained:
                data = _bytes(storage)
                if host is None:
                    host = torch.empty(data.shape, dtype=data.dtype, pin_memory=data.is_cuda)
                host.copy_(data, non_blocking=True)
            homes[address] = (storage, host)
        for storage, _ in homes.values():
            storage.resize_(0)  # in the order of the stream: after the copy
        self._homes = homes


def _bytes(storage: torch.UntypedStorage) -> Tensor:
    """A storage as a line of bytes, not a copy."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
