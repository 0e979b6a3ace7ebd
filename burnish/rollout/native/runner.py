"""Runs what the scheduler issues: from host arrays to kernels, and from sampled tokens back to a `Flight`.

A prefill computes a packed line of prompt tokens and samples for the sequences that are complete; a decode step feeds
every row its newest token. Both leave their results in the decode state, where the next step finds them. On a GPU all
of this is queued and the host continues; decode steps are replayed graphs.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from burnish.models.decoders import Decoder
from burnish.ops.paged_attention import Paged
from burnish.ops.sampling import STOPS, sample_and_advance
from burnish.rollout.native.flight import DeviceFlight, Flight, HostFlight
from burnish.rollout.native.graphs import Graphs
from burnish.rollout.native.kv_pool import KVPool
from burnish.rollout.native.scheduler import Chunk, Decode, Prefill
from burnish.rollout.native.sequence import History, Sequence
from burnish.rollout.native.state import DecodeState, NewRows, upload


@dataclass(frozen=True)
class Line:
    """A packed line of prompt tokens as host arrays; T tokens of B chunks, of which n are sampled from."""

    ids: np.ndarray  # (T,)
    positions: np.ndarray  # (T,)
    slots: np.ndarray  # (T,)
    tables: np.ndarray  # (B, m)
    lengths: np.ndarray  # (B,)
    starts: np.ndarray  # (B+1,)
    keep: np.ndarray  # (k,) tokens whose logits are wanted
    source: np.ndarray  # (n,) for each sampled sequence, which of them

    @classmethod
    def of(cls, chunks: list[Chunk], block_size: int) -> "Line":
        positions = [np.arange(chunk.start, chunk.stop) for chunk in chunks]
        blocks = [np.asarray(chunk.sequence.blocks) for chunk in chunks]
        used = [-(-chunk.stop // block_size) for chunk in chunks]
        tables = np.zeros((len(chunks), max(used)), dtype=np.int64)
        for i, count in enumerate(used):
            tables[i, :count] = blocks[i][:count]
        places = zip(positions, blocks, strict=True)
        starts = np.cumsum([0, *(chunk.stop - chunk.start for chunk in chunks)])
        last = [i for i, chunk in enumerate(chunks) if chunk.is_last]
        return cls(
            ids=np.concatenate([chunk.tokens[chunk.start : chunk.stop] for chunk in chunks]),
            positions=np.concatenate(positions),
            slots=np.concatenate([b[p // block_size] * block_size + p % block_size for p, b in places]),
            tables=tables,
            lengths=np.array([chunk.stop for chunk in chunks]),
            starts=starts,
            keep=starts[1:][last] - 1 if last else np.zeros(1, dtype=np.int64),  # never none: a matrix needs a row
            source=np.repeat(np.arange(len(last)), [1 + len(chunks[i].forks) for i in last]),
        )


class Runner:
    def __init__(self, decoder: Decoder, pool: KVPool, *, max_rows: int, context: int, graphs: bool):
        self.decoder, self.pool, self.device = decoder, pool, pool.device
        self.context = context
        self._on_gpu = pool.device.type == "cuda"
        self.state = DecodeState(max_rows, -(-context // pool.block_size), pool.device)
        self._graphs = Graphs(self.state) if graphs and self._on_gpu else None

    def prefill(self, work: Prefill, stopped: list[int], history: History) -> Flight:
        line = Line.of(work.chunks, self.pool.block_size)
        new = _new_rows(work.sampled, history) if work.sampled else None
        truncates = any(sequence.request.sampling.truncates for sequence in work.sampled)
        copies = np.asarray(work.copies, dtype=np.int64).reshape(-1, 2)
        longest_query = max(chunk.stop - chunk.start for chunk in work.chunks)

        def run() -> Tensor:
            self.state.stop(stopped)
            index = self.state.fill(new) if new is not None else None
            logits, source = self._read(line, longest_query)
            if len(copies):
                self.pool.copy(*upload(self.device, *copies.T))
            if index is not None:
                sample_and_advance(logits, self.state.rows, index, source, truncates)
            return self.state.rows.out

        return self._fly(run)

    def decode(self, work: Decode, stopped: list[int]) -> Flight:
        def run() -> Tensor:
            self.state.stop(stopped)
            self.state.move(work.moves)
            self.state.extend(work.grown)
            if work.truncates:
                self._call("truncated step", self._truncated_step, work.size)
            else:
                self._call("step", self._step, work.size)
            return self.state.rows.out

        return self._fly(run)

    def forget_graphs(self) -> None:
        """Give their memory back; steps are not replayed any more."""
        self._graphs = None

    def teacher_forced(self, ids: np.ndarray, blocks: list[int], prompt: int) -> Tensor:
        """Logits (n, V) after each of `ids` (n,): the first `prompt` read at once, the others fed one by one to row 0.

        For the canary: it takes the same ways as generation does. The state's rows are idle before and after.
        """
        with torch.inference_mode(), torch.cuda.device(self.device) if self._on_gpu else nullcontext():
            return self._teacher_forced(ids, blocks, prompt)

    def _teacher_forced(self, ids: np.ndarray, blocks: list[int], prompt: int) -> Tensor:
        places = np.arange(prompt)
        table = np.asarray(blocks, dtype=np.int64)
        slots = table[places // self.pool.block_size] * self.pool.block_size + places % self.pool.block_size
        line = Line(ids[:prompt], places, slots, table[None], np.array([prompt]), np.array([0, prompt]), places, places)
        parts = [self._read(line, prompt)[0]]
        rows = self.state.rows
        self.state.tables[0, : len(table)] = upload(self.device, table)[0].int()
        for position in range(prompt, len(ids)):
            rows.ids[0], rows.positions[0], rows.left[0] = int(ids[position]), position, 1
            logits = self._call("logits", self.logits, 1)
            parts.append(logits.clone())
        rows.left[0] = 0
        return torch.cat(parts)

    def logits(self, size: int) -> Tensor:
        """Logits (size, V) after the newest token of each row, which is stored. Those of idle rows mean nothing."""
        rows, tables = self.state.first(size)
        active, block_size = rows.left > 0, self.pool.block_size
        block = tables.gather(1, (rows.positions // block_size)[:, None])[:, 0]
        slots = torch.where(active, block * block_size + rows.positions % block_size, 0)
        lengths = torch.where(active, rows.positions + 1, 1).int()
        where = Paged(slots, tables, lengths, None, 1, self.context)
        return self.decoder(rows.ids, rows.positions, self.pool.layers, where, None)

    def _step(self, size: int) -> None:
        sample_and_advance(self.logits(size), self.state.first(size)[0])

    def _truncated_step(self, size: int) -> None:
        sample_and_advance(self.logits(size), self.state.first(size)[0], truncates=True)

    def _read(self, line: Line, longest_query: int) -> tuple[Tensor, Tensor]:
        """Compute a line: the logits (k, V) of the tokens to keep, and for each sampled sequence which (n,)."""
        ids, positions, slots, tables, lengths, starts, keep, source = upload(
            self.device,
            line.ids, line.positions, line.slots, line.tables, line.lengths, line.starts, line.keep, line.source,
        )  # fmt: skip
        where = Paged(slots, tables.int(), lengths.int(), starts.int(), longest_query, int(line.lengths.max()))
        return self.decoder(ids, positions, self.pool.layers, where, keep), source

    def _call(self, name: str, step: Callable[[int], Tensor | None], size: int) -> Tensor:
        result = self._graphs.call(name, step, size) if self._graphs is not None else step(size)
        return result  # type: ignore[return-value]

    def _fly(self, run: Callable[[], Tensor]) -> Flight:
        with torch.inference_mode(), torch.cuda.device(self.device) if self._on_gpu else nullcontext():
            return DeviceFlight(run) if self._on_gpu else HostFlight(run)


def _new_rows(sequences: list[Sequence], history: History) -> NewRows:
    counts = history.counts[[sequence.slot for sequence in sequences]]
    requests = [sequence.request for sequence in sequences]
    samplings = [request.sampling for request in requests]
    stops = np.full((len(sequences), STOPS), -1, dtype=np.int64)
    tables = np.zeros((len(sequences), max(len(sequence.blocks) for sequence in sequences)), dtype=np.int64)
    for i, sequence in enumerate(sequences):
        tables[i, : len(sequence.blocks)] = sequence.blocks
        if len(requests[i].stop_ids) <= STOPS:
            stops[i, : len(requests[i].stop_ids)] = list(requests[i].stop_ids)
    lengths = np.array([len(sequence.prompt) for sequence in sequences])
    seeds = np.array([sampling.seed & 0xFFFFFFFFFFFFFFFF for sampling in samplings], dtype=np.uint64)
    return NewRows(
        rows=np.array([sequence.row for sequence in sequences]),
        positions=lengths + counts - 1,
        left=np.array([request.limit for request in requests]) - counts,
        drawn=counts,
        seeds=seeds.view(np.int64),
        temperature=np.array([sampling.temperature for sampling in samplings], dtype=np.float32),
        top_k=np.clip([sampling.top_k for sampling in samplings], 0, np.iinfo(np.int32).max),
        top_p=np.array([sampling.top_p for sampling in samplings], dtype=np.float32),
        min_p=np.array([sampling.min_p for sampling in samplings], dtype=np.float32),
        stops=stops,
        tables=tables,
    )
