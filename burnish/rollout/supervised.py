"""A rollout engine that is replaced when it is lost: callers get their completions all the same.

`Supervised` is itself a `RolloutEngine`, around any other. An engine is lost when a request or an order ends with
EngineLost, or when its `lost()` says so. A thread asks that every `LOOK_S` while requests are in flight, so a hang is
found although nobody gets an error. Then

1. all that wait for the engine stop waiting for it, in whichever event loops they are;
2. one new engine is made (`renewed`), in a thread, with the weights last published;
3. each request is asked again from its start. Its noise is a function of its seed, so it gets the same tokens, and
   `on_token` is not told twice of those that it has been told of. Where it gets others, which weights published in
   between may cause, a request with `on_token` fails.

After `RESTARTS` new engines without a completed request in between, or when no new one could be made within
`RENEWAL_S`, it gives up: every request and order fails with a RolloutError that names all reasons, and `lost` gives
them. A request that more than `RESTARTS` engines were lost with fails alone: it may be what ends them.

What waits for what: a request for its engine, or for the renewal; the thread that makes the new engine for nothing but
that; the thread that looks for the clock. A renewal ends by its engine, its deadline, or `close`; a request besides by
`abort` or the cancellation of its caller.
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from burnish.errors import EngineLost, RolloutError
from burnish.rollout.base import Completion, OnToken, Request, RolloutEngine
from burnish.waits import ran, waiting

T = TypeVar("T")

RESTARTS = 3
LOOK_S = 2.0
# A program has 1800 s to start and, on a CPU, 1200 s each to load weights, to prove them, to open and to fall asleep;
# the lost one has 140 s to end.
RENEWAL_S = 6800.0
LATE_S = 10.0  # after that, for the look that ends a renewal
CLOSE_S = 30.0  # for a new engine in the making, which nobody wants any more
STOPPED = "the rollout engine has stopped"
# Figures of `stats` that are of now; all others are counts, which go on where those of a lost engine ended.
OF_NOW = {"running", "waiting", "in_flight", "kv_blocks", "kv_blocks_used", "kv_blocks_cached", "tokens_per_s"}

log = logging.getLogger(__name__)


class Supervised(RolloutEngine):
    """See the module's docstring. `engine` is the one in charge now."""

    def __init__(self, engine: RolloutEngine, look_s: float = LOOK_S, renewal_s: float = RENEWAL_S):
        self.engine, self._look_s, self._renewal_s = engine, look_s, renewal_s
        self.context, self.vocabulary = engine.context, engine.vocabulary
        self._lock = threading.Lock()  # for all below
        self._requests: set[_PendingRequest] = set()  # without an answer
        self._renewal: Future[RolloutEngine] | None = None  # under way, or the one that failed for good
        self._due = 0.0  # when the renewal has to be over
        self._reasons: list[str] = []  # of renewals since a request was completed
        self._maker: threading.Thread | None = None
        self._looker: threading.Thread | None = None
        self._closed = threading.Event()
        self._past: dict[str, float] = {}  # counts of lost engines
        self._restarts = self._again = 0
        self._version = 0
        self._sleeps = self._admits_any_time = False

    @property
    def own_weights(self) -> bool:  # type: ignore[override]
        return self.engine.own_weights

    @property
    def runs_on(self) -> bool:  # type: ignore[override]
        return self.engine.runs_on

    async def generate(self, request: Request, on_token: OnToken | None = None) -> Completion:
        pending = _PendingRequest(request.request_id, on_token)
        with self._lock:
            self._requests.add(pending)
            self._ensure_looker()
        try:
            while True:
                engine = await self._ready(pending)
                if pending.is_aborted:
                    return pending.as_told(self._version)
                work = engine.generate(request, pending.listener(self._version))
                try:
                    completion = await pending.wait_for(engine, work)
                except _Interrupted:
                    pending.check()
                    pending.losses.append(engine.lost() or "it was found lost")
                except RolloutError as error:
                    if (why := _why(engine, error)) is None:
                        raise
                    pending.losses.append(why)
                else:
                    self._note(completion)
                    pending.check(completion)
                    if completion.finish_reason == "abort" and len(completion.token_ids) < len(pending.token_ids):
                        return pending.as_told(self._version)  # by an engine that is lost
                    return completion
                self._lose(engine, pending.losses[-1])
        finally:
            with self._lock:
                self._requests.discard(pending)

    def abort(self, request_id: str) -> None:
        with self._lock:
            renewal, engine = self._renewal, self.engine
            meant = [request for request in self._requests if request.request_id == request_id]
        for request in meant:
            request.is_aborted = True  # should the engine be lost with it
            if renewal is not None:
                request.interrupt(renewal)
        if renewal is None:
            engine.abort(request_id)

    def publish(self, weights: Iterable[Mapping[str, Any]] | None, version: int) -> None:
        """Where the engine is lost on the way, the next one gets them: it may have kept them all, as a program does in
        files; otherwise they are handed over again from the first bucket. An iterator of buckets cannot be gone through
        again: then RolloutError rises, and requests are refused until a publish succeeds."""
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
                    f"the rollout engine was lost while it took over the weights of version {version}, and a part of "
                    "them with it, which is not handed over twice; publish again"
                )
            is_taken = False
            engine.publish(None if weights is None else buckets(weights), version)

        self._order(order)
        with self._lock:
            self._version = version
            told = [request for request in self._requests if request.on_token is not None]
        for request in told:
            request.follow(version)

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
        """Also `replica_restarts`, new engines so far, and `requests_again`, requests that were asked again."""
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
            renewal = self._renewal
            if renewal is not None and renewal.done():
                return str(renewal.exception())
            return STOPPED if self._closed.is_set() else None

    def close(self) -> None:
        """End the engine, and the one in the making."""
        with self._lock:
            self._closed.set()
            renewal, maker = self._renewal, self._maker
        if renewal is not None:
            self._settle(renewal, RolloutError(STOPPED))
        if maker is not None:
            maker.join(CLOSE_S)
        self.engine.close()

    async def _ready(self, request: "_PendingRequest") -> RolloutEngine:
        """The engine to ask, once there is one. It is asked before anything else can happen in this event loop."""
        while True:
            with self._lock:
                engine, renewal = self.engine, self._renewal
                if renewal is None or request.is_aborted:
                    request.refuse_again()
                    self._again += request.was_asked and not request.is_aborted
                    return engine
            try:
                await request.wait_for(renewal, asyncio.wrap_future(renewal))
            except _Interrupted:
                continue  # it was aborted
            except RolloutError as error:
                raise RolloutError(f"request {request.request_id}: {error}") from error

    def _note(self, completion: Completion) -> None:
        with self._lock:
            if completion.finish_reason != "abort" and self._renewal is None:
                self._reasons.clear()

    def _order(self, order: Callable[[RolloutEngine], None]) -> None:
        """Have an engine that is well carry it out. Waits for a new one where it must."""
        while True:
            with self._lock:
                engine, renewal = self.engine, self._renewal
            if renewal is not None:
                try:
                    self._wait_for(renewal)
                except RolloutError as error:
                    raise RolloutError(str(error)) from error
                continue
            if (why := engine.lost()) is None:
                try:
                    return order(engine)
                except RolloutError as error:
                    if (why := _why(engine, error)) is None:
                        raise
            self._lose(engine, why)

    def _wait_for(self, renewal: "Future[RolloutEngine]") -> None:
        left_s = max(0.0, self._due - ran()) + LATE_S
        with waiting("engine", "", "a new rollout engine in the place of a lost one", left_s):
            renewal.result()

    # Renewal

    def _lose(self, engine: RolloutEngine, why: str) -> None:
        """The engine is lost: one renewal begins for all that find so, and those that wait for it wait no more."""
        with self._lock:
            if self._closed.is_set():
                raise RolloutError(STOPPED)
            if self._renewal is not None or self.engine is not engine:
                return
            renewal: Future[RolloutEngine] = Future()
            renewal.set_running_or_notify_cancel()  # a caller that is cancelled does not cancel it for the others
            self._renewal, self._due = renewal, ran() + self._renewal_s
            self._reasons.append(why)
            self._maker = threading.Thread(
                target=self._renew, args=(engine, renewal), name="rollout-renewal", daemon=True
            )
            self._maker.start()
            self._ensure_looker()
            unanswered = list(self._requests)
        for request in unanswered:
            request.interrupt(engine)

    def _renew(self, lost: RolloutEngine, renewal: "Future[RolloutEngine]") -> None:
        """In a thread of its own. A new engine that cannot be made counts like one that was lost, and one that was made
        and fails at once is replaced in its turn."""
        newest = lost
        while not renewal.done():
            if len(self._reasons) > RESTARTS:
                self._give_up(renewal)
                break
            log.warning("the rollout engine is lost (%s); a new one is made", self._reasons[-1])
            counts: dict[str, float] = {}
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
            with suppress(RolloutError):  # its processes, of which it would ask, are gone
                counts = lost.stats()
            if self._settle(renewal, engine, counts):
                return
        if newest is not lost:  # which is closed with this one
            newest.close()

    def _settle(
        self,
        renewal: "Future[RolloutEngine]",
        outcome: RolloutEngine | RolloutError,
        counts: Mapping[str, float] | None = None,
    ) -> bool:
        """End a renewal; False where it had ended already. One that failed stays: there is no engine any more.

        counts      of the engine that was lost
        """
        with self._lock:
            if renewal.done():
                return False
            if isinstance(outcome, RolloutError):
                renewal.set_exception(outcome)
                return True
            self._past = _added(self._past, counts or {})
            self.engine, self._renewal = outcome, None
            self.context, self.vocabulary = outcome.context, outcome.vocabulary
            self._restarts += 1
            again, restarts = len(self._requests), self._restarts
            renewal.set_result(outcome)
        log.warning("a new rollout engine (restart %d) has the weights; requests asked again: %d", restarts, again)
        return True

    def _give_up(self, renewal: "Future[RolloutEngine]") -> None:
        self._settle(
            renewal,
            RolloutError(
                "the rollout engine is lost, no other one completed a request in its place, and it is given up. The "
                f"reasons in order: {_listed(self._reasons)}"
            ),
        )

    # The look at the engine

    def _ensure_looker(self) -> None:
        if self._looker is None and not self._closed.is_set():
            self._looker = threading.Thread(target=self._look, name="rollout-heartbeat", daemon=True)
            self._looker.start()

    def _look(self) -> None:
        while not self._closed.wait(self._look_s):
            with self._lock:
                engine, renewal = self.engine, self._renewal
                if not self._requests and (renewal is None or renewal.done()):
                    self._looker = None
                    return
            if renewal is None:
                if (why := engine.lost()) is not None:
                    with suppress(RolloutError):  # closed meanwhile
                        self._lose(engine, why)
            elif not renewal.done() and ran() > self._due:
                with self._lock:
                    self._reasons.append(f"no new engine was there after {self._renewal_s:g} s")
                self._give_up(renewal)


