"""The native engine: schedule → run → sample → write down, on the trainer's own module and weights.

    scheduler.py      which prompts are read and which rows continue; preemption
    runner.py         executes that, on a GPU by graphs; waits for it; and proves that it computes what is trained
    state.py          one request on its way, the history of what was sampled, and the decode batch on the device
    kv_pool.py        the memory of keys and values, and who has which blocks of it

The driver task (see `rollout/in_process.py`) steps it in the event loop of those who wait: a step schedules work, lets
the loop run, and takes in the results of the step `ahead` steps before. On a CPU work is computed as it is scheduled.
"""

import asyncio
import logging
import time
from collections import deque
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from burnish.config.rollout import RolloutConfig
from burnish.errors import ConfigError, RolloutError
from burnish.models.attention import layers_of
from burnish.models.decoders import decoder_for
from burnish.ops.paged_attention import BLOCK_SIZE
from burnish.ops.sampling import ENDED
from burnish.rollout.admission import RequestState
from burnish.rollout.base import FinishReason
from burnish.rollout.in_process import InProcessEngine, evaluating
from burnish.rollout.native.kv_pool import BlockManager, KVPool
from burnish.rollout.native.runner import Canary, Flight, Runner, Stuck, batch_size
from burnish.rollout.native.scheduler import Scheduler
from burnish.rollout.native.state import History, Sequence

AHEAD = {"cuda": 3, "cpu": 0}  # steps queued before the results of the first are read
GATHER = {"cuda": 4}  # steps between two short prefills
SHRUNK = 0.8  # of what fits now: where the context is cut to the pool, memory may be shorter the next time

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Launched:
    """A running step: which rows it samples for, and whose they were then."""

    flight: Flight
    rows: np.ndarray  # (n,)
    sequences: np.ndarray  # (n,) of objects
    slots: np.ndarray  # (n,)
    watched: np.ndarray  # (n,) bool
    what: str


