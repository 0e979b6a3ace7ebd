"""The `hf` engine: the trainer's own transformers module, batched and KV-cached. Simple, and the reference in tests.

It does not call the module's `generate`: that draws from one global random state for the whole batch, while here each
request has its own seed, sampling parameters and stops. The loop is ours, the forward pass is the module's.

One driver task per event loop consumes the waiting requests. It waits until no coroutine adds another, admits up to
`max_num_seqs` of them in (uid, sample, turn) order, runs that batch to its end, and starts again; a request that
arrives meanwhile waits for the next batch, so what is batched with what does not depend on how fast steps are. Between
two steps the event loop runs, so a finished request's caller goes on at once. The driver ends when nothing waits, and
nothing bound to an event loop outlives it.

After `admit_any_time`, which serving asks for, a request starts before the next step, as soon as fewer than
`max_num_seqs` run. It joins those of about its length; the others, for which it would be padding or be padded, run in
batches of their own that take turns. Models with a sliding window admit as before.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from burnish.config.rollout import RolloutConfig
from burnish.errors import BurnishError, ConfigError, NotAvailable, RolloutError
from burnish.rollout.base import Completion, OnToken, RolloutEngine, RolloutStats, Sampling
from burnish.rollout.hf_batch import LeftPaddedBatch, grouped
from burnish.rollout.request import Request
from burnish.rollout.stops import StopMatcher

SETTLE_PASSES = 16  # passes of the event loop without a new request before a batch starts


class HFEngine(RolloutEngine):
    """Generates with `module`, whose weights it shares: an optimiser step is seen by the next batch."""

    def __init__(
        self,
        module: nn.Module,
        tokenizer: Any,
        *,
        max_num_seqs: int = 1024,
        max_model_len: int | None = None,
        max_num_batched_tokens: int | None = None,
    ):
        self.module = module
        self.tokenizer = tokenizer
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.context = _context(module, max_model_len)
        self.vocabulary = int(module.get_input_embeddings().num_embeddings)  # type: ignore[operator]
        self.version = 0
        self._eos_ids = _eos_ids(module, tokenizer)
        self._asleep = False
        self._joins = False  # whether requests join a running batch
        self._active: dict[str, Request] = {}  # whose callers wait
        self._waiting: list[Request] = []  # not yet in a batch
        self._driver: asyncio.Task[None] | None = None
        self._stats = RolloutStats()

    @classmethod
    def from_config(cls, module: nn.Module, tokenizer: Any, config: RolloutConfig) -> "HFEngine":
        own = str(next(module.parameters()).dtype).removeprefix("torch.")
        if config.dtype not in ("auto", own):
            raise ConfigError(
                f"actor_rollout_ref.rollout.dtype={config.dtype}: the hf engine generates with the trained weights, "
                f"which are {own}; leave it at auto, or set actor_rollout_ref.model.dtype"
            )
        return cls(
            module,
            tokenizer,
            max_num_seqs=config.max_num_seqs,
            max_model_len=config.max_model_len,
            max_num_batched_tokens=config.max_num_batched_tokens,
        )

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        *,
        request_id: str,
        images: Sequence[Any] | None = None,
        order: tuple[int, ...] = (),
        on_token: OnToken | None = None,
    ) -> Completion:
        if images:
            raise NotAvailable(f"images in a rollout request (request {request_id})")
        if self._asleep:
            raise RolloutError(f"request {request_id}: the engine sleeps; call wake() before generating")
        self._ensure_driver()
        if request_id in self._active and not self._active[request_id].done:
            raise RolloutError(f"request {request_id} is already running; request ids must differ")
        problem = self.prompt_problem(prompt_ids)
        if problem is not None:
            raise RolloutError(f"request {request_id}: {problem}")
        room = self.context - len(prompt_ids)
        request = Request(
            request_id=request_id,
            prompt_ids=prompt_ids,
            sampling=sampling,
            limit=min(sampling.max_tokens or room, room),
            stop_ids=frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else self._eos_ids),
            matcher=StopMatcher(self.tokenizer, sampling.stop) if sampling.stop else None,
            future=asyncio.get_running_loop().create_future(),
            order=order,
            on_token=on_token,
        )
        self._waiting.append(request)
        self._active[request_id] = request
        self._stats.requests += 1
        self._stats.prompt_tokens += len(prompt_ids)
        try:
            return await request.future
        finally:
            if self._active.get(request_id) is request:
                del self._active[request_id]
            if not request.token_ids and request in self._waiting:  # aborted or given up before it was admitted
                self._waiting.remove(request)

    def _ensure_driver(self) -> None:
        loop = asyncio.get_running_loop()
        if self._driver is not None and self._driver.get_loop() is not loop:
            if not self._driver.done() and self._driver.get_loop().is_running():
                raise RolloutError("the hf engine is in use by another event loop; give each loop its own engine")
            self._driver, self._active, self._waiting = None, {}, []  # what a dead loop left
        if self._driver is None or self._driver.done():
            self._driver = loop.create_task(self._drive(), name="hf-rollout-driver")
            # What ends the driver itself is an interrupt, which rises from the loop too: asyncio need not tell it.
            self._driver.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _drive(self) -> None:
        try:
            await self._settle()
            while self._waiting:
                await self._run()
                await self._settle()
        finally:  # only a cancelled driver leaves requests behind; their callers are being cancelled too
            for request in self._active.values():
                request.future.cancel()
            self._waiting = []

    async def _settle(self) -> None:
        """Yield until no coroutine adds a request any more."""
        quiet, seen = 0, -1
        while quiet < SETTLE_PASSES:
            await asyncio.sleep(0)
            quiet = quiet + 1 if len(self._waiting) == seen else 0
            seen = len(self._waiting)

    def _admit(self, room: int) -> list[Request]:
        ready = sorted((r for r in self._waiting if not r.done), key=lambda r: r.order)
        admitted, self._waiting = ready[:room], ready[room:]
        return admitted

    async def _run(self) -> None:
        """Step what is admitted until all of it is done."""
        with _evaluating(self.module):
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
        requests = self._admit(room)
        groups = grouped(requests, lambda request: [request]) if self._joins else [requests]
        return [self._start(group) for group in groups if group]

    def _let_in(self, batches: list[LeftPaddedBatch]) -> list[LeftPaddedBatch]:
        """The batches with those that waited, joined where that wastes little."""
        batches = [batch for batch in batches if batch.live]
        if not all(batch.joinable for batch in batches):
            return batches
        batches += self._begin(self.max_num_seqs - sum(len(batch.live) for batch in batches))
        groups = grouped((batch for batch in batches if batch.live), lambda batch: batch.live)
        return [_joined(group) for group in groups]

    def _start(self, requests: list[Request]) -> LeftPaddedBatch:
        """A batch of their own, one step old: their prompts are read and their first tokens sampled."""
        self._stats.batches += 1
        batch = LeftPaddedBatch(self.module, requests, self.version, self.max_num_batched_tokens)
        self._step(batch)
        return batch

    def _step(self, batch: LeftPaddedBatch) -> None:
        try:
            self._stats.generated_tokens += batch.step()
        except Exception as error:  # noqa: BLE001 (rises at every caller of the batch)
            _fail(batch.rows, error)
            batch.rows = []

    def publish(self, weights: Mapping[str, torch.Tensor] | None, version: int) -> None:
        """`weights` is None, or named tensors; those that are not the module's own memory are copied into it."""
        if any(not request.done for request in self._active.values()):
            raise RolloutError("weights cannot change while requests are running; abort them first")
        own = self.module.state_dict(keep_vars=True)
        with torch.no_grad():
            for name, tensor in (weights or {}).items():
                if name not in own:
                    raise RolloutError(f"published weight {name!r} is not part of {type(self.module).__name__}")
                if own[name].data_ptr() != tensor.data_ptr():
                    own[name].copy_(tensor)
        self.version = version

    def sleep(self) -> None:
        """Nothing is held between batches, so nothing is freed; `generate` is refused until `wake`."""
        self._asleep = True

    def wake(self) -> None:
        self._asleep = False

    def abort(self, request_id: str) -> None:
        request = self._active.get(request_id)
        if request is not None and not request.done:
            self._stats.aborted += 1
            request.finish("abort", None, self.version)

    def admit_any_time(self) -> None:
        self._joins = True

    def stats(self) -> dict[str, int]:
        return asdict(self._stats)


