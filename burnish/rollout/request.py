"""One request inside an engine: what was asked, what has been sampled, and the future its caller awaits.

`accept` takes the next sampled token and decides whether it was the last: end-of-sequence or stop id first, then a
stop string, then the length limit. The ending token stays part of the completion, because the policy sampled it.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from burnish.rollout.base import Completion, FinishReason, OnToken, Sampling
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

    @property
    def done(self) -> bool:
        """Answered, aborted, failed, or given up by its caller."""
        return self.future.done()

    @property
    def width(self) -> int:
        """Tokens of prompt and completion so far."""
        return len(self.prompt_ids) + len(self.token_ids)

    def accept(self, token_id: int, log_prob: float, version: int) -> None:
        self.token_ids.append(token_id)
        self.log_probs.append(log_prob)
        stop = self.noticed(token_id, log_prob)
        if stop is not None:
            self.finish("stop", stop, version)
        elif len(self.token_ids) >= self.limit:
            self.finish("length", None, version)

    def noticed(self, token_id: int, log_prob: float) -> str | int | None:
        """Tell the caller of a token; what it ends the request by, if it does."""
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
            self._fail(error)
        else:
            loop.call_soon_threadsafe(self._fail, error)

    def _fail(self, error: Exception) -> None:
        if not self.done:
            self.future.set_exception(error)

    def finish(self, reason: FinishReason, stop: str | int | None, version: int, versions: Sequence[int] = ()) -> None:
        """`versions` has one entry per token, where they are not all `version`."""
        self.future.set_result(Completion(self.token_ids, self.log_probs, reason, stop, version, list(versions)))
