"""A rollout engine that is replaced when it is lost: callers still get their completions (docs/rollout.md).

An engine is lost when a request or an order ends with EngineLost, or when its `lost()` gives a reason. One new engine
is made (`renewed`), in a thread, with the weights last published, and each request is sent again from its start.
After `RESTARTS` new engines without a completed request in between, or when no new one could be made within
`REPLACING_S`, every request and order fails. A wait for a replacement also ends by `close`, `abort` or cancellation.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from burnish.errors import EngineLost, RolloutError
from burnish.rollout.base import Completion, OnToken, Request, RolloutEngine
from burnish.waits import ran, waiting

RESTARTS = 3
# A program has 1800 s to start and, on a CPU, 1200 s each to load weights, to check them, to open and to fall asleep;
# the lost one has 140 s to end.
REPLACING_S = 6800.0
LATE_S = 10.0  # after that, for whoever waits to give up
LOOK_S = 1.0  # between two looks at the clock, which takes a longer gap for a pause of the process (`burnish/waits.py`)
CLOSE_S = 30.0  # for a new engine that is being made and nobody wants any more
STOPPED = "the rollout engine has stopped"
# Values of `stats` that are of now; all others are counts, which continue where those of a lost engine ended.
OF_NOW = {"running", "waiting", "in_flight", "kv_blocks", "kv_blocks_used", "kv_blocks_cached", "tokens_per_s"}

log = logging.getLogger(__name__)


class ReplacingEngine(RolloutEngine):
    """See the module's docstring. `engine` is the current one."""

    def __init__(self, engine: RolloutEngine):
        self.engine = engine
        self.context, self.vocabulary = engine.context, engine.vocabulary
        self.own_weights, self.runs_on = engine.own_weights, engine.runs_on
        self._lock = threading.Lock()  # for all below
        self._requests: set[_PendingRequest] = set()
        self._replacement: Future[RolloutEngine] | None = None  # being made, or the one that failed for good
        self._due = 0.0  # when it has to be there
        self._reasons: list[str] = []  # of replacements since a request was completed
        self._maker: threading.Thread | None = None
        self._is_closed = False
        self._past: dict[str, float] = {}  # counts of lost engines
        self._restarts = self._again = 0
        self._version = 0
        self._sleeps = self._admits_any_time = False

    async def generate(self, request: Request, on_token: OnToken | None = None) -> Completion:
        pending = _PendingRequest(request.request_id, on_token)
        with self._lock:
            self._requests.add(pending)
        try:
            while True:
                engine = await self._ready(pending)
                if pending.is_aborted:
                    return pending.aborted_completion(self._version)
                try:
                    completion = await engine.generate(request, pending.listener(self._version))
                except RolloutError as error:
                    if (why := _why(engine, error)) is None:
                        raise
                    pending.losses.append(why)
                    self._lose(engine, why)
                    continue
                with self._lock:
                    if completion.finish_reason != "abort" and self._replacement is None:
                        self._reasons.clear()
                pending.check(completion)
                if completion.finish_reason == "abort" and len(completion.token_ids) < len(pending.token_ids):
                    return pending.aborted_completion(self._version)  # an engine that was lost had come further
                return completion
        finally:
            with self._lock:
                self._requests.discard(pending)

    def abort(self, request_id: str) -> None:
        with self._lock:
            replacement, engine = self._replacement, self.engine
            pending = [one for one in self._requests if one.request_id == request_id]
        for one in pending:
            one.abort()  # should the engine be lost with it
        if replacement is None:
            engine.abort(request_id)

    def publish(self, weights: Iterable[Mapping[str, Any]] | None, version: int) -> None:
        """Where the engine is lost on the way, the next one has kept them all, as a program does in files, or gets them
        from the first bucket on. An iterator of buckets can be read only once: then RolloutError rises, and requests
        are refused until a publish succeeds."""
        is_begun = is_taken = False

        def buckets(weights: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
            nonlocal is_begun, is_taken
            is_begun = True
            yield from weights
            is_taken = True

        def order(engine: RolloutEngine) -> None:
            nonlocal is_taken
            if is_taken and getattr(engine, "version", None) == version:
                return
            if is_begun and isinstance(weights, Iterator):
                raise RolloutError(
                    f"the rollout engine was lost while it loaded the weights of version {version}, and some "
                    "buckets, which are sent only once, with it; publish again"
                )
            is_taken = False
            engine.publish(None if weights is None else buckets(weights), version)

        self._order(order)
        with self._lock:
            self._version = version
            pending = list(self._requests)
        for one in pending:
            one.follow(version)

    def sleep(self) -> None:
        self._order(lambda engine: engine.sleep())
        self._sleeps = True

    def wake(self) -> None:
        self._order(lambda engine: engine.wake())
        self._sleeps = False

    def admit_any_time(self) -> None:
        self._admits_any_time = True
        self._order(lambda engine: engine.admit_any_time())

    def stats(self) -> dict[str, float]:
        """Also `replica_restarts`, new engines so far, and `requests_again`, requests that were sent again."""
        with self._lock:
            engine, past = self.engine, self._past
            failures = {"replica_restarts": self._restarts, "requests_again": self._again}
        return _added(past, engine.stats()) | failures

    @property
    def in_flight(self) -> int:
        return len(self._requests)

    def lost(self) -> str | None:
        """Why there will be no engine any more; None also while a new one is made."""
        with self._lock:
            if self._replacement is not None and self._replacement.done():
                return str(self._replacement.exception())
            return STOPPED if self._is_closed else None

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            replacement, maker = self._replacement, self._maker
        if replacement is not None:
            self._give_up(replacement, STOPPED)
        if maker is not None:
            maker.join(CLOSE_S)
        self.engine.close()

    async def _ready(self, pending: "_PendingRequest") -> RolloutEngine:
        """The engine to ask, once there is one. It is asked before anything else can happen in this event loop."""
        while True:
            with self._lock:
                engine, replacement = self.engine, self._replacement
                if pending.is_aborted:
                    return engine
                if replacement is None:
                    if len(pending.losses) > RESTARTS:
                        raise RolloutError(
                            f"request {pending.request_id}: {len(pending.losses)} rollout engines were lost while they "
                            f"had it, and it is not sent again. The reasons in order: {_listed(pending.losses)}"
                        )
                    self._again += bool(pending.losses)
                    return engine
            made = asyncio.wrap_future(replacement)
            try:
                either: list[asyncio.Future[Any]] = [made, pending.aborted]
                await asyncio.wait(either, timeout=min(self._left_s(), LOOK_S), return_when=asyncio.FIRST_COMPLETED)
                self._give_up_late(replacement)
                if replacement.done():
                    replacement.result()
            except RolloutError as error:
                raise RolloutError(f"request {pending.request_id}: {error}") from error
            finally:
                made.cancel()
                made.add_done_callback(lambda done: done.cancelled() or done.exception())

    def _order(self, order: Callable[[RolloutEngine], None]) -> None:
        """Have an engine that is well carry it out. Waits for a new one where it must."""
        while True:
            with self._lock:
                engine, replacement = self.engine, self._replacement
            if replacement is not None:
                self._wait_for(replacement)
                continue
            if (why := engine.lost()) is None:
                try:
                    return order(engine)
                except RolloutError as error:
                    if (why := _why(engine, error)) is None:
                        raise
            self._lose(engine, why)

    def _wait_for(self, replacement: "Future[RolloutEngine]") -> None:
        with waiting("engine", "", "a new rollout engine in the place of a lost one", self._left_s() + LATE_S):
            while not replacement.done():
                with suppress(TimeoutError, RolloutError):
                    replacement.result(min(self._left_s(), LOOK_S))
                self._give_up_late(replacement)
        if error := replacement.exception():
            raise RolloutError(str(error)) from error

    # The replacement

    def _left_s(self) -> float:
        return max(0.0, self._due - ran())

    def _lose(self, engine: RolloutEngine, why: str) -> None:
        """The engine is lost: one replacement begins, however many find so."""
        with self._lock:
            if self._is_closed:
                raise RolloutError(STOPPED)
            if self._replacement is not None or self.engine is not engine:
                return
            replacement: Future[RolloutEngine] = Future()
            replacement.set_running_or_notify_cancel()  # a caller that is cancelled does not cancel it for the others
            self._replacement, self._due = replacement, ran() + REPLACING_S
            self._reasons.append(why)
            self._maker = threading.Thread(
                target=self._replace, args=(engine, replacement), name="rollout-replacement", daemon=True
            )
            self._maker.start()

    def _replace(self, lost: RolloutEngine, replacement: "Future[RolloutEngine]") -> None:
        """In its own thread. A new engine that cannot be made, or fails at once, counts like one that was lost."""
        newest = lost
        while not replacement.done():
            if len(self._reasons) > RESTARTS:
                self._give_up(replacement)
                break
            log.warning("the rollout engine is lost (%s); a new one is made", self._reasons[-1])
            try:
                engine = newest = newest.renewed()
                if self._admits_any_time:
                    engine.admit_any_time()
                if self._sleeps:
                    engine.sleep()
            except Exception as error:  # noqa: BLE001 (it rises when there were too many, with the others)
                with self._lock:
                    self._reasons.append(f"no new engine could be made: {type(error).__name__}: {error}")
                continue
            counts: dict[str, float] = {}
            with suppress(RolloutError):  # its processes, which it would ask, have ended
                counts = lost.stats()
            with self._lock:
                if replacement.done():  # it is not wanted any more
                    break
                self._past = _added(self._past, counts)
                self.engine, self._replacement = engine, None
                self.context, self.vocabulary = engine.context, engine.vocabulary
                self._restarts += 1
                again, restarts = len(self._requests), self._restarts
                replacement.set_result(engine)
            log.warning("a new rollout engine (restart %d) has the weights; requests sent again: %d", restarts, again)
            return
        if newest is not lost:  # which is closed with this one
            newest.close()

    def _give_up(self, replacement: "Future[RolloutEngine]", why: str = "") -> None:
        """A replacement that failed stays: there is no engine any more."""
        given_up = "the rollout engine is lost, no other one completed a request in its place, and it is given up"
        with self._lock:
            if not replacement.done():
                why = why or f"{given_up}. The reasons in order: {_listed(self._reasons)}"
                replacement.set_exception(RolloutError(why))

    def _give_up_late(self, replacement: "Future[RolloutEngine]") -> None:
        with self._lock:
            if replacement.done() or self._left_s():
                return
            self._reasons.append(f"no new engine was there after {REPLACING_S:g} s")
        self._give_up(replacement)


class _PendingRequest:
    """One call of `generate`, and the tokens that its `on_token` got. Belongs to the event loop that awaits it."""

    def __init__(self, request_id: str, on_token: OnToken | None):
        self.request_id, self.on_token = request_id, on_token
        self.token_ids: list[int] = []  # that `on_token` got
        self.log_probs: list[float] = []
        self.versions: list[int] = []
        self.losses: list[str] = []  # why engines were lost that had it
        self.is_aborted = False
        self._loop = asyncio.get_running_loop()
        self.aborted: asyncio.Future[None] = self._loop.create_future()
        self._version = 0
        self._attempt = 0
        self._differs_at: int | None = None

    def abort(self) -> None:
        self.is_aborted = True
        with suppress(RuntimeError):  # its loop is closed
            self._loop.call_soon_threadsafe(self.aborted.cancel)

    def follow(self, version: int) -> None:
        """From now on tokens come from these weights. From any thread: after the tokens still on their way."""
        with suppress(RuntimeError):  # its loop is closed
            self._loop.call_soon_threadsafe(setattr, self, "_version", version)

    def listener(self, version: int) -> OnToken | None:
        """`on_token` for the next attempt, with weights of this version: it skips the tokens that it got before."""
        self._attempt += 1
        self._version = version
        on_token, attempt, count = self.on_token, self._attempt, 0
        if on_token is None:
            return None

        def listen(token_id: int, log_prob: float) -> None:
            nonlocal count
            if attempt != self._attempt or self._differs_at is not None:
                return  # from an engine that is lost, or not what it should be
            count += 1
            if count > len(self.token_ids):
                self.token_ids.append(token_id)
                self.log_probs.append(log_prob)
                self.versions.append(self._version)
                on_token(token_id, log_prob)
            elif self.token_ids[count - 1] != token_id:
                self._differs_at = count - 1

        return listen

    def aborted_completion(self, version: int) -> Completion:
        """What its caller got, where it was aborted; `version` is that of no tokens."""
        oldest = min(self.versions, default=version)
        return Completion(self.token_ids, self.log_probs, "abort", None, oldest, self.versions)

    def check(self, completion: Completion) -> None:
        """RolloutError where its caller got other tokens than there are now."""
        if completion.finish_reason != "abort":
            pairs = zip(self.token_ids, completion.token_ids, strict=False)
            self._differs_at = next((i for i, (got, now) in enumerate(pairs) if got != now), self._differs_at)
        if self._differs_at is not None:
            raise RolloutError(
                f"request {self.request_id}: its engine was lost, and the new one samples another token at position "
                f"{self._differs_at}, which its caller has received already; ask again"
            )


def _why(engine: RolloutEngine, error: RolloutError) -> str | None:
    return engine.lost() or (str(error) if isinstance(error, EngineLost) else None)


def _listed(reasons: Sequence[str]) -> str:
    return "; ".join(f"{number}. {reason}" for number, reason in enumerate(reasons, 1))


def _added(past: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    """Counts of before and now together; values that are no counts are those of now."""
    of_before = {name: count for name, count in past.items() if name not in OF_NOW}
    return of_before | {name: value + of_before.get(name, 0.0) for name, value in now.items()}
