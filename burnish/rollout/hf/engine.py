"""The `hf` engine: the trainer's own transformers module, batched and KV-cached. Simple, and the reference in tests.

It does not call the module's `generate`, which draws from one global random state for the whole batch. Up to
`max_num_seqs` requests in order are one batch, which runs to its end. After `admit_any_time`, which serving asks for, a
request starts before the next step and joins those of about its length; the others run in separate batches that take
turns. Models with a sliding window admit as before.
"""

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from burnish.config.rollout import RolloutConfig
from burnish.rollout.admission import RequestState
from burnish.rollout.base import RolloutStats
from burnish.rollout.hf.batch import LeftPaddedBatch, grouped
from burnish.rollout.in_process import InProcessEngine, evaluating


class HFEngine(InProcessEngine):
    name = "hf"

    def __init__(
        self,
        module: nn.Module,
        tokenizer: Any,
        *,
        max_num_seqs: int = 1024,
        max_model_len: int | None = None,
        max_num_batched_tokens: int | None = None,
    ):
        super().__init__(module, tokenizer, max_model_len)
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self._joins = False  # whether requests join a running batch
        self._waiting: list[RequestState] = []  # not yet in a batch
        self._stats = RolloutStats()

    @classmethod
    def from_config(
        cls, module: nn.Module, tokenizer: Any, config: RolloutConfig, logs: Path | None = None
    ) -> "HFEngine":
        cls.check_dtype(module, config)
        return cls(
            module,
            tokenizer,
            max_num_seqs=config.max_num_seqs,
            max_model_len=config.max_model_len,
            max_num_batched_tokens=config.max_num_batched_tokens,
        )

    def _enter(self, request: RequestState) -> None:
        self._waiting.append(request)
        self._stats.requests += 1
        self._stats.prompt_tokens += len(request.prompt_ids)

    def _leave(self, request: RequestState) -> None:
        if not request.token_ids and request in self._waiting:  # aborted or given up before it was admitted
            self._waiting.remove(request)

    def _abandon(self) -> None:
        self._waiting = []

    async def _drive(self, number: int) -> None:
        try:
            await self._settle()
            while self._waiting:
                await self._run()
                await self._settle()
        finally:  # only a cancelled driver leaves requests behind; their callers are being cancelled too
            if number == self._drivers:
                for request in self._active.values():
                    request.future.cancel()
                self._waiting = []

    async def _run(self) -> None:
        with evaluating(self.module):
            batches = self._begin(self.max_num_seqs)
            while batches:
                await asyncio.sleep(0)
                if self._joins:
                    batches = self._let_in(batches)
                for batch in batches:
                    self._step(batch)
                batches = [batch for batch in batches if batch.rows]

    def _begin(self, room: int) -> list[LeftPaddedBatch]:
        """Start those that wait, as far as there is room."""
        ready = sorted((r for r in self._waiting if not r.done), key=lambda r: r.order)
        requests, self._waiting = ready[:room], ready[room:]
        groups = grouped(requests, lambda request: [request]) if self._joins else [requests]
        return [self._start(group) for group in groups if group]

    def _let_in(self, batches: list[LeftPaddedBatch]) -> list[LeftPaddedBatch]:
        """The batches with those that waited, joined where that wastes little."""
        batches = [batch for batch in batches if batch.live]
        if not all(batch.joinable for batch in batches):
            return batches
        batches += self._begin(self.max_num_seqs - sum(len(batch.live) for batch in batches))
        groups = grouped((batch for batch in batches if batch.live), lambda batch: batch.live)
        return [self._joined(group) for group in groups]

    def _start(self, requests: list[RequestState]) -> LeftPaddedBatch:
        """A separate batch, one step old: their prompts are read and their first tokens sampled."""
        self._stats.batches += 1
        batch = LeftPaddedBatch(self.module, requests, self.version, self.max_num_batched_tokens)
        self._step(batch)
        return batch

    def _step(self, batch: LeftPaddedBatch) -> None:
        try:
            with self._computing(f"a step of {len(batch.rows)} sequences"):
                self._stats.generated_tokens += batch.step()
        except Exception as error:  # noqa: BLE001 (rises at every caller of the batch)
            self._fail(batch.rows, error)
            batch.rows = []

    def _joined(self, batches: list[LeftPaddedBatch]) -> LeftPaddedBatch:
        first, *others = batches
        try:
            for other in others:
                first.join(other)
        except Exception as error:  # noqa: BLE001 (as in `_step`; half joined, none can continue)
            self._fail([request for batch in batches for request in batch.rows], error)
            first.rows = []
        return first

    def abort(self, request_id: str) -> None:
        request = self._active.get(request_id)
        if request is not None and not request.done:
            self._stats.aborted += 1
            request.finish("abort", None, self.version)

    def admit_any_time(self) -> None:
        self._joins = True

    def stats(self) -> dict[str, float]:
        return asdict(self._stats)
