import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.engine.batching import MicroBatch, mini_batches
from burnish.engine.packing import pack


@given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=20), count=st.integers(1, 8), shuffle=st.booleans())
def test_mini_batches_hold_whole_groups_evenly(sizes, count, shuffle):
    groups = [g for g, size in enumerate(sizes) for _ in range(size)]
    parts = mini_batches(groups, count, shuffle=shuffle, seed=3)
    assert sorted(np.concatenate(parts)) == list(range(len(groups)))
    groups_of = [{groups[row] for row in part} for part in parts]
    assert sum(len(g) for g in groups_of) == len(sizes)  # no group in two parts
    counts = [len(g) for g in groups_of]
    assert len(parts) == min(count, len(sizes)) and max(counts) - min(counts) <= 1


def test_interleaved_groups_stay_whole():
    parts = mini_batches(["a", "b", "a", "c", "b"], 2)
    assert [part.tolist() for part in parts] == [[0, 2, 1, 4], [3]]


def test_shuffle_depends_on_epoch_and_seed_only():
    def rows(**kw):
        return [part.tolist() for part in mini_batches(list(range(50)), 2, shuffle=True, **kw)]

    assert rows(seed=1, epoch=0) == rows(seed=1, epoch=0)
    assert rows(seed=1, epoch=0) != rows(seed=1, epoch=1)
    assert rows(seed=1, epoch=0) != rows(seed=2, epoch=0)


def test_an_empty_batch_has_no_mini_batches():
    assert mini_batches([], 4) == []
    with pytest.raises(ValueError, match="count=0"):
        mini_batches([1], 0)


@given(
    lengths=st.lists(st.integers(1, 50), max_size=40),
    max_sequences=st.none() | st.integers(1, 9),
    max_tokens=st.none() | st.integers(1, 400),
)
def test_micro_batches_cover_all_rows_within_the_bounds(lengths, max_sequences, max_tokens):
    parts = MicroBatch(max_sequences, max_tokens).cut(lengths)
    assert sorted(row for part in parts for row in part) == list(range(len(lengths)))
    for part in parts:
        assert len(part) and (max_sequences is None or len(part) <= max_sequences)
        padded = len(part) * max(lengths[row] for row in part)  # what a pass over the part really computes
        assert max_tokens is None or len(part) == 1 or padded <= max_tokens


def test_one_long_sequence_does_not_stretch_many_short_ones():
    lengths = [100] * 250 + [4096] + [100] * 250
    parts = MicroBatch(max_tokens=16384).cut(lengths)
    assert [len(part) * max(lengths[row] for row in part) for part in parts[:-1]] == [16384, 16300, 16300, 16300]
    assert [len(part) for part in parts] == [4, 163, 163, 163, 8]


def test_cut_by_count_keeps_the_order():
    assert [p.tolist() for p in MicroBatch(max_sequences=2).cut([9, 1, 5])] == [[0, 1], [2]]
    assert [p.tolist() for p in MicroBatch().cut([9, 1, 5])] == [[0, 1, 2]]


def test_cut_by_budget_puts_like_lengths_together():
    parts = MicroBatch(max_tokens=20).cut([1, 10, 2, 9, 3, 40])
    assert [p.tolist() for p in parts] == [[5], [1, 3], [0, 2, 4]]


def test_a_budget_holds_what_the_forward_pass_pads_to(batch):
    for rows in MicroBatch(max_tokens=25).cut(batch.batch["attention_mask"].sum(-1).tolist()):
        padded, _ = pack(batch[rows].batch).padded()
        assert padded.numel() <= 25
