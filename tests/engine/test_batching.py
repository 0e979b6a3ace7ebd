import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.engine.batching import MicroBatch, mini_batches


@given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=20), count=st.integers(1, 8), shuffle=st.booleans())
def test_mini_batches_hold_whole_groups_evenly(sizes, count, shuffle):
    groups = [g for g, size in enumerate(sizes) for _ in range(size)]
    parts = mini_batches(groups, count, shuffle=shuffle, seed=3)
    assert sorted(np.concatenate(parts)) == list(range(len(groups)))
    groups_of = [{groups[row] for row in part} for part in parts]
    assert sum(len(g) for g in groups_of) == len(sizes)  # no group in two parts
    counts = [len(g) for g in groups_of]
    assert len(parts) == min(count, len(sizes)) and max(counts) - min(counts) <= 1


def test_interleaved_groups_stay_whole_and_shuffle_depends_on_epoch_and_seed_only():
    parts = mini_batches(["a", "b", "a", "c", "b"], 2)
    assert [part.tolist() for part in parts] == [[0, 2, 1, 4], [3]]
    assert mini_batches([], 4) == []
    with pytest.raises(ValueError, match="count=0"):
        mini_batches([1], 0)

    def rows(**kw):
        return [part.tolist() for part in mini_batches(list(range(50)), 2, shuffle=True, **kw)]

    assert rows(seed=1, epoch=0) == rows(seed=1, epoch=0)
    assert rows(seed=1, epoch=0) != rows(seed=1, epoch=1)
    assert rows(seed=1, epoch=0) != rows(seed=2, epoch=0)


@given(
    lengths=st.lists(st.integers(1, 50), max_size=40),
    micro=st.builds(MicroBatch)
    | st.builds(MicroBatch, max_sequences=st.integers(1, 9))
    | st.builds(MicroBatch, max_tokens=st.integers(1, 400)),
)
def test_micro_batches_cover_all_rows_within_their_bound(lengths, micro):
    parts = micro.cut(lengths)
    assert sorted(row for part in parts for row in part) == list(range(len(lengths)))
    assert [part.tolist() for part in parts] == [part.tolist() for part in micro.cut(np.array(lengths))]
    for part in parts:
        assert len(part) and part.dtype == np.int64 and (np.diff(part) > 0).all()
        assert micro.max_sequences is None or len(part) <= micro.max_sequences
        assert micro.max_tokens is None or len(part) == 1 or sum(lengths[row] for row in part) <= micro.max_tokens
    if parts and micro == MicroBatch():
        assert len(parts) == 1


def test_cuts_by_count_keep_the_order_and_by_budget_are_even_with_the_heaviest_first():
    assert [p.tolist() for p in MicroBatch(max_sequences=2).cut([9, 1, 5])] == [[0, 1], [2]]
    assert [p.tolist() for p in MicroBatch().cut([9, 1, 5])] == [[0, 1, 2]]
    parts = MicroBatch(max_tokens=20).cut([1, 10, 2, 9, 3, 40])
    assert [p.tolist() for p in parts] == [[5], [0, 3, 4], [1, 2]]  # 40, 13 and 12 tokens
    lengths = [100] * 250 + [4096] + [100] * 250  # one long sequence is evened out by short ones
    parts = MicroBatch(max_tokens=16384).cut(lengths)
    tokens = [sum(lengths[row] for row in part) for part in parts]
    assert len(parts) == 4 and max(tokens) - min(tokens) < 1000  # 54,096 tokens; padded, it would take five parts
    assert MicroBatch.choose(True, 100, 4) == MicroBatch(max_tokens=100)
    assert MicroBatch.choose(False, 100, 4) == MicroBatch(max_sequences=4)
    assert MicroBatch.choose(False, 100, None) == MicroBatch()
