"""What the engines have in common that run a transformers module in this process: `hf` and `native`.

Requests come in by `generate`, which checks them and waits. One driver task per event loop makes them go on; it is
started by the first request and ends when none is left, so nothing bound to an event loop outlives it. A driver waits
with `_settle` until no coroutine adds another request: what is batched with what then depends on the requests and not
on how fast anything was.
"""

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from burnish.config.rollout import RolloutConfig
from burnish.errors import BurnishError, ConfigError, NotAvailable, RolloutError
from burnish.rollout.base import Completion, OnToken, RolloutEngine, Sampling
from burnish.rollout.request import Request
from burnish.rollout.stops import StopMatcher

log = logging.getLogger(__name__)

SETTLE_PASSES = 16  # passes of the event loop without a new request before work starts


class InProcessEngine(RolloutEngine):
    """Generates with `module`, whose weights it shares: an optimiser step is seen by what is generated next."""

    name: str

    def __init__(self, module: nn.Module, tokenizer: Any, max_model_len: int | None = None):
        self.module = module
        self.tokenizer = tokenizer
        self.context = _context(module, max_model_len)
        self.vocabulary = int(module.get_input_embeddings().num_embeddings)  # type: ignore[operator]
        self.version = 0
        self._eos_ids = _eos_ids(module, tokenizer)
        self._asleep = False
        self._is_whole = True  # no publish has left the weights half old, half new
        self._active: dict[str, Request] = {}  # whose callers wait
        self._arrived = 0  # requests so far
        self._driver: asyncio.Task[None] | None = None
        self._drivers = 0  # so far; the last one is in charge

    @classmethod
    def check_dtype(cls, module: nn.Module, config: RolloutConfig) -> None:
        own = str(next(module.parameters()).dtype).removeprefix("torch.")
        if config.dtype not in ("auto", own):
            raise ConfigError(
                f"actor_rollout_ref.rollout.dtype={config.dtype}: the {cls.name} engine generates with the trained "
                f"weights, which are {own}; leave it at auto, or set actor_rollout_ref.model.dtype"
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
        if not self._is_whole:
            raise RolloutError(
                f"request {request_id}: the last publish failed, which may have left some weights old and some new; "
                "publish again before generating"
            )
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
        self._active[request_id] = request
        self._arrived += 1
        try:
            self._enter(request)
            return await request.future
        finally:
            if self._active.get(request_id) is request:
                del self._active[request_id]
            self._leave(request)

    @abstractmethod
    def _enter(self, request: Request) -> None:
        """A request has come."""

    @abstractmethod
    def _leave(self, request: Request) -> None:
        """A request's caller goes: it has its answer, or wants none any more."""

    @abstractmethod
    async def _drive(self, number: int) -> None:
        """Answer what has come, until nothing is left. It may clean up after itself while `_drivers` is its number."""

    @abstractmethod
    def _abandon(self) -> None:
        """Forget what an event loop left behind that ended before its requests did."""

    def _ensure_driver(self) -> None:
        loop = asyncio.get_running_loop()
        if self._driver is not None and self._driver.get_loop() is not loop:
            if not self._driver.done() and self._driver.get_loop().is_running():
                raise RolloutError(
                    f"the {self.name} engine is in use by another event loop; give each loop its own engine"
                )
            with suppress(RuntimeError):  # their loop may be closed
                for request in self._active.values():
                    request.future.cancel()
            self._driver, self._active = None, {}
            self._abandon()
        if self._driver is None or self._driver.done():
            self._drivers += 1
            self._driver = loop.create_task(self._drive(self._drivers), name=f"{self.name}-rollout-driver")
            self._driver.add_done_callback(_told)

    async def _settle(self) -> None:
        """Yield until no coroutine adds a request any more."""
        quiet, seen = 0, -1
        while quiet < SETTLE_PASSES:
            await asyncio.sleep(0)
            quiet = quiet + 1 if self._arrived == seen else 0
            seen = self._arrived

    def _refuse_while_running(self, what: str) -> None:
        if any(not request.done for request in self._active.values()):
            raise RolloutError(f"{what} while requests are running; abort them first")

    def publish(self, weights: Iterable[Mapping[str, Tensor]] | None, version: int) -> None:
        """`weights` is None, or buckets of named tensors; those not the module's own memory are copied into it."""
        self._prepare_publish()
        if weights is not None:
            self._is_whole = False
            self._take_over(weights)
        self._prove_publish()
        self._is_whole, self.version = True, version

    def _prepare_publish(self) -> None:
        """Refuse, or forget what belongs to the weights so far."""
        self._refuse_while_running("weights cannot change")

    def _prove_publish(self) -> None:
        """RolloutError where what generates is not what was published."""

    def _take_over(self, buckets: Iterable[Mapping[str, Tensor]]) -> None:
        """Copy bucket after bucket into the module; who makes them proves that all arrived (workers/replica.py)."""
        own = self.module.state_dict(keep_vars=True)
        filled: dict[int, str] = {}  # memory that was written to → by which name
        for bucket in buckets:
            self._check_fit(bucket, own)
            with torch.no_grad():
                _copy(bucket, own, filled)
            del bucket  # before the next one is made
        if not filled:
            raise RolloutError("no weight was published; None says that the engine reads the trainer's own memory")

    def _check_fit(self, bucket: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
        """All of a bucket, before the first of it is copied."""
        for name, tensor in bucket.items():
            if name not in own:
                raise RolloutError(f"published weight {name!r} is not part of {type(self.module).__name__}")
            if tensor.shape != own[name].shape:
                shapes = f"{tuple(tensor.shape)}, and the module's is {tuple(own[name].shape)}"
                raise RolloutError(f"published weight {name!r} is {shapes}; publish weights of the same model")

    def _fail(self, requests: Sequence[Request], error: Exception) -> None:
        """Every caller of a broken step gets its own error, with the cause."""
        for request in requests:
            if request.done:
                continue
            failure: Exception
            if isinstance(error, RolloutError):
                failure = RolloutError(f"request {request.request_id}: {error}")
            elif isinstance(error, BurnishError):  # says itself what to mend
                failure = type(error).__new__(type(error), *error.args)  # its text is made already
                failure.__dict__.update(error.__dict__)
            else:
                failure = RolloutError(f"request {request.request_id}: {type(error).__name__}: {error}")
            failure.__cause__ = error
            request.future.set_exception(failure)


def _copy(bucket: Mapping[str, Tensor], own: Mapping[str, Tensor], filled: dict[int, str]) -> None:
    """Copy what is not there already.

    Tied names share their memory. The first one writes, and the others, which may come in later buckets, must agree.
    """
    for name, tensor in bucket.items():
        place = own[name].data_ptr()
        first = filled.setdefault(place, name)
        if first != name and not _same(own[name], tensor.to(own[name])):
            raise RolloutError(
                f"published weight {name!r} did not arrive: the module's own differs because it shares its memory with "
                f"{first!r}"
            )
        if first == name and place != tensor.data_ptr():
            own[name].copy_(tensor)


def _same(one: Tensor, other: Tensor) -> bool:
    """Equal, where NaN is NaN: weights that are broken did arrive, and what generates with them says so."""
    return torch.equal(one, other) or bool(((one == other) | (one.isnan() & other.isnan())).all())


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    training = module.training
    module.eval()
    try:
        yield
    finally:
        if training:
            module.train()


def _told(driver: "asyncio.Task[None]") -> None:
    """Errors of steps reach the callers. An interrupt rises from the loop too; whatever else ends a driver is told."""
    error = None if driver.cancelled() else driver.exception()
    if isinstance(error, Exception):
        log.error("%s ended: %s", driver.get_name(), error, exc_info=error)


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
