"""What engines have in common that answer requests themselves: which ones they take, and what a taken one is.

`Admitting` keeps the requests whose callers wait. An engine calls `_refuse_unready` and then `_take_request` when a
request comes, and takes it out of `_active` when its caller goes.
"""

import asyncio
from typing import Any

from torch import nn

from burnish.errors import ConfigError, NotAvailable, RolloutError
from burnish.rollout.base import OnToken, Request, RolloutEngine
from burnish.rollout.request import RequestState
from burnish.rollout.stops import StopMatcher


class Admitting(RolloutEngine):
    """An engine for a model of this shape; `module` is asked for it and not kept."""

    def __init__(self, module: nn.Module, tokenizer: Any, max_model_len: int | None = None):
        self.tokenizer = tokenizer
        self.context = _context(module, max_model_len)
        self.vocabulary = int(module.get_input_embeddings().num_embeddings)  # type: ignore[operator]
        self.version = 0
        self._eos_ids = _eos_ids(module, tokenizer)
        self._asleep = False
        self._is_whole = True  # no publish has left the weights half old, half new
        self._active: dict[str, RequestState] = {}  # whose callers wait

    def _refuse_unready(self, request: Request) -> None:
        """Refuse what no request could have now."""
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
        problem = self.prompt_problem(prompt_ids)
        if problem is not None:
            raise RolloutError(f"request {request_id}: {problem}")
        room = self.context - len(prompt_ids)
        state = self._active[request_id] = RequestState(
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


def _eos_ids(module: nn.Module, tokenizer: Any) -> frozenset[int]:
    """What ends a sequence: the tokenizer's token and those of the module's generation configuration."""
    listed = getattr(getattr(module, "generation_config", None), "eos_token_id", None)
    ids = listed if isinstance(listed, list | tuple) else [listed]
    return frozenset(int(i) for i in [*ids, tokenizer.eos_token_id] if i is not None)
