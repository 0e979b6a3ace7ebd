"""Runs what the scheduler issues: from host arrays to kernels, and from sampled tokens back to a `Flight`.

A prefill and a decode step leave their results in the decode state, where the next step finds them. On a GPU all of
this is queued and the host continues: a `Flight` polls for the small copy at its end, no longer than the deadline. On a
CPU it is computed by then, in the thread that trains unless generation runs ahead: two threads that compute in turn
would each keep the cores busy with waiting for the other.
"""

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from burnish.errors import EngineLost, RolloutError
from burnish.models.decoders import Decoder
from burnish.ops.paged_attention import Paged
from burnish.ops.sampling import STOPS, sample_and_advance
from burnish.rollout.base import POLICY_IS_BROKEN
from burnish.rollout.in_process import OWNER, evaluating
from burnish.rollout.native.kv_pool import BlockManager, KVPool
from burnish.rollout.native.scheduler import Chunk, Decode, Prefill
from burnish.rollout.native.state import DecodeState, History, Sequence, upload
from burnish.waits import waiting

LENGTH, PROMPT = 16, 8
# Of the spread of logits over tokens. A model that computes something else is about 1 away; a trained one of 30 layers
# in bfloat16 was 0.096 away by rounding alone, on this sequence that means nothing to it.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.25, torch.float16: 0.05}
POLL_S = 2e-5  # between two looks at whether the device is done

log = logging.getLogger(__name__)


class Stuck(EngineLost):
    """A step did not end; the engine cannot continue."""


