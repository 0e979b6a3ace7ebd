"""What the engines have in common that run a transformers module in this process: `hf` and `native`.

One driver task per event loop advances requests; it is started by the first one and ends when none is left, so nothing
bound to an event loop outlives it. It waits with `_settle` until no coroutine adds another request: what is batched
with what then depends on the requests and not on how fast anything was.
"""

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Self

import torch
from torch import Tensor, nn

from burnish.config.rollout import RolloutConfig
from burnish.errors import BurnishError, ConfigError, EngineLost, RolloutError
from burnish.ops.sampling import draw
from burnish.rollout.admission import Admitting, RequestState, check_fit
from burnish.rollout.base import OnToken, Request, Sampling
from burnish.waits import Wait, waiting

log = logging.getLogger(__name__)

SETTLE_PASSES = 16  # passes of the event loop without a new request before work starts
STEP_DEADLINE_S = {"cuda": 300.0, "cpu": 1800.0}  # a step that takes longer hangs; the first ones capture graphs
OWNER = "the rollout engine"


class InProcessEngine(Admitting):
    """Generates with `module`, whose weights it shares: an optimiser step is seen by what is generated next."""

    name: str
    _made_from: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        engine = super().__new__(cls)
        engine._made_from = args, kwargs  # for `renewed`
        return engine

    def __init__(self, module: nn.Module, tokenizer: Any, max_model_len: int | None = None):
        super().__init__(module, tokenizer, max_model_len)
        self.module = module
        self.step_deadline_s = STEP_DEADLINE_S.get(next(module.parameters()).device.type, 1800.0)
        self._broken: EngineLost | None = None  # by a step that did not end
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

    def _take_request(self, request: Request, on_token: OnToken | None) -> RequestState:
        self._ensure_driver()
        state = super()._take_request(request, on_token)
        self._arrived += 1
        return state

    @abstractmethod
    async def _drive(self, number: int) -> None:
        """Answer what has come, until nothing is left. It may clean up after itself while `_drivers` is its number."""

    @abstractmethod
    def _abandon(self) -> None:
        """Forget what an event loop left behind that ended before its requests did."""

    def _computing(self, what: str) -> Wait:
        """Around a step: one that does not end means that the process hangs (`tracking/watchdog.py`)."""
        return waiting("engine", OWNER, what, self.step_deadline_s)

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
            self._driver.add_done_callback(_log_error)

    async def _settle(self) -> None:
        quiet, seen = 0, -1
        while quiet < SETTLE_PASSES:
            await asyncio.sleep(0)
            quiet = quiet + 1 if self._arrived == seen else 0
            seen = self._arrived

    def publish(self, weights: Iterable[Mapping[str, Tensor]] | None, version: int) -> None:
        """`weights` is None, or buckets of named tensors; those not the module's own memory are copied into it."""
        self._prepare_publish()
        try:
            if weights is not None:
                self._is_whole = False
                self._take_over(weights)
            self._prove_publish()
        except BaseException as error:
            self._end_running(RolloutError(f"the weights were to change under it, which failed: {error}"))
            raise
        self._is_whole, self.version = True, version

    def _prepare_publish(self) -> None:
        """Refuse, or forget what belongs to the weights so far."""
        self._refuse_while_running("weights cannot change")

    def _end_running(self, error: Exception) -> None:
        """No request continues with weights that may be half old, half new."""

    def _prove_publish(self) -> None:
        """RolloutError where what generates is not what was published."""

    def _take_over(self, buckets: Iterable[Mapping[str, Tensor]]) -> None:
        """Copy bucket after bucket into the module; who makes them proves that all arrived (workers/replica.py)."""
        own = self.module.state_dict(keep_vars=True)
        shapes = {name: tuple(tensor.shape) for name, tensor in own.items()}
        filled: dict[int, str] = {}  # memory that was written to → by which name
        for bucket in buckets:
            check_fit(bucket, shapes, type(self.module).__name__, "module")  # before the first of it is copied
            with torch.no_grad():
                _copy(bucket, own, filled)
            del bucket  # before the next one is made
        if not filled:
            raise RolloutError("no weight was published; None says that the engine reads the trainer's own memory")

    def lost(self) -> str | None:
        return None if self._broken is None else str(self._broken).partition("\n")[0]

    def renewed(self) -> Self:
        """An engine made of the same, over the same module: its memory holds the weights already."""
        args, kwargs = self._made_from
        self._give_back()
        new = type(self)(*args, **kwargs)
        if self._is_whole:
            new.publish(None, self.version)
        new._is_whole, new.version = self._is_whole, self.version
        return new

    def _give_back(self) -> None:
        """It is lost: let go of memory that the next engine needs. Called in any thread, perhaps again."""

    def _fail(self, requests: Sequence[RequestState], error: Exception) -> None:
        """Every caller of a broken step gets its own error, with the cause."""
        for request in requests:
            if request.done:
                continue
            failure: Exception
            if isinstance(error, RolloutError):
                kind = EngineLost if isinstance(error, EngineLost) else RolloutError
                failure = kind(f"request {request.request_id}: {error}")
            elif isinstance(error, BurnishError):  # says itself what to fix
                failure = type(error).__new__(type(error), *error.args)  # its text is made already
                failure.__dict__.update(error.__dict__)
            else:
                failure = RolloutError(f"request {request.request_id}: {type(error).__name__}: {error}")
            failure.__cause__ = error
            request.fail(failure)


def _copy(bucket: Mapping[str, Tensor], own: Mapping[str, Tensor], filled: dict[int, str]) -> None:
    """Copy what is not there already. Of tied names, which share their memory, the first one writes, and the others,
    which may come in later buckets, must agree."""
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
    """Equal, where NaN is NaN: weights that are broken did arrive, and generating with them reports it."""
    return torch.equal(one, other) or bool(((one == other) | (one.isnan() & other.isnan())).all())


def sample(logits: Tensor, samplings: Sequence[Sampling], noise: Tensor) -> tuple[Tensor, Tensor]:
    """One token per row: `logits` (B, V), `noise` (B,) in [0, 1) → token ids (B,) int64, log-probs (B,) float32."""

    def column(name: str) -> Tensor:
        values = [getattr(sampling, name) for sampling in samplings]
        return torch.tensor(values, dtype=torch.float32, device=logits.device)

    truncates = any(sampling.truncates for sampling in samplings)
    truncation = (column("top_k"), column("top_p"), column("min_p")) if truncates else None
    return draw(logits, column("temperature"), noise.to(logits.device, torch.float64), truncation)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    training = module.training
    module.eval()
    try:
        yield
    finally:
        if training:
            module.train()


def _log_error(driver: "asyncio.Task[None]") -> None:
    """Errors of steps reach the callers. An interrupt rises from the loop too; other ends of a driver are logged."""
    error = None if driver.cancelled() else driver.exception()
    if isinstance(error, Exception):
        log.error("%s ended: %s", driver.get_name(), error, exc_info=error)
