"""Blocks: taken, shared, kept for what they hold, given away when there is no other, and never lost."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.rollout.native.block_manager import BlockManager


def manager(blocks=9, **options):
    return BlockManager(blocks, 4, **options)


def tokens(*values):
    return np.array(values, dtype=np.int64)


def test_block_0_belongs_to_nobody():
    blocks = manager(5)
    assert blocks.total == blocks.free == 4
    assert sorted(blocks.take(4)) == [1, 2, 3, 4] and blocks.free == 0 and blocks.used == 4


def test_a_beginning_is_found_as_far_as_whole_blocks_hold_it_and_the_last_token_is_left():
    blocks = manager()
    first = blocks.take(3)
    blocks.remember(tokens(*range(10)), first)  # the third block is not full
    assert blocks.match(tokens(*range(12))) == first[:2]
    assert blocks.match(tokens(*range(9))) == first[:2]
    assert blocks.match(tokens(*range(8))) == first[:1]  # the logits after its last token are wanted
    assert blocks.match(tokens(0, 1, 2, 3, 9, 9, 9, 9, 9)) == first[:1]
    assert blocks.match(tokens(4, 5, 6, 7, 8)) == []  # the same tokens, but after others


def test_what_nobody_has_is_kept_until_no_empty_block_is_left_and_the_end_goes_first():
    blocks = manager(5)
    old = blocks.take(3)
    blocks.remember(tokens(*range(12)), old)
    blocks.release(old)
    assert (blocks.free, blocks.cached, blocks.empty, blocks.used) == (4, 3, 1, 0)
    blocks.take(2)  # the empty one, then the last block of the sequence
    assert blocks.match(tokens(*range(13))) == old[:2]
    blocks.take(2)
    assert blocks.match(tokens(*range(13))) == [] and blocks.cached == 0


def test_a_shared_block_is_free_when_the_last_holder_leaves():
    blocks = manager()
    mine = blocks.take(1)
    blocks.share(mine)
    blocks.release(mine)
    assert blocks.used == 1
    blocks.release(mine)
    assert blocks.used == 0


def test_sharing_a_kept_block_takes_it_from_those_that_may_go():
    blocks = manager(3)
    old = blocks.take(1)
    blocks.remember(tokens(1, 2, 3, 4), old)
    blocks.release(old)
    blocks.share(blocks.match(tokens(1, 2, 3, 4, 5)))
    assert blocks.cached == 0 and blocks.free == 1 and blocks.take(1) != old


def test_what_was_written_twice_is_shared_once():
    blocks = manager()
    one, two = blocks.take(2), blocks.take(2)
    for held in (one, two):
        blocks.remember(tokens(*range(8)), held)
    assert blocks.match(tokens(*range(9))) == one
    blocks.release(two)
    assert blocks.cached == 0  # nothing would ever find them


def test_forgetting_leaves_blocks_to_their_holders():
    blocks = manager()
    kept, mine = blocks.take(1), blocks.take(1)
    blocks.remember(tokens(1, 2, 3, 4), kept)
    blocks.remember(tokens(5, 6, 7, 8), mine)
    blocks.release(kept)
    blocks.forget()
    assert blocks.match(tokens(5, 6, 7, 8, 9)) == [] and blocks.cached == 0 and blocks.used == 1
    blocks.release(mine)
    assert blocks.free == blocks.total and blocks.cached == 0


def test_without_caching_nothing_is_kept():
    blocks = manager(caching=False)
    mine = blocks.take(2)
    blocks.remember(tokens(*range(8)), mine)
    assert blocks.match(tokens(*range(9))) == []
    blocks.release(mine)
    assert blocks.empty == blocks.total


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 14)), max_size=60))
def test_no_block_is_lost_or_given_twice(steps):
    """Sequences over an alphabet of one token per stem come and go; those that match share."""
    blocks = manager(12)
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
