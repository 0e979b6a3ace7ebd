"""The memory of keys and values: blocks of S tokens, for every layer, in one allocation. `release` gives it back and
`allocate` takes it again, perhaps elsewhere: kernels read the address from the device, so captured graphs work on."""

import os
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import torch

from burnish.models.attention import LayerShape
from burnish.ops.paged_attention import LayerKV

MARGIN = 0.9  # of what is free: kernels need workspace too
Key = tuple[int, bytes]  # serial number of the block before, and this block's tokens


class KVPool:
    """`layers` is what decoders read and write; empty while the memory is given back."""

    def __init__(self, shapes: Sequence[LayerShape], block_size: int, dtype: torch.dtype, device: torch.device):
        self.block_size, self.dtype, self.device = block_size, dtype, device
        self.shapes = list(shapes)
        self.blocks = 0  # that there are now
        self.block_bytes = sum(2 * self._elements(shape) for shape in shapes) * dtype.itemsize
        empty = torch.empty(0, dtype=dtype, device=device)
        self._addresses = torch.zeros(len(shapes), 2, dtype=torch.long, device=device)
        addresses = self._addresses if device.type == "cuda" else [None] * len(shapes)
        self.layers = [LayerKV(empty, empty, address) for address in addresses]

    def allocate(self, blocks: int) -> None:
        """Zeros, because what is masked is still multiplied by 0, and 0 × NaN is NaN."""
        self.release()  # the old memory first: there may not be room for both
        total = blocks * self.block_bytes
        if self.device.type == "cpu":  # numpy's take no memory until they are written to; torch writes them at once
            flat = torch.from_numpy(np.zeros(total, dtype=np.uint8)).view(self.dtype)
        else:
            flat = torch.zeros(total, dtype=torch.uint8, device=self.device).view(self.dtype)
        start = 0
        for layer, shape in zip(self.layers, self.shapes, strict=True):
            size = blocks * self._elements(shape)
            form = (blocks, self.block_size, shape.heads, shape.head_size)
            layer.keys = flat[start : start + size].view(form)
            layer.values = flat[start + size : start + 2 * size].view(form)
            start += 2 * size
        self.blocks = blocks
        places = [[layer.keys.data_ptr(), layer.values.data_ptr()] for layer in self.layers]
        self._addresses.copy_(torch.tensor(places))

    def release(self) -> None:
        for layer in self.layers:
            layer.keys = layer.values = torch.empty(0, dtype=self.dtype, device=self.device)
        self.blocks = 0
        self._addresses.zero_()  # rather an error than a write into what is now someone else's

    def clear(self) -> None:
        """Zeros again, after a failed step: nothing that is not a number may stay."""
        if self.device.type == "cpu":
            self.allocate(self.blocks)  # which writes nothing
            return
        for layer in self.layers:
            layer.keys.zero_()
            layer.values.zero_()

    def copy(self, sources: torch.Tensor, targets: torch.Tensor) -> None:
        """Blocks `sources` (n,) to blocks `targets` (n,), in every layer."""
        for layer in self.layers:
            layer.keys[targets] = layer.keys[sources]
            layer.values[targets] = layer.values[sources]

    def fitting_blocks(self, wanted: int, share: float) -> int:
        """At most `wanted`, and within `share` of the device's memory."""
        if self.device.type == "cuda" and self._room(share) < wanted * self.block_bytes:
            torch.cuda.empty_cache()  # what torch holds without using it counts as free
        return min(wanted, int(self._room(share) // self.block_bytes))

    def _room(self, share: float) -> float:
        if self.device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self.device)
            share *= torch.cuda.get_per_process_memory_fraction(self.device)  # below 1 where processes share it
            return min(share * total, MARGIN * free)
        return share * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def _elements(self, shape: LayerShape) -> int:
        return self.block_size * shape.heads * shape.head_size


class BlockManager:
    """Who has which blocks, and which of them hold a beginning that another sequence may share.

    A full block whose content is known (`remember`) is kept when nobody has it any more, and given away, the one that
    was released first, when no empty one is left. Content is known by its tokens and the block before, not by a hash: a
    match is never a mistake. Block 0 belongs to nobody; whatever has no place is written there."""

    def __init__(self, blocks: int, block_size: int, caching: bool = True):
        self.block_size = block_size
        self.total = blocks - 1
        self._caching = caching
        self._empty = list(range(blocks - 1, 0, -1))  # a stack
        self._holders = np.zeros(blocks, dtype=np.int32)
        self._kept: OrderedDict[int, None] = OrderedDict()  # nobody has them, but what they hold may be asked for
        self._found: dict[Key, int] = {}  # block by what it holds
        self._keys: dict[int, Key] = {}  # the other way round
        self._serials: dict[int, int] = {}  # of the blocks in `_keys`; never used twice
        self._next_serial = 1

    @property
    def free(self) -> int:
        return len(self._empty) + len(self._kept)

    @property
    def empty(self) -> int:
        """Blocks that can be taken and hold nothing worth keeping."""
        return len(self._empty)

    @property
    def used(self) -> int:
        return self.total - self.free

    @property
    def cached(self) -> int:
        return len(self._kept)

    def take(self, count: int) -> list[int]:
        """Blocks for one sequence to write in; the caller has seen that `free` suffices."""
        taken = []
        for _ in range(count):
            if self._empty:
                block = self._empty.pop()
            else:
                block, _ = self._kept.popitem(last=False)
                del self._found[self._keys.pop(block)], self._serials[block]
            self._holders[block] = 1
            taken.append(block)
        return taken

    def share(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self._holders[block] += 1
            self._kept.pop(block, None)

    def release(self, blocks: Sequence[int]) -> None:
        """One sequence has them no longer."""
        for block in reversed(blocks):  # a later block is of no use without those before it: it goes first
            self._holders[block] -= 1
            if self._holders[block] == 0:
                if block in self._keys:
                    self._kept[block] = None
                else:
                    self._empty.append(block)

    def match(self, tokens: np.ndarray) -> list[int]:
        """Blocks that hold the beginning of `tokens`. At least the last token is left out: its logits are wanted."""
        found: list[int] = []
        serial = 0
        for i in range((len(tokens) - 1) // self.block_size if self._caching else 0):
            block = self._found.get((serial, self._content(tokens, i)))
            if block is None:
                break
            found.append(block)
            serial = self._serials[block]
        return found

    def remember(self, tokens: np.ndarray, blocks: Sequence[int]) -> None:
        """`blocks` hold the keys and values of `tokens`, as far as these fill them."""
        serial = 0
        for i in range(len(tokens) // self.block_size if self._caching else 0):
            if blocks[i] not in self._keys:
                key = (serial, self._content(tokens, i))
                if (twin := self._found.get(key)) is not None:  # written twice: the first stays the one to share
                    serial = self._serials[twin]
                    continue
                self._found[key], self._keys[blocks[i]] = blocks[i], key
                self._serials[blocks[i]], self._next_serial = self._next_serial, self._next_serial + 1
            serial = self._serials[blocks[i]]

    def forget(self) -> None:
        """What blocks hold is no longer valid: the weights have changed."""
        self._empty += self._kept
        self._kept.clear()
        self._found.clear()
        self._keys.clear()
        self._serials.clear()

    def _content(self, tokens: np.ndarray, i: int) -> bytes:
        return tokens[i * self.block_size : (i + 1) * self.block_size].tobytes()