def _joined(batches: list[LeftPaddedBatch]) -> LeftPaddedBatch:
    """All of them in the first."""
    first, *others = batches
    try:
        for other in others:
            first.join(other)
    except Exception as error:  # noqa: BLE001 (as in `_step`; half joined, none can go on)
        _fail([request for batch in batches for request in batch.rows], error)
        first.rows = []
    return first


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)


def _fail(requests: list[Request], error: Exception) -> None:
    """Every caller of a broken batch gets its own error, with the cause."""
    for request in requests:
        if not request.done:
            failure = error
            if not isinstance(error, BurnishError):
                failure = RolloutError(f"request {request.request_id}: {type(error).__name__}: {error}")
                failure.__cause__ = error
            request.future.set_exception(failure)


def _context(module: nn.Module, max_model_len: int | None) -> int:
    config = module.config.get_text_config()  # type: ignore[union-attr, operator]
    own: int | None = getattr(config, "max_position_embeddings", None)
    limit = max_model_len or own
    if limit is None:
        raise ConfigError(
            f"{type(module).__name__} does not say how long its context is; set actor_rollout_ref.rollout.max_model_len"
        )
    if own is not None and max_model_len is not None and max_model_len > own:
        raise ConfigError(
            f"actor_rollout_ref.rollout.max_model_len={max_model_len}: the model's context is {own} tokens; "
            "lower it, or raise max_position_embeddings in actor_rollout_ref.model.override_config"
        )
    return limit


def _eos_ids(module: nn.Module, tokenizer: Any) -> frozenset[int]:
    """What ends a sequence: the tokenizer's token and those of the module's generation configuration."""
    listed = getattr(getattr(module, "generation_config", None), "eos_token_id", None)
    ids = listed if isinstance(listed, list | tuple) else [listed]
    return frozenset(int(i) for i in [*ids, tokenizer.eos_token_id] if i is not None)