class Flight:
    """`out` is `DecodeRows.out` after the step, (3, C), which the next step overwrites."""

    def __init__(self, out: Tensor):
        self._event: torch.cuda.Event | None = None
        if out.is_cuda:
            self._copy = torch.empty(out.shape, dtype=out.dtype, pin_memory=True)
            self._copy.copy_(out, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()
        else:
            self._copy = out.clone()

    def wait(self, deadline_s: float, what: str) -> np.ndarray:
        if self._event is not None and not self._event.query():
            with waiting("engine", OWNER, what, deadline_s) as wait:
                while not self._event.query():
                    if wait.age > deadline_s:
                        wait.overdue()
                        raise Stuck(
                            f"the rollout engine is stuck: the kernels of {what} have not ended within {deadline_s:g} s"
                        )
                    time.sleep(POLL_S)
        return self._copy.numpy()


class Line(NamedTuple):
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


def batch_size(rows: int) -> int:
    """The size that `rows` rows are run at: few sizes, so few graphs, and little waste."""
    for limit, step in ((8, None), (32, 8), (128, 16), (512, 32)):
        if rows <= limit:
            return -(-rows // step) * step if step else 1 << (max(rows, 1) - 1).bit_length()
    return -(-rows // 64) * 64


class Graphs:
    """CUDA graphs of decode steps, one for each batch size that comes up, captured when it first does. What a graph
    reads is where it was at the capture: the weights, the decode state, and the addresses of the KV pool (not the pool
    itself, which may move). A model whose own code cannot be captured (some mixtures of experts) is run step by step,
    with a warning."""

    def __init__(self, state: DecodeState):
        self._state = state
        self._captured: dict[tuple[str, int], tuple[torch.cuda.CUDAGraph, Tensor | None]] = {}
        self._memory = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(state.device)
        self._refused = False  # the model cannot be captured

    def call(self, name: str, step: Callable[[int], Tensor | None], size: int) -> Tensor | None:
        """The result is where the next call of the same graph will overwrite it."""
        if (name, size) not in self._captured and not self._refused:
            try:
                self._captured[name, size] = self._capture(step, size)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                self._refused = True
                log.warning("decode steps run without CUDA graphs, slower: the model cannot be captured (%s)", error)
        if self._refused:
            return step(size)
        graph, result = self._captured[name, size]
        graph.replay()
        return result

    def _capture(self, step: Callable[[int], Tensor | None], size: int) -> tuple[torch.cuda.CUDAGraph, Tensor | None]:
        """Run once outside, which compiles kernels and sets libraries up; the rows are then put back as they were. The
        keys and values that it stores are those that the real step stores again."""
        saved = self._state.saved()
        self._stream.wait_stream(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            step(size)
            self._state.restore(saved)
            torch.cuda.synchronize()
            graph.capture_begin(pool=self._memory, capture_error_mode="thread_local")
            try:
                result = step(size)
            except RuntimeError:
                with suppress(RuntimeError):  # it says again that there was an error
                    graph.capture_end()
                raise
            graph.capture_end()
        torch.cuda.current_stream().wait_stream(self._stream)
        return graph, result


class Runner:
    def __init__(self, decoder: Decoder, pool: KVPool, *, max_rows: int, context: int, graphs: bool):
        self.decoder, self.pool, self.device = decoder, pool, pool.device
        self.context = context
        on_gpu = pool.device.type == "cuda"
        self._here: AbstractContextManager[object] = torch.cuda.device(pool.device) if on_gpu else nullcontext()
        self.state = DecodeState(max_rows, -(-context // pool.block_size), pool.device)
        self._graphs = Graphs(self.state) if graphs and on_gpu else None

    def prefill(self, work: Prefill, history: History) -> Flight:
        line = Line.of(work.chunks, self.pool.block_size)
        longest_query = max(chunk.stop - chunk.start for chunk in work.chunks)
        with torch.inference_mode(), self._here:
            self.state.stop(work.stopped)
            index = self._fill(work.sampled, history) if work.sampled else None
            logits, source = self._read(line, longest_query)
            if work.copies:
                self.pool.copy(*upload(self.device, *np.asarray(work.copies).T))
            if index is not None:
                truncates = any(sequence.request.sampling.truncates for sequence in work.sampled)
                sample_and_advance(logits, self.state.rows, index, source, truncates)
            return Flight(self.state.rows.out)

    def decode(self, work: Decode) -> Flight:
        with torch.inference_mode(), self._here:
            self.state.stop(work.stopped)
            self.state.move(work.moves)
            self.state.extend(work.grown)
            if work.truncates:
                self._call("truncated step", self._truncated_step, work.size)
            else:
                self._call("step", self._step, work.size)
            return Flight(self.state.rows.out)

    def forget_graphs(self) -> None:
        """Give their memory back; steps are not replayed any more."""
        self._graphs = None

    def teacher_forced(self, ids: np.ndarray, blocks: list[int], prompt: int) -> Tensor:
        """Logits (n, V) after each of `ids` (n,), computed as generation does: the first `prompt` read at once, the
        others fed one by one to row 0. The state's rows are idle before and after."""
        places = np.arange(prompt)
        table = np.asarray(blocks, dtype=np.int64)
        slots = table[places // self.pool.block_size] * self.pool.block_size + places % self.pool.block_size
        line = Line(ids[:prompt], places, slots, table[None], np.array([prompt]), np.array([0, prompt]), places, places)
        rows = self.state.rows
        with torch.inference_mode(), self._here:
            parts = [self._read(line, prompt)[0]]
            self.state.tables[0, : len(table)] = upload(self.device, table)[0].int()
            for position in range(prompt, len(ids)):
                rows.ids[0], rows.positions[0], rows.left[0] = int(ids[position]), position, 1
                parts.append(self._call("logits", self.logits, 1).clone())
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
        ids, positions, slots, tables, lengths, starts, keep, source = upload(self.device, *line)
        where = Paged(slots, tables.int(), lengths.int(), starts.int(), longest_query, int(line.lengths.max()))
        return self.decoder(ids, positions, self.pool.layers, where, keep), source

    def _call(self, name: str, step: Callable[[int], Tensor | None], size: int) -> Tensor:
        result = self._graphs.call(name, step, size) if self._graphs is not None else step(size)
        return result  # type: ignore[return-value]

    def _fill(self, sequences: list[Sequence], history: History) -> Tensor:
        counts = history.counts[[sequence.slot for sequence in sequences]]
        requests = [sequence.request for sequence in sequences]
        samplings = [request.sampling for request in requests]
        stops = np.full((len(sequences), STOPS), -1, dtype=np.int64)
        tables = np.zeros((len(sequences), max(len(sequence.blocks) for sequence in sequences)), dtype=np.int64)
        for i, sequence in enumerate(sequences):
            tables[i, : len(sequence.blocks)] = sequence.blocks
            if len(requests[i].stop_ids) <= STOPS:
                stops[i, : len(requests[i].stop_ids)] = list(requests[i].stop_ids)
        whole = {
            "positions": np.array([len(sequence.prompt) for sequence in sequences]) + counts - 1,  # of the newest token
            "left": np.array([request.limit for request in requests]) - counts,
            "drawn": counts,
            "seeds": np.array([one.seed & 0xFFFFFFFFFFFFFFFF for one in samplings], dtype=np.uint64).view(np.int64),
            "top_k": np.clip([sampling.top_k for sampling in samplings], 0, np.iinfo(np.int32).max),
            "stops": stops,
        }
        real = {
            name: np.array([getattr(sampling, name) for sampling in samplings], dtype=np.float32)
            for name in ("temperature", "top_p", "min_p")
        }
        return self.state.fill(np.array([sequence.row for sequence in sequences]), tables, whole, real)


class Canary:
    """Proof, after every publish, that what generates is what is trained: every parameter is where it was when the
    engine was made, which graphs and merged buffers read; and a fixed sequence, half of it read as a prompt and half
    fed token by token, gets the logits that the module's own forward pass gives it."""

    def __init__(self, module: nn.Module, context: int):
        self._module = module
        self._pointers = {name: parameter.data_ptr() for name, parameter in module.named_parameters()}
        self._length = min(LENGTH, context)

    def check(self, runner: Runner, blocks: BlockManager) -> None:
        """RolloutError if generation does not follow the module's weights. Nothing may be running."""
        now = {name: parameter.data_ptr() for name, parameter in self._module.named_parameters()}
        moved = [name for name, place in self._pointers.items() if now.get(name) != place]
        if moved:
            raise RolloutError(
                f"{len(moved)} of {len(now)} parameters moved in memory since the rollout engine was made, such as "
                f"{moved[0]}: it reads the old memory. Write weights in place (`copy_`), or make the engine afterwards"
            )
        vocabulary = int(self._module.get_input_embeddings().num_embeddings)  # type: ignore[operator]
        ids = (np.arange(1, self._length + 1) * 7919) % vocabulary
        taken = blocks.take(-(-self._length // blocks.block_size))
        try:
            with evaluating(self._module), torch.no_grad():
                line = torch.from_numpy(ids)[None].to(runner.device)
                plain = self._module(input_ids=line, use_cache=False).logits[0].float()  # (n, V)
                own = runner.teacher_forced(ids, taken, prompt=min(PROMPT, self._length)).float()
        finally:
            blocks.release(taken)
        if not bool(plain.isfinite().all()):
            raise RolloutError(POLICY_IS_BROKEN)
        spread = float((plain - plain.mean(-1, keepdim=True)).norm())
        difference = float((own - plain).norm()) / max(spread, 1e-6)
        allowed = TOLERANCE.get(runner.pool.dtype, TOLERANCE[torch.float32])
        if not difference <= allowed:
            raise RolloutError(
                f"the rollout engine does not compute what the trained module ({type(self._module).__name__}) does: "
                f"logits of a fixed sequence differ by {difference:.2g} of their spread, {allowed:g} is rounding. "
                "Use rollout.name=hf"
            )