class _Interrupted(Exception):
    """What a request waits for is not to be waited for any more."""


class _PendingRequest:
    """One call of `generate`: the task that awaits it, and what it was told. Of the task's event loop."""

    def __init__(self, request_id: str, on_token: OnToken | None):
        task = asyncio.current_task()
        assert task is not None, "generate is awaited in a task"
        self.request_id, self.on_token = request_id, on_token
        self.token_ids: list[int] = []  # that `on_token` was told of
        self.log_probs: list[float] = []
        self.versions: list[int] = []
        self.losses: list[str] = []  # why engines were lost that had it
        self.is_aborted = False
        self._version = 0
        self._task, self._loop = task, asyncio.get_running_loop()
        self._awaits: object = None
        self._is_interrupted = False
        self._attempt = 0
        self._differs_at: int | None = None

    @property
    def was_asked(self) -> bool:
        """Of an engine, once at least."""
        return self._attempt > 0

    async def wait_for(self, what: object, work: Awaitable[T]) -> T:
        """The result; `_Interrupted` where `interrupt(what)` came first."""
        before = self._task.cancelling()
        self._awaits, self._is_interrupted = what, False
        try:
            return await work
        except asyncio.CancelledError:
            if self._is_interrupted and self._task.cancelling() == before + 1:
                raise _Interrupted from None
            raise  # by its caller
        finally:
            self._awaits = None
            if self._is_interrupted:
                self._task.uncancel()

    def interrupt(self, what: object) -> None:
        """End the wait for this, if it still waits for it. From any thread."""
        with suppress(RuntimeError):  # its loop is closed, and the task gone with it
            self._loop.call_soon_threadsafe(self._interrupt, what)

    def _interrupt(self, what: object) -> None:
        if self._awaits is what and not self._is_interrupted:
            self._is_interrupted = True
            self._task.cancel()

    def follow(self, version: int) -> None:
        """Tokens are of these weights from now on. From any thread: behind those that its loop is still to be told."""
        with suppress(RuntimeError):  # its loop is closed
            self._loop.call_soon_threadsafe(setattr, self, "_version", version)

    def listener(self, version: int) -> OnToken | None:
        """`on_token` for the next attempt, with weights of this version: of the tokens that it was told of before it is
        not told again."""
        self._attempt += 1
        self._version = version
        on_token, attempt, count = self.on_token, self._attempt, 0
        if on_token is None:
            return None

        def tell(token_id: int, log_prob: float) -> None:
            nonlocal count
            if attempt != self._attempt or self._differs_at is not None:
                return  # of an engine that is not asked any more
            count += 1
            if count > len(self.token_ids):
                self.token_ids.append(token_id)
                self.log_probs.append(log_prob)
                self.versions.append(self._version)
                on_token(token_id, log_prob)
            elif self.token_ids[count - 1] != token_id:
                self._differs_at = count - 1
                self._interrupt(self._awaits)

        return tell

    def as_told(self, version: int) -> Completion:
        """What its caller was told of, where it was aborted; `version` is that of no tokens."""
        oldest = min(self.versions, default=version)
        return Completion(self.token_ids, self.log_probs, "abort", None, oldest, self.versions)

    def refuse_again(self) -> None:
        """RolloutError where too many engines were lost that had it."""
        if len(self.losses) > RESTARTS and not self.is_aborted:
            raise RolloutError(
                f"request {self.request_id}: {len(self.losses)} rollout engines were lost while they had it, and it is "
                f"not asked again. The reasons in order: {_listed(self.losses)}"
            )

    def check(self, completion: Completion | None = None) -> None:
        """RolloutError where its caller was told of other tokens than there are now."""
        if completion is not None and completion.finish_reason != "abort":
            pairs = zip(self.token_ids, completion.token_ids, strict=False)
            self._differs_at = next((i for i, (told, now) in enumerate(pairs) if told != now), self._differs_at)
        if self._differs_at is not None:
            raise RolloutError(
                f"request {self.request_id}: its engine was lost, and the new one samples another token at position "
                f"{self._differs_at}, which its caller has been told of already; ask again"
            )


def _why(engine: RolloutEngine, error: RolloutError) -> str | None:
    """Why the engine is lost, where this error comes of that."""
    return engine.lost() or (str(error) if isinstance(error, EngineLost) else None)


def _listed(reasons: Sequence[str]) -> str:
    return "; ".join(f"{number}. {reason}" for number, reason in enumerate(reasons, 1))


def _added(past: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    """Counts of before and now together; figures that are no counts are those of now."""
    of_before = {name: count for name, count in past.items() if name not in OF_NOW}
    return of_before | {name: value + of_before.get(name, 0.0) for name, value in now.items()}
