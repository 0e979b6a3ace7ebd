"""The KV pool: its size, its layout, and what giving it back leaves."""

import os

import pytest
import torch

from burnish.models.attention import LayerShape
from burnish.rollout.native.kv_pool import KVPool

SHAPES = [LayerShape(2, 8), LayerShape(1, 16)]


def pool(dtype=torch.float32):
    return KVPool(SHAPES, 4, dtype, torch.device("cpu"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layers_share_one_allocation_without_overlap_and_begin_as_zeros(dtype):
    made = pool(dtype)
    made.allocate(5)
    tensors = [tensor for layer in made.layers for tensor in (layer.keys, layer.values)]
    assert [tuple(tensor.shape) for tensor in tensors] == [(5, 4, 2, 8)] * 2 + [(5, 4, 1, 16)] * 2
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == 1
    assert sum(tensor.nbytes for tensor in tensors) == 5 * made.block_bytes == tensors[0].untyped_storage().nbytes()
    assert all(tensor.dtype is dtype and not tensor.any() for tensor in tensors)
    for number, tensor in enumerate(tensors, start=1):
        tensor.fill_(number)
    assert [tensor.unique().tolist() for tensor in tensors] == [[1], [2], [3], [4]]


def test_the_share_of_memory_bounds_the_blocks():
    made = pool()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert made.fitting_blocks(10, share=0.5) == 10
    assert made.fitting_blocks(10**12, share=0.25) == int(0.25 * memory // made.block_bytes)


def test_blocks_are_copied_in_every_layer():
    made = pool()
    made.allocate(4)
    for layer in made.layers:
        layer.keys[1], layer.values[1] = 3.0, 5.0
    made.copy(torch.tensor([1]), torch.tensor([2]))
    for layer in made.layers:
        assert (layer.keys[2] == 3).all() and (layer.values[2] == 5).all() and not layer.keys[3].any()


def test_release_gives_the_memory_back():
    made = pool()
    made.allocate(4)
    made.release()
    assert all(layer.keys.numel() == layer.values.numel() == 0 for layer in made.layers)
    made.allocate(3)
    assert made.layers[0].keys.shape[0] == 3
