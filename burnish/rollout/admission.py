"""What engines have in common that answer requests themselves: which ones they take, and what a taken one is.

An engine says what it does with a request that was taken (`_enter`), and when its caller goes (`_leave`).
"""

import asyncio
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor, nn

from burnish.errors import ConfigError, NotAvailable, RolloutError
from burnish.rollout.base import Completion, FinishReason, OnToken, Request, RolloutEngine, Sampling
from burnish.rollout.stops import StopMatcher


@dataclass(eq=False)
class RequestState:
    """What an engine keeps of a `Request` until it is answered."""

    request_id: str
    prompt_ids: Sequence[int]
    sampling: Sampling
    limit: int  # tokens it may get: max_tokens, or what the context leaves
    stop_ids: frozenset[int]  # stop_token_ids, and end of sequence unless ignored
    matcher: StopMatcher | None
    future: "asyncio.Future[Completion]"
    order: tuple[int, ...] = ()
    on_token: OnToken | None = None
    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)  # of the weights that sampled each token; empty: all the same

    @property
    def done(self) -> bool:
        """Answered, aborted, failed, or given up by its caller."""
        return self.future.done()

    @property
    def width(self) -> int:
        return len(self.prompt_ids) + len(self.token_ids)

    def accept(self, token_id: int, log_prob: float, version: int) -> None:
        """Take the next sampled token. End-of-sequence or stop id come first, then a stop string, then the limit. The
        ending token stays part of the completion, because the policy sampled it."""
        self.token_ids.append(token_id)
        self.log_probs.append(log_prob)
        stop = self.noticed(token_id, log_prob)
        if stop is not None:
            self.finish("stop", stop, version)
        elif len(self.token_ids) >= self.limit:
            self.finish("length", None, version)

    def noticed(self, token_id: int, log_prob: float) -> str | int | None:
        """Pass a token to the caller; returns the stop that ends the request, if one does."""
        if self.on_token is not None:
            self.on_token(token_id, log_prob)
        found = self.matcher.push(token_id) if self.matcher else None
        return token_id if token_id in self.stop_ids else found

    def fail(self, error: Exception) -> None:
        """Let its caller have this error; also from another thread than the caller's loop has."""
        loop = self.future.get_loop()
        try:
            is_here = asyncio.get_running_loop() is loop
        except RuntimeError:
            is_here = not loop.is_running()
        if is_here:
            self.fail_here(error)
        else:
            loop.call_soon_threadsafe(self.fail_here, error)

    def fail_here(self, error: Exception) -> None:
        if not self.done:
            self.future.set_exception(error)

    def finish(self, reason: FinishReason, stop: str | int | None, version: int) -> None:
        """`version` is that of all tokens, or of none, unless `versions` are known."""
        oldest = min(self.versions, default=version)
        self.future.set_result(Completion(self.token_ids, self.log_probs, reason, stop, oldest, self.versions))


class Admitting(RolloutEngine):
    """An engine for a model of this shape; `module` is asked for it and not kept."""

    state_type: ClassVar[type[RequestState]] = RequestState

    def __init__(self, module: nn.Module, tokenizer: Any, max_model_len: int | None = None):
        self.tokenizer = tokenizer
        self.context = _context(module, max_model_len)
        self.vocabulary = int(module.get_input_embeddings().num_embeddings)  # type: ignore[operator]
        self.version = 0
        listed = getattr(getattr(module, "generation_config", None), "eos_token_id", None)
        listed = listed if isinstance(listed, list | tuple) else [listed]
        self._eos_ids = frozenset(int(i) for i in [*listed, tokenizer.eos_token_id] if i is not None)
        self._asleep = False
        self._is_whole = True  # no publish has left the weights half old, half new
        self._active: dict[str, RequestState] = {}  # whose callers wait

    async def generate(self, request: Request, on_token: OnToken | None = None) -> Completion:
        self._refuse_unready(request)
        state = self._take_request(request, on_token)
        try:
            self._enter(state)
            return await state.future
        finally:
            if self._active.get(request.request_id) is state:
                del self._active[request.request_id]
            self._leave(state)

    @abstractmethod
    def _enter(self, request: Any) -> None:
        """Begin to answer; what it raises rises at the caller. Gets a `state_type`, as `_leave` does."""

    @abstractmethod
    def _leave(self, request: Any) -> None:
        """A request's caller goes: it has its answer, or wants none any more."""

    def _refuse_unready(self, request: Request) -> None:
        request_id = request.request_id
        if request.images:
            raise NotAvailable(f"images in a rollout request (request {request_id})")
        if self._asleep:
            raise RolloutError(f"request {request_id}: the engine sleeps; call wake() before generating")
        if not self._is_whole:
            raise RolloutError(
                f"request {request_id}: the last publish failed, which may have left some weights old and some new; "
                "publish again before generating"
            )

    def _take_request(self, request: Request, on_token: OnToken | None) -> RequestState:
        """The request's state, active from now on; RolloutError where it cannot be answered."""
        request_id, prompt_ids, sampling = request.request_id, request.prompt_ids, request.sampling
        if request_id in self._active and not self._active[request_id].done:
            raise RolloutError(f"request {request_id} is already running; request ids must differ")
        if problem := self.prompt_problem(prompt_ids):
            raise RolloutError(f"request {request_id}: {problem}")
        room = self.context - len(prompt_ids)
        state = self._active[request_id] = self.state_type(
            request_id=request_id,
            prompt_ids=prompt_ids,
            sampling=sampling,
            limit=min(sampling.max_tokens or room, room),
            stop_ids=frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else self._eos_ids),
            matcher=StopMatcher(self.tokenizer, sampling.stop) if sampling.stop else None,
            future=asyncio.get_running_loop().create_future(),
            order=request.order,
            on_token=on_token,
        )
        return state

    def sleep(self) -> None:
        """Requests are refused; an engine that holds memory gives it back."""
        self._asleep = True

    def wake(self) -> None:
        self._asleep = False

    @property
    def in_flight(self) -> int:
        return sum(not request.done for request in list(self._active.values()))

    def _refuse_while_running(self, what: str) -> None:
        if self.in_flight:
            raise RolloutError(f"{what} while requests are running; abort them first")


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


def check_fit(bucket: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], model: str, holder: str) -> None:
    """RolloutError where published weights are not those of a model with these shapes; `holder` has it."""
    for name, tensor in bucket.items():
        if name not in shapes:
            raise RolloutError(f"published weight {name!r} is not part of {model}")
        if tuple(tensor.shape) != shapes[name]:
            raise RolloutError(
                f"published weight {name!r} is {tuple(tensor.shape)}, and the {holder}'s is {shapes[name]}; publish "
                "weights of the same model"
            )
