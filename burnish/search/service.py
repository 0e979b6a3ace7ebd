"""Queries of many requests to few calls of the retriever, in a separate thread.

The worker consumes `_waiting` (all that arrived during a call) and waits for the call that runs; `search` starts it
when there is something to do, and it ends when there is nothing, or by an error that fails all who wait.
"""

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice

from burnish.search.documents import AnswerCache, Hit, Retriever
from burnish.web import HttpProblem, overloaded

MAX_BATCH = 128  # queries of one call; also what a stopping server may still have to wait for
CACHED_DOCUMENTS = 100_000
MAX_WAITING = 16_384  # queries

BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
PREFIX = "burnish_retriever"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
COUNTERS = {
    "queries_total": "queries asked",
    "cache_hits_total": "queries answered from the cache",
    "joined_queries_total": "queries that shared the search of an equal one",
    "batches_total": "calls of the retriever",
    "batch_queries_total": "queries in them",
    "search_seconds_total": "seconds spent in them",
    "errors_total": "queries on which the retriever failed",
}

Key = tuple[str, int]  # query and topk

logger = logging.getLogger(__name__)


class SearchFailed(HttpProblem):
    """The retriever raised on a query, or broke its contract."""

    def __init__(self, detail: str):
        super().__init__(500, detail)


Outcome = list[Hit] | SearchFailed


class SearchService:
    """A retriever behind a queue and a cache. Its methods belong to one event loop."""

    def __init__(
        self, retriever: Retriever, *, cached_documents: int = CACHED_DOCUMENTS, max_waiting: int = MAX_WAITING
    ):
        self.retriever, self.metrics = retriever, Metrics()
        self.cache: AnswerCache[Key, list[Hit]] = AnswerCache(cached_documents)
        self._max_waiting = max_waiting
        self._waiting: dict[Key, asyncio.Future[Outcome]] = {}
        self._running: dict[Key, asyncio.Future[Outcome]] = {}
        self._wanted: Counter[Key] = Counter()  # requests that wait for it
        self._worker: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="retriever")  # one: the retriever's contract

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """The hits of each query, in order; SearchFailed where one has none because the retriever failed on it."""
        keys = [(query, topk) for query in queries]
        found, futures = self._look_up(keys)
        if futures:
            self.metrics.in_flight += 1
            self._wanted.update(futures.keys())
            try:
                await asyncio.wait(set(futures.values()))  # unlike gather, leaves them alone when this one is cancelled
            finally:
                self.metrics.in_flight -= 1
                self._wanted.subtract(futures.keys())
                for key in futures:
                    if not self._wanted[key]:
                        del self._wanted[key]
                        self._waiting.pop(key, None)  # all who asked have left
        outcomes: dict[Key, Outcome] = {**found, **{key: future.result() for key, future in futures.items()}}
        failed = [outcome for outcome in outcomes.values() if isinstance(outcome, SearchFailed)]
        if failed:
            raise SearchFailed(f"{len(failed)} of {len(outcomes)} different queries: {failed[0]}")
        return [hits for key in keys if isinstance(hits := outcomes[key], list)]

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _look_up(self, keys: list[Key]) -> tuple[dict[Key, list[Hit]], dict[Key, asyncio.Future[Outcome]]]:
        different = dict.fromkeys(keys)
        found = {key: kept for key in different if (kept := self.cache.get(key)) is not None}
        futures = {
            key: begun[key]
            for key in different
            if key not in found
            for begun in (self._running, self._waiting)
            if key in begun
        }
        new = [key for key in different if key not in found and key not in futures]
        if len(self._waiting) + len(new) > self._max_waiting:
            raise overloaded(f"{len(self._waiting)} queries wait, and this server holds at most {self._max_waiting}")
        hits = sum(key in found for key in keys)
        joined = len(keys) - hits - len(new)
        self.metrics.count(queries_total=len(keys), cache_hits_total=hits, joined_queries_total=joined)
        if new:
            loop = asyncio.get_running_loop()
            self._waiting |= {key: loop.create_future() for key in new}
            futures |= {key: self._waiting[key] for key in new}
            if self._worker is None or self._worker.done():
                self._worker = loop.create_task(self._work())
        return found, futures

    async def _work(self) -> None:
        try:
            while self._waiting:
                await self._work_once()
        except BaseException as error:  # the requests that wait for this worker would wait for ever
            logger.exception("no call of the retriever came to an end")
            failure = SearchFailed(f"the retriever failed: {type(error).__name__}: {error}"[:400])
            left = self._running | self._waiting
            self._running, self._waiting = {}, {}
            self.metrics.count(errors_total=len(left))
            for future in left.values():
                future.set_result(failure)
            if isinstance(error, asyncio.CancelledError):
                raise

    async def _work_once(self) -> None:
        topk = next(iter(self._waiting))[1]  # of the one that waits longest
        batch = list(islice((key for key in self._waiting if key[1] == topk), MAX_BATCH))
        self._running = {key: self._waiting.pop(key) for key in batch}
        begin, loop = time.perf_counter(), asyncio.get_running_loop()
        outcomes = await loop.run_in_executor(self._thread, self._call, [query for query, _ in batch], topk)
        seconds = time.perf_counter() - begin
        self.metrics.count(batches_total=1, batch_queries_total=len(batch), search_seconds_total=seconds)
        done, self._running = self._running, {}
        for (key, future), outcome in zip(done.items(), outcomes, strict=True):
            if isinstance(outcome, list):
                self.cache.put(key, outcome, len(key[0]) + sum(hit.document.characters for hit in outcome))
            else:
                self.metrics.count(errors_total=1)
            future.set_result(outcome)

    # In the retriever's thread.

    def _call(self, queries: list[str], topk: int) -> list[Outcome]:
        """Hits of each query. Where the call fails, halves of it are tried, so that only a query at fault fails."""
        try:
            return [*check(self.retriever.search(queries, topk), len(queries), topk)]
        except Exception as error:  # rises in the requests that asked for the query
            if len(queries) == 1:
                logger.error("the retriever failed on %r", queries[0][:100], exc_info=error)
                return [
                    SearchFailed(f"the retriever failed on {queries[0][:100]!r}: {type(error).__name__}: {error}"[:400])
                ]
        middle = len(queries) // 2
        return self._call(queries[:middle], topk) + self._call(queries[middle:], topk)


