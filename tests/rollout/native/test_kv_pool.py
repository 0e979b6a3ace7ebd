"""The KV pool: its size; and its blocks: taken, shared, kept, never lost."""

import os

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.models.attention import LayerShape
from burnish.rollout.native.kv_pool import BlockManager, KVPool


def test_the_share_of_memory_bounds_the_blocks():
    made = KVPool([LayerShape(2, 8), LayerShape(1, 16)], 4, torch.float32, torch.device("cpu"))
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert made.fitting_blocks(10, share=0.5) == 10
    assert made.fitting_blocks(10**12, share=0.25) == int(0.25 * memory // made.block_bytes)


# Who has which blocks


def test_what_nobody_has_is_kept_until_no_empty_block_is_left_and_the_end_goes_first():
    blocks = BlockManager(5, 4)
    assert blocks.total == blocks.free == 4, "block 0 belongs to nobody"
    old = blocks.take(3)
    blocks.remember(np.arange(12), old)
    blocks.release(old)
    assert (blocks.free, blocks.cached, blocks.empty, blocks.used) == (4, 3, 1, 0)
    blocks.take(2)  # the empty one, then the last block of the sequence
    assert blocks.match(np.arange(13)) == old[:2]
    blocks.take(2)
    assert blocks.match(np.arange(13)) == [] and blocks.cached == 0


def test_what_was_written_twice_is_shared_once():
    blocks = BlockManager(9, 4)
    one, two = blocks.take(2), blocks.take(2)
    for held in (one, two):
        blocks.remember(np.arange(8), held)
    assert blocks.match(np.arange(9)) == one
    blocks.release(two)
    assert blocks.cached == 0  # nothing would ever find them


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 14)), max_size=60))
def test_no_block_is_lost_or_given_twice(steps):
    """Sequences over an alphabet of one token per stem come and go; those that match share."""
    blocks = BlockManager(12, 4)
    running: list[tuple[np.ndarray, list[int]]] = []
    for stem, length in steps:
        line = np.full(length, stem)
        found = blocks.match(line)
        needed = -(-length // 4) - len(found)
        blocks.share(found)
        if blocks.free < needed:
            blocks.release(found)
            if running:
                blocks.release(running.pop(0)[1])
            continue
        own = found + blocks.take(needed)
        blocks.remember(line, own)
        running.append((line, own))
        held = {block for _, held in running for block in held}
        assert 0 not in held and blocks.used == len(held)
        for other, theirs in running:  # a block is shared only where the tokens agree up to its end
            for i, (a, b) in enumerate(zip(own, theirs, strict=False)):
                assert a != b or (other[: 4 * i + 4] == line[: 4 * i + 4]).all()
    for _, own in running:
        blocks.release(own)
    assert blocks.used == 0
    blocks.forget()
    assert blocks.empty == blocks.total
