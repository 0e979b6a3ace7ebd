"""The memory of keys and values: blocks of S tokens, for every layer, in one allocation.

`fitting_blocks` says how many blocks there may be: what the engine can use at all, within its share of the device's
memory and, on a GPU, what is free of it (on a CPU memory is taken as it is written to). `release` gives the memory back
and `allocate` takes it again, perhaps at another address; kernels read the address from the device, so captured graphs
keep working.
"""

import math
import os
from collections.abc import Sequence

import numpy as np
import torch

from burnish.models.attention import LayerShape
from burnish.ops.paged_attention import LayerKV

MARGIN = 0.9  # of what is free: kernels need workspace too


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
        flat = self._zeros(blocks * self.block_bytes).view(self.dtype)
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
            return min(share * total, MARGIN * free)
        return share * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def _zeros(self, size: int) -> torch.Tensor:
        if self.device.type == "cpu":  # numpy's take no memory until they are written to; torch writes them at once
            return torch.from_numpy(np.zeros(size, dtype=np.uint8))
        return torch.zeros(size, dtype=torch.uint8, device=self.device)

    def _elements(self, shape: LayerShape) -> int:
        """Of the keys of one block."""
        return math.prod((self.block_size, shape.heads, shape.head_size))