def check(answer: Iterable[list[Hit]], queries: int, topk: int) -> list[list[Hit]]:
    """What a retriever returned, if it is what `Retriever.search` promises."""
    lists = list(answer)
    if len(lists) != queries:
        raise ValueError(f"{len(lists)} lists of hits for {queries} queries")
    for hits in lists:
        if len(hits) > topk:
            raise ValueError(f"{len(hits)} hits, with topk={topk}")
        if not all(math.isfinite(hit.score) for hit in hits):
            raise ValueError("a score that is not a finite number")
    return lists


@dataclass
class Metrics:
    """What the server has done since it started. Written by the event loop's thread alone."""

    in_flight: int = 0  # requests that wait for the retriever
    counters: Counter[str] = field(default_factory=Counter)  # by the names in COUNTERS
    request_seconds: float = 0.0
    statuses: Counter[int] = field(default_factory=Counter)
    buckets: Counter[float] = field(default_factory=Counter)  # upper bound → requests between it and the one before

    def count(self, **more: float) -> None:
        self.counters.update(more)

    def observe(self, status: int, seconds: float) -> None:
        self.statuses[status] += 1
        self.request_seconds += seconds
        self.buckets[next((bound for bound in BUCKETS_S if seconds <= bound), float("inf"))] += 1

    def text(self, gauges: dict[str, tuple[str, int]]) -> str:
        """All of it in Prometheus' format; `gauges` are further name → meaning and value."""
        lines = _head("requests_total", "counter", "requests answered, by status")
        lines += [f'{PREFIX}_requests_total{{status="{code}"}} {n}' for code, n in sorted(self.statuses.items())]
        for name, meaning in COUNTERS.items():
            lines += [*_head(name, "counter", meaning), f"{PREFIX}_{name} {round(self.counters[name], 6)}"]
        seconds, count, below = f"{PREFIX}_request_seconds", self.statuses.total(), 0
        lines += _head("request_seconds", "histogram", "seconds from a request to its answer")
        for bound in BUCKETS_S:
            below += self.buckets[bound]
            lines.append(f'{seconds}_bucket{{le="{bound}"}} {below}')
        lines += [f'{seconds}_bucket{{le="+Inf"}} {count}', f"{seconds}_sum {self.request_seconds:.6f}"]
        lines.append(f"{seconds}_count {count}")
        gauges = {"requests_in_flight": ("requests that wait for the retriever", self.in_flight), **gauges}
        for name, (meaning, value) in gauges.items():
            lines += [*_head(name, "gauge", meaning), f"{PREFIX}_{name} {value}"]
        return "\n".join(lines) + "\n"


def _head(name: str, kind: str, meaning: str) -> list[str]:
    return [f"# HELP {PREFIX}_{name} {meaning}", f"# TYPE {PREFIX}_{name} {kind}"]