class NativeEngine(InProcessEngine):
    """See the module's docstring.

    longest         tokens that sequences are expected to have at most; how large a pool is useful
    blocks          blocks of the KV pool; None: as many as are of use and fit into `memory_share` of the device
    ahead           steps queued before results are read; None: by device
    """

    name = "native"
    runs_on = True

    def __init__(
        self,
        module: nn.Module,
        tokenizer: Any,
        *,
        max_num_seqs: int = 1024,
        max_model_len: int | None = None,
        max_num_batched_tokens: int = 8192,
        longest: int | None = None,
        block_size: int = BLOCK_SIZE,
        blocks: int | None = None,
        memory_share: float = 0.5,
        prefix_caching: bool = True,
        chunked_prefill: bool = True,
        graphs: bool = True,
        ahead: int | None = None,
        fused: bool = True,
    ):
        with evaluating(module):
            shapes = layers_of(module)  # first: what cannot be paged is refused for that
        super().__init__(module, tokenizer, max_model_len)
        parameter = next(module.parameters())
        self.device = parameter.device
        self.max_num_seqs, self.memory_share, self.prefix_caching = max_num_seqs, memory_share, prefix_caching
        self.pool = KVPool(shapes, block_size, parameter.dtype, self.device)
        self._fixed_blocks = blocks
        needed = min(longest or self.context, self.context)
        self._blocks = max_num_seqs * -(-needed // block_size) + 1  # of use at all
        self._blocks = self._block_count()
        self.context = self._fitting_context(needed, asked_for=longest is not None or max_model_len is not None)
        decoder = decoder_for(module, self.context, fused)
        self.runner = Runner(decoder, self.pool, max_rows=max_num_seqs, context=self.context, graphs=graphs)
        self.history = History()
        self.scheduler = Scheduler(
            BlockManager(1, block_size),
            self.history,
            max_rows=max_num_seqs,
            batched_tokens=max_num_batched_tokens,
            chunked=chunked_prefill,
            gather=GATHER.get(self.device.type, 0),
            batch_size=lambda rows: min(batch_size(rows), max_num_seqs) if self.device.type == "cuda" else rows,
        )
        self._canary = Canary(module, self.context)
        self._ahead = AHEAD.get(self.device.type, 0) if ahead is None else ahead
        self._sequences: dict[RequestState, Sequence] = {}  # in the scheduler
        self._flights: deque[Launched] = deque()
        self._launches = self._landings = 0
        self._retired: deque[tuple[int, int]] = deque()  # slots, each with the launches that may still write to it
        self._stepping = False
        self._stream: torch.cuda.Stream | None = None  # of a separate thread that steps it while others compute
        self._was_training = False  # the module, before a step put it into evaluation mode
        self._landing = False
        self._aborts: list[str] = []  # asked for while a step lands
        self._counts = dict.fromkeys(("aborted", "prompt_tokens", "generated_tokens", "prefill_tokens", "steps"), 0)
        self._busy_s = 0.0
        self._make_pool()
        self._canary.check(self.runner, self.scheduler.blocks)

    @classmethod
    def from_config(
        cls, module: nn.Module, tokenizer: Any, config: RolloutConfig, logs: Path | None = None
    ) -> "NativeEngine":
        cls.check_dtype(module, config)
        known = config.prompt_length is not None and config.response_length is not None
        return cls(
            module,
            tokenizer,
            max_num_seqs=config.max_num_seqs,
            max_model_len=config.max_model_len,
            max_num_batched_tokens=config.max_num_batched_tokens,
            longest=config.prompt_length + config.response_length if known else None,
            memory_share=config.gpu_memory_utilization,
            prefix_caching=config.enable_prefix_caching,
            chunked_prefill=config.enable_chunked_prefill,
            graphs=not config.enforce_eager,
        )

    # Requests come and go

    def _enter(self, request: RequestState) -> None:
        self._refuse_broken()
        prompt = np.asarray(request.prompt_ids, dtype=np.int64)
        self._sequences[request] = sequence = Sequence(request, prompt, (request.order, self._arrived))
        self._counts["prompt_tokens"] += len(prompt)
        self.scheduler.add(sequence)

    def _leave(self, request: RequestState) -> None:
        if (sequence := self._sequences.get(request)) is not None:  # cancelled by its caller
            self._drop(sequence)
            self._rest()

    def abort(self, request_id: str) -> None:
        request = self._active.get(request_id)
        if request is None or request.done:
            return
        if self._landing:  # by a callback: others have yet to get their tokens of this step
            self._aborts.append(request_id)
            return
        self._counts["aborted"] += 1
        sequence = self._sequences[request]
        self._answer(sequence, "abort", None)
        self._drop(sequence)
        self._rest()

    def _answer(self, sequence: Sequence, reason: FinishReason, stop: str | int | None) -> None:
        request = sequence.request
        if sequence.slot >= 0:
            request.token_ids, request.log_probs = self.history.sampled(sequence.slot)
        request.versions = sequence.under and self._versions(sequence)
        request.finish(reason, stop, self.version)

    def _versions(self, sequence: Sequence) -> list[int]:
        count = int(self.history.counts[sequence.slot]) if sequence.slot >= 0 else 0
        return sequence.under + [self.version] * (count - len(sequence.under))

    def _drop(self, sequence: Sequence) -> None:
        self.scheduler.drop(sequence)
        self._remove(sequence)

    def _remove(self, sequence: Sequence) -> None:
        """It has left the scheduler. Its slot can be used again once all running steps have landed."""
        del self._sequences[sequence.request]
        if sequence.slot >= 0:
            self._retired.append((self._launches, sequence.slot))

    # Steps

    async def _drive(self, number: int) -> None:
        """Consumes what `_enter` adds; waits for the device only. Ends when nothing is left, or is cancelled."""
        try:
            await self._settle()
            while self.scheduler.has_work or self._flights:
                arrived, start = self._arrived, time.monotonic()
                answered = self._try_step()
                self._busy_s += time.monotonic() - start
                if not self._flights and (answered or self._arrived != arrived):
                    await self._settle()
                else:
                    await asyncio.sleep(0)
        finally:
            if number == self._drivers:  # a cancelled driver leaves requests; their callers are being cancelled too
                for request in self._active.values():
                    request.future.cancel()
                self._abandon()

    def _try_step(self) -> bool:
        """`_step`, in evaluation mode; the module is restored before its callers continue."""
        self._was_training |= self.module.training
        if self.module.training:
            self.module.eval()
        self._stepping = True  # before the look at `_broken`: `_give_back` sets that before it looks at this
        try:
            self._refuse_broken()
            return self._step()
        except Exception as error:  # noqa: BLE001 (rises at every caller)
            self._end_running(error)
            return True
        finally:
            self._stepping = False
            self._rest()

    def _end_running(self, error: Exception) -> None:
        """A step or a publish failed: every caller gets the error, and nothing that was computed stays."""
        if isinstance(error, Stuck):
            self._broken = error
        self._fail(list(self._sequences), error)
        self._abandon()
        self.scheduler.blocks.forget()
        if self._broken is None:
            self.pool.clear()

    def _rest(self) -> None:
        """Where nobody waits any more, end running work and leave the module as it was found."""
        if not self._sequences and not self._landing:
            if self._broken is None:
                with suppress(Exception):  # nobody is left to hear of it; what it wrote is not used
                    self._land_all()
            self._restore_mode()

    def _restore_mode(self) -> None:
        if self._was_training:
            self.module.train()
            self._was_training = False

    def _step(self) -> bool:
        launches = self._launches
        if (prefill := self.scheduler.prefill()) is not None:
            self._counts["prefill_tokens"] += prefill.token_count
            sampled = np.array([sequence.row for sequence in prefill.sampled], dtype=np.int64)
            what = f"reading {prefill.token_count} tokens of {len(prefill.chunks)} prompts"
            with self._computing(what):
                flight = self.runner.prefill(prefill, self.history)
            self._note(flight, sampled, what)
        if (decode := self.scheduler.decode()) is not None:
            self._counts["steps"] += 1
            what = f"a decode step of {len(decode.rows)} sequences"
            with self._computing(what):
                flight = self.runner.decode(decode)
            self._note(flight, decode.rows, what)
        if launches == self._launches:
            if self._flights:
                return self._land(self._flights.popleft())  # after which there may be work again
            self.scheduler.preempt()  # no block is free for rows that must continue
        answered = False
        while len(self._flights) > self._ahead:
            answered |= self._land(self._flights.popleft())
        return answered

    def _note(self, flight: Flight, rows: np.ndarray, what: str) -> None:
        self._flights.append(Launched(flight, rows, *self.scheduler.about(rows), what))
        self._launches += 1

    def _land(self, step: Launched) -> bool:
        ids, log_probs, status = step.flight.wait(self.step_deadline_s, step.what)[:, step.rows]
        sampled = status > 0
        if np.isnan(log_probs[sampled]).any():
            first = step.sequences[sampled][np.isnan(log_probs[sampled])][0].request.request_id
            raise RolloutError(f"the model's logits are NaN or infinite, first for request {first}")
        tokens = ids.astype(np.int64)
        self.history.append(step.slots[sampled], tokens[sampled], log_probs[sampled])
        self._counts["generated_tokens"] += int(np.count_nonzero(sampled))
        answered = False
        self._landing = True
        for i in np.flatnonzero(sampled & (step.watched | (status == ENDED))):
            if not step.sequences[i].request.done:  # else: aborted, or stopped by a string, while this was running
                ended = bool(status[i] == ENDED)
                answered |= self._deliver(step.sequences[i], int(tokens[i]), float(log_probs[i]), ended)
        self._landing = False
        self._landings += 1
        while self._retired and self._retired[0][0] <= self._landings:
            self.history.give_back(self._retired.popleft()[1])
        aborts, self._aborts = self._aborts, []
        for request_id in aborts:
            self.abort(request_id)
        return answered or bool(aborts)

    def _deliver(self, sequence: Sequence, token: int, log_prob: float, ended: bool) -> bool:
        """Deliver a token; whether it was the last. An error in a caller's own code is raised at that caller."""
        try:
            stop = sequence.request.noticed(token, log_prob)
        except Exception as error:  # noqa: BLE001 (rises at the caller)
            self._fail([sequence.request], error)
            self._drop(sequence)
            return True
        if stop is None and not ended:
            return False
        self.scheduler.end(sequence)
        self._answer(sequence, "length" if stop is None else "stop", stop)
        self._remove(sequence)
        return True

    def _abandon(self) -> None:
        """Nobody waits any more: no sequence, no running step. What the pool holds is valid, and kept."""
        while self._flights and self._broken is None:
            step = self._flights.popleft()
            with suppress(Exception):
                step.flight.wait(self.step_deadline_s, step.what)
        self._restore_mode()
        self._flights.clear()
        self._landings, self._landing, self._aborts = self._launches, False, []
        for sequence in list(self._sequences.values()):
            self._remove(sequence)
        self.scheduler.reset()

    # Weights and memory

    def _prepare_publish(self) -> None:
        """What runs goes back to the queue with the tokens it has, and is read again under the new weights."""
        self._refuse_broken()
        if self._asleep:
            raise RolloutError("weights cannot be published while the engine sleeps; call wake() first")
        self._land_all()
        self.scheduler.preempt_all()
        for sequence in self._sequences.values():
            sequence.under = self._versions(sequence)
        self.scheduler.blocks.forget()
        self._synchronise()

    def pause(self) -> None:
        try:
            self._land_all()
        except Exception as error:  # noqa: BLE001 (rises at every caller, as that of a step)
            self._end_running(error)

    def _prove_publish(self) -> None:
        self._canary.check(self.runner, self.scheduler.blocks)
        self._synchronise()

    def alongside(self) -> AbstractContextManager[object]:
        if self.device.type != "cuda":
            return nullcontext()
        self._stream = torch.cuda.Stream(self.device)
        return torch.cuda.stream(self._stream)

    def _synchronise(self) -> None:
        """Publishing and concurrent generation use different streams: each sees what the other has written."""
        if self._stream is not None:
            torch.cuda.synchronize(self.device)

    def sleep(self) -> None:
        """Give the KV pool back; `generate` is refused until `wake`."""
        self._refuse_broken()
        self._refuse_while_running("the KV pool cannot be given back")
        if not self._asleep:
            self._land_all()
            self.scheduler.blocks.forget()
            self.pool.release()
            self._asleep = True

    def wake(self) -> None:
        self._refuse_broken()
        if self._asleep:
            self._make_pool()
            self._asleep = False

    def _give_back(self) -> None:
        """The KV pool and the graphs, unless a step may still write there: one that hangs, or runs on the device."""
        self._broken = self._broken or Stuck("a new engine takes its place")  # it steps no more
        if self._stepping or not self._is_idle():
            log.warning("a step of the lost rollout engine may still be running: its KV pool is not freed")
            return
        self.runner.forget_graphs()
        self.pool.release()

    def _is_idle(self) -> bool:
        """Whether the device has done all that was handed to it."""
        return self.device.type != "cuda" or (self._stream or torch.cuda.default_stream(self.device)).query()

    def _land_all(self) -> None:
        """Steps of requests that were aborted may still be running."""
        while self._flights:
            self._land(self._flights.popleft())

    def _refuse_broken(self) -> None:
        if self._broken is not None:
            raise RolloutError("the rollout engine was stuck and cannot be used any more; make a new one")

    def stats(self) -> dict[str, float]:
        blocks, scheduler = self.scheduler.blocks, self.scheduler
        return {
            "requests": self._arrived,
            **self._counts,
            "shared_tokens": scheduler.shared_tokens,
            "prefix_hit_tokens": scheduler.reused_tokens,
            "preemptions": scheduler.preemptions,
            "running": scheduler.running,
            "waiting": scheduler.waiting,
            "kv_blocks": 0 if self._asleep else blocks.total,
            "kv_blocks_used": blocks.used,
            "kv_blocks_cached": blocks.cached,
            "busy_s": self._busy_s,
            "tokens_per_s": self._counts["generated_tokens"] / self._busy_s if self._busy_s else 0.0,
        }

    def _make_pool(self) -> None:
        """What memory allows now may be less than when the engine was made, never less than one sequence needs."""
        blocks = self._block_count()
        if blocks < self._least_blocks(self.context):
            raise RolloutError(self._too_small(blocks, self.context, "free memory, or ask for shorter sequences"))
        self.pool.allocate(blocks)
        self.scheduler.blocks = BlockManager(blocks, self.pool.block_size, self.prefix_caching)

    def _block_count(self) -> int:
        return self._fixed_blocks or self.pool.fitting_blocks(self._blocks, self.memory_share)

    def _least_blocks(self, tokens: int) -> int:
        return -(-tokens // self.pool.block_size) + 1  # and the one that belongs to nobody

    def _fitting_context(self, needed: int, asked_for: bool) -> int:
        """The context, or what the pool holds of it; that is enough for `needed` tokens where these were asked for."""
        if self._blocks >= self._least_blocks(self.context):
            return self.context
        held = (self._blocks - 1) * self.pool.block_size
        if self._blocks < self._least_blocks(needed):
            if asked_for or self._blocks < 3:
                raise ConfigError(self._too_small(self._blocks, needed, "raise it, or ask for shorter sequences"))
            log.warning(
                "the KV pool holds %d tokens, and the model's context is %d: longer sequences are refused. Raise "
                "gpu_memory_utilization, or set max_model_len",
                held,
                self.context,
            )
        if self._fixed_blocks:
            return held
        return max(int(SHRUNK * held), needed if held >= needed else 0)

    def _too_small(self, blocks: int, needed: int, fix: str) -> str:
        return (
            f"actor_rollout_ref.rollout.gpu_memory_utilization={self.memory_share:g}: the KV pool would hold "
            f"{max(blocks - 1, 0) * self.pool.block_size} tokens, and one sequence may have {needed}; {fix}"
        )
