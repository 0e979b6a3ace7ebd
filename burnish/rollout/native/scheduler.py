"""What runs next: which prompts are read, which rows of the decode batch continue, who gets blocks and who must wait.

Issues work for the runner: `Prefill`, a line of prompt tokens of several sequences, and `Decode`, one token for every
row. On a GPU it runs later, and what it sampled is known later still. So the scheduler counts a row's position by what
it has issued, and a row that has ended without the host knowing is an idle one.

- Where a short prefill costs as much as a long one (on a GPU, by its launches), `gather` steps pass between two of
  them, and a full batch lets others in when a sixteenth of it is free: several prompts are then read at once.
- Sequences with the same tokens that are admitted together are read once: the others are `forks` of the first and
  share its blocks; only the last, which is not full, is copied.
- Blocks are given out as rows grow, in fair shares of what is empty: all that a row can need where there is plenty, one
  at a time where there is not. Without a free block, the youngest sequence goes back to the queue (`preempt`).
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from burnish.rollout.native.kv_pool import BlockManager
from burnish.rollout.native.state import History, Sequence


@dataclass
class Chunk:
    """Tokens `start` to `stop` of a sequence. When they reach its end, it and its forks sample their next token."""

    sequence: Sequence
    tokens: np.ndarray  # all that the sequence has so far
    start: int
    stop: int
    forks: list[Sequence] = field(default_factory=list)

    @property
    def is_last(self) -> bool:
        return self.stop == len(self.tokens)


@dataclass
class Prefill:
    chunks: list[Chunk] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)  # blocks to copy once the line has been computed
    sampled: list[Sequence] = field(default_factory=list)  # in the order of chunks and their forks
    stopped: list[int] = field(default_factory=list)  # rows that end before

    @property
    def token_count(self) -> int:
        return sum(chunk.stop - chunk.start for chunk in self.chunks)


@dataclass
class Decode:
    rows: np.ndarray  # (n,) those that sample a token
    stopped: list[int]  # rows that end before
    moves: list[tuple[int, int]]  # rows to copy before, from and to
    grown: list[tuple[int, int, list[int]]]  # row, column, blocks to write into its table before
    size: int  # rows 0 to size are run
    truncates: bool  # whether some sample from less than the whole distribution


class Scheduler:
    def __init__(
        self,
        blocks: BlockManager,
        history: History,
        *,
        max_rows: int,
        batched_tokens: int,
        chunked: bool = True,
        gather: int = 0,
        batch_size: Callable[[int], int] = lambda rows: rows,
    ):
        self.blocks, self.history = blocks, history
        self.max_rows, self.batched_tokens, self.chunked = max_rows, batched_tokens, chunked
        self.gather = gather
        self.batch_size = batch_size  # how many rows are run when so many are live
        self.preemptions = self.shared_tokens = self.reused_tokens = 0
        self._stopped: list[int] = []  # rows that the device must drop, with the next work
        self._waiting: list[tuple[tuple[tuple[int, ...], int], Sequence]] = []  # a heap
        self._reading: list[Sequence] = []  # admitted, with tokens yet to be computed
        self._sequences = np.full(max_rows, None, dtype=object)  # by row
        self._next = np.zeros(max_rows, dtype=np.int64)  # position of the token that the row is fed next
        self._left = np.zeros(max_rows, dtype=np.int64)  # tokens that may still be asked of it
        self._capacity = np.zeros(max_rows, dtype=np.int64)  # tokens that its blocks hold
        self._slots = np.zeros(max_rows, dtype=np.int64)  # in the history
        self._watched = np.zeros(max_rows, dtype=bool)
        self._truncates = np.zeros(max_rows, dtype=bool)
        self._free_rows = list(range(max_rows))  # a heap
        self._top = 0  # rows 0 to top have been used
        self._rest = 0  # steps until the next prefill

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return self.max_rows - len(self._free_rows) + len(self._reading)

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._reading or (self._left[: self._top] > 0).any())

    def about(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Whose they are, their slots of the history, and whether the host must look at each of their tokens."""
        return self._sequences[rows], self._slots[rows], self._watched[rows]

    def add(self, sequence: Sequence) -> None:
        heapq.heappush(self._waiting, (sequence.place, sequence))

    def tokens(self, sequence: Sequence) -> np.ndarray:
        if sequence.slot < 0 or not self.history.counts[sequence.slot]:
            return sequence.prompt
        return np.concatenate([sequence.prompt, self.history.tokens(sequence.slot)])

    # Prefill

    def prefill(self) -> Prefill | None:
        """The next line of prompt tokens, if there are any to read and it is time."""
        if self._gathers():
            return None
        budget = self.batched_tokens
        work = Prefill()
        for sequence in self._reading:
            budget -= self._read(work, sequence, self.tokens(sequence), budget)
        admitted = forked = 0
        leaders = {chunk.tokens.tobytes(): chunk for chunk in work.chunks if chunk.is_last}
        while budget > 0 and self._waiting and len(self._free_rows) > len(self._reading) + forked:
            sequence = self._waiting[0][1]
            tokens = self.tokens(sequence)
            leader = leaders.get(tokens.tobytes())
            reserve = self._reserve() + admitted
            if leader is not None:
                if not self._fork(work, leader, sequence, reserve):
                    break
                forked += 1
            elif not self._admit(sequence, tokens, reserve, budget if work.chunks else None):
                break
            else:
                budget -= self._read(work, sequence, tokens, budget)
                if work.chunks[-1].is_last:
                    leaders[tokens.tobytes()] = work.chunks[-1]
            heapq.heappop(self._waiting)
            if sequence.slot < 0:  # which it keeps if it is preempted
                sequence.slot = self.history.take(sequence.request.limit)
            admitted += 1
        for chunk in work.chunks:
            if chunk.is_last:
                self._reading.remove(chunk.sequence)
                for sequence in (chunk.sequence, *chunk.forks):
                    self._seat(sequence, len(chunk.tokens))
                    work.sampled.append(sequence)
        if not work.chunks:
            return None
        if 2 * work.token_count < self.batched_tokens:
            self._rest = self.gather
        work.stopped, self._stopped = self._stopped, []
        return work

    def _gathers(self) -> bool:
        """Whether it is better to wait for more prompts; never where no row would run meanwhile."""
        if not self.gather or self._reading or not (self._left[: self._top] > 0).any():
            return False
        is_full = len(self._free_rows) < min(len(self._waiting), self.max_rows // 16)
        return is_full or self._rest > 0

    def _admit(self, sequence: Sequence, tokens: np.ndarray, reserve: int, budget: int | None) -> bool:
        """Give it its blocks, if so many are left besides. A `budget` holds where it would not be alone on the line."""
        found = self.blocks.match(tokens)
        rest = len(tokens) - len(found) * self.blocks.block_size
        if budget is not None and rest > budget and not self.chunked:
            return False
        needed = self._blocks_for(len(tokens)) - len(found)
        self.blocks.share(found)
        if self.blocks.free - needed < reserve:
            self.blocks.release(found)
            return False
        sequence.blocks = found + self.blocks.take(needed)
        sequence.computed = len(found) * self.blocks.block_size
        self.reused_tokens += sequence.computed
        self._reading.append(sequence)
        return True

    def _fork(self, work: Prefill, leader: Chunk, sequence: Sequence, reserve: int) -> bool:
        whole, rest = divmod(len(leader.tokens), self.blocks.block_size)
        if self.blocks.free - bool(rest) < reserve:
            return False
        sequence.blocks = leader.sequence.blocks[:whole]
        self.blocks.share(sequence.blocks)
        if rest:
            sequence.blocks += self.blocks.take(1)
            work.copies.append((leader.sequence.blocks[whole], sequence.blocks[whole]))
        sequence.computed = len(leader.tokens)
        leader.forks.append(sequence)
        self.shared_tokens += len(leader.tokens)
        return True

    def _read(self, work: Prefill, sequence: Sequence, tokens: np.ndarray, budget: int) -> int:
        """Put its next tokens on the line; how many."""
        count = len(tokens) - sequence.computed
        if self.chunked:
            count = min(count, budget)
        if count <= 0:
            return 0
        work.chunks.append(Chunk(sequence, tokens, sequence.computed, sequence.computed + count))
        sequence.computed += count
        self.blocks.remember(tokens[: sequence.computed], sequence.blocks)
        return count

    def _seat(self, sequence: Sequence, length: int) -> None:
        """A row, for a sequence whose `length` tokens are computed; the next is sampled in the same pass."""
        row = sequence.row = heapq.heappop(self._free_rows)
        self._top = max(self._top, row + 1)
        self._sequences[row] = sequence
        self._next[row] = length
        self._left[row] = len(sequence.prompt) + sequence.request.limit - length - 1
        self._capacity[row] = len(sequence.blocks) * self.blocks.block_size
        self._slots[row] = sequence.slot
        self._watched[row] = sequence.watched
        self._truncates[row] = sequence.request.sampling.truncates

    def _reserve(self) -> int:
        """Blocks to leave for rows that have yet to grow."""
        rows = slice(0, self._top)
        return int(np.count_nonzero(self._next[rows] + self._left[rows] > self._capacity[rows]))

    # Decode

    def decode(self) -> Decode | None:
        """One token for every row that may have another. None where no row may, or where `preempt` must come first."""
        rows = np.flatnonzero(self._left[: self._top] > 0)
        if not len(rows) or np.count_nonzero(self._next[rows] >= self._capacity[rows]) > self.blocks.free:
            return None
        moves = self._compact()
        if moves:
            rows = np.flatnonzero(self._left[: self._top] > 0)
        grown = self._grow(rows)
        self._rest -= 1
        self._next[rows] += 1
        self._left[rows] -= 1
        stopped, self._stopped = self._stopped, []
        return Decode(rows, stopped, moves, grown, self.batch_size(self._top), bool(self._truncates[rows].any()))

    def preempt(self) -> None:
        """Send the youngest sequence back to the queue. Only when nothing that was issued is still running."""
        youngest = max([*self._live(), *self._reading], key=lambda sequence: sequence.place)
        tokens = self.tokens(youngest)
        self._leave(youngest, tokens[: youngest.computed if youngest.row is None else len(tokens) - 1])
        self.preemptions += 1
        self.add(youngest)

    def preempt_all(self) -> None:
        """The same for all that run; each keeps its place in the queue."""
        for sequence in self._drop_all():
            self.add(sequence)

    def end(self, sequence: Sequence) -> None:
        """It is done: its blocks are free, and what they hold may be shared."""
        tokens = self.tokens(sequence)
        self._leave(sequence, tokens[: len(tokens) - 1])

    def drop(self, sequence: Sequence) -> None:
        if sequence.row is not None or sequence in self._reading:
            self._leave(sequence, sequence.prompt[: sequence.computed])
        else:
            self._waiting = [entry for entry in self._waiting if entry[1] is not sequence]
            heapq.heapify(self._waiting)

    def reset(self) -> None:
        self._drop_all()
        self._waiting = []

    def _drop_all(self) -> list[Sequence]:
        dropped = [*self._live(), *self._reading]
        for sequence in dropped:
            self._leave(sequence, sequence.prompt[:0])
        return dropped

    def _leave(self, sequence: Sequence, held: np.ndarray) -> None:
        self.blocks.remember(held, sequence.blocks)
        self.blocks.release(sequence.blocks)
        sequence.blocks, sequence.computed = [], 0
        if sequence.row is None:
            self._reading.remove(sequence)
            return
        self._stopped.append(sequence.row)
        self._clear(sequence.row)
        sequence.row = None

    def _clear(self, row: int) -> None:
        self._sequences[row] = None
        self._left[row] = self._next[row] = self._capacity[row] = 0
        self._watched[row] = self._truncates[row] = False
        heapq.heappush(self._free_rows, row)
        while self._top and self._sequences[self._top - 1] is None:
            self._top -= 1

    def _live(self) -> list[Sequence]:
        return [sequence for sequence in self._sequences[: self._top] if sequence is not None]

    def _compact(self) -> list[tuple[int, int]]:
        """Move the last rows into holes, where the batch gets smaller by it."""
        live = self.max_rows - len(self._free_rows)
        moves: list[tuple[int, int]] = []
        if self.batch_size(live) == self.batch_size(self._top):
            return moves
        while self._top > live:
            target, source = heapq.heappop(self._free_rows), self._top - 1
            sequence = self._sequences[target] = self._sequences[source]
            sequence.row = target
            for values in (self._next, self._left, self._capacity, self._slots, self._watched, self._truncates):
                values[target] = values[source]
            moves.append((source, target))
            self._clear(source)
        return moves

    def _grow(self, rows: np.ndarray) -> list[tuple[int, int, list[int]]]:
        grown = []
        for row in rows[self._next[rows] >= self._capacity[rows]].tolist():
            sequence = self._sequences[row]
            share = self.blocks.empty // (self.running + self.waiting)
            wanted = self._blocks_for(self._next[row] + self._left[row]) - len(sequence.blocks)
            new = self.blocks.take(min(wanted, max(share, 1)))
            grown.append((row, len(sequence.blocks), new))
            sequence.blocks += new
            self._capacity[row] = len(sequence.blocks) * self.blocks.block_size
        return grown

    def _blocks_for(self, tokens: int) -> int:
        return -(-int(tokens) // self.blocks.block_size)
