"""What is handed out: admission in order, pieces of prompts, forks, growth, preemption, dense rows, gathering."""

from types import SimpleNamespace

import numpy as np

from burnish.rollout.admission import RequestState
from burnish.rollout.base import Sampling
from burnish.rollout.native.kv_pool import BlockManager
from burnish.rollout.native.runner import batch_size
from burnish.rollout.native.scheduler import Scheduler
from burnish.rollout.native.state import History, Sequence


def make(blocks=33, rows=8, tokens=64, **options):
    return Scheduler(BlockManager(blocks, 4), History(), max_rows=rows, batched_tokens=tokens, **options)


def add(scheduler, place, prompt, limit=6):
    future = SimpleNamespace(done=lambda: False)
    request = RequestState(str(place), prompt, Sampling(), limit, frozenset(), None, future)
    sequence = Sequence(request, np.asarray(prompt, dtype=np.int64), ((place,), 0))
    scheduler.add(sequence)
    return sequence


def land(scheduler, sequences, token=9):
    """What the device sampled is known."""
    for sequence in sequences:
        scheduler.history.append(np.array([sequence.slot]), np.array([token]), np.array([-1.0]))


def test_a_long_prompt_is_read_in_chunks_while_others_continue():
    scheduler = make(tokens=10)
    short, long = add(scheduler, 1, [1, 2, 3]), add(scheduler, 2, list(range(25)))
    pieces = []
    for _ in range(3):
        work = scheduler.prefill()
        pieces.append([(chunk.sequence is long, chunk.start, chunk.stop) for chunk in work.chunks])
        assert scheduler.decode().rows.tolist() == ([0, 1] if long in work.sampled else [0])
        land(scheduler, [short])
    assert pieces == [[(False, 0, 3), (True, 0, 7)], [(True, 7, 17)], [(True, 17, 25)]]
    assert scheduler.prefill() is None


def test_without_pieces_a_prompt_waits_until_it_fits_or_is_alone():
    scheduler = make(tokens=10, chunked=False)
    add(scheduler, 1, [1, 2, 3])
    long = add(scheduler, 2, list(range(25)))
    assert len(scheduler.prefill().chunks) == 1
    assert [(c.start, c.stop) for c in scheduler.prefill().chunks] == [(0, 25)] and long.row is not None


def test_rows_grow_by_all_they_need_where_there_is_plenty_and_by_one_block_where_there_is_not():
    for blocks, gets in ((100, 4), (6, 1)):
        scheduler = make(blocks=blocks)
        add(scheduler, 1, [1, 2, 3, 4], limit=16)
        add(scheduler, 2, [5, 6, 7, 8], limit=16)
        scheduler.prefill()
        assert [len(new) for _, column, new in scheduler.decode().grown if column == 1] == [gets, gets]


def test_without_a_block_the_youngest_gives_way_and_comes_back_with_what_it_had():
    scheduler = make(blocks=5, rows=2)
    old, young = add(scheduler, 1, [1, 2, 3, 4], limit=12), add(scheduler, 2, [5, 6, 7, 8], limit=12)
    scheduler.prefill()
    land(scheduler, [old, young])
    for _ in range(4):
        assert scheduler.decode() is not None
        land(scheduler, [old, young])
    assert scheduler.decode() is None and scheduler.has_work
    scheduler.preempt()
    assert (young.row, young.blocks, scheduler.waiting, scheduler.preemptions) == (None, [], 1, 1)
    assert scheduler.prefill() is None  # the block is for the one that runs
    assert scheduler.decode().rows.tolist() == [old.row]
    land(scheduler, [old])
    scheduler.end(old)
    (chunk,) = scheduler.prefill().chunks
    assert chunk.sequence is young and chunk.tokens.tolist() == [5, 6, 7, 8, 9, 9, 9, 9, 9]


def test_rows_are_moved_into_holes_when_the_batch_gets_smaller_by_it():
    scheduler = make(rows=16, batch_size=lambda rows: -(-rows // 4) * 4)
    sequences = [add(scheduler, place, [place]) for place in range(9)]
    scheduler.prefill()
    assert scheduler.decode().size == 12
    scheduler.end(sequences[2])
    work = scheduler.decode()
    assert work.moves == [(8, 2)] and work.size == 8 and sequences[8].row == 2 and work.stopped == [2]
    scheduler.end(sequences[0])
    assert scheduler.decode().moves == []  # seven rows are run as eight


def test_prompts_are_gathered_while_rows_run():
    scheduler = make(rows=32, gather=3)
    add(scheduler, 1, [1], limit=50)
    assert scheduler.prefill() is not None
    add(scheduler, 2, [2])
    for _ in range(3):
        assert scheduler.prefill() is None and scheduler.decode() is not None
    add(scheduler, 3, [3])
    assert len(scheduler.prefill().sampled) == 2


def test_a_full_batch_lets_in_when_a_sixteenth_is_free_and_never_waits_with_nothing_to_do():
    scheduler = make(blocks=400, rows=32, gather=1)
    sequences = [add(scheduler, place, [place], limit=50) for place in range(40)]
    scheduler.prefill()
    for leaving in (0, 1):
        scheduler.decode(), scheduler.decode()
        assert scheduler.prefill() is None
        scheduler.end(sequences[leaving])
    assert len(scheduler.prefill().sampled) == 2
    for sequence in sequences[2:34]:
        scheduler.end(sequence)
    assert len(scheduler.prefill().sampled) == 6


def test_sizes_of_batches():
    sizes = sorted({batch_size(rows) for rows in range(1, 1025)})
    assert sizes[:6] == [1, 2, 4, 8, 16, 24] and sizes[-1] == 1024 and len(sizes) < 40
    assert all(rows <= batch_size(rows) <= max(2 * rows, 1) for rows in range(1, 3000))
