"""Queries of many requests to few calls of the retriever, in a separate thread.

Consumes the queries of requests, in the event loop; hands each its hits. Whatever arrives while the retriever is busy
waits, and the next call takes it together; so a single client never waits, and many share calls. Queries that are
equal are searched once, and their hits kept for later ones.

The worker consumes `_waiting` and waits for the call that runs; `search` starts it when there is something to do, and
it ends when there is nothing, or by an error that fails all who wait.
"""

import asyncio
import logging
import math
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

from burnish.search.cache import AnswerCache
from burnish.search.documents import Hit, Retriever
from burnish.search.metrics import Metrics

MAX_BATCH = 128  # queries of one call; also what a stopping server may still have to wait for
CACHED_DOCUMENTS = 100_000
MAX_WAITING = 16_384  # queries

Key = tuple[str, int]  # query and topk

logger = logging.getLogger(__name__)


class Overloaded(Exception):
    """Too many queries wait already."""


class SearchFailed(Exception):
    """The retriever raised on a query, or broke its contract."""


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
            await asyncio.wait(set(futures.values()))  # unlike gather, leaves them alone when this request is cancelled
        outcomes: dict[Key, Outcome] = {**found, **{key: future.result() for key, future in futures.items()}}
        failed = [outcome for outcome in outcomes.values() if isinstance(outcome, SearchFailed)]
        if failed:
            raise SearchFailed(f"{len(failed)} of {len(outcomes)} different queries: {failed[0]}")
        return [hits for key in keys if isinstance(hits := outcomes[key], list)]

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _look_up(self, keys: list[Key]) -> tuple[dict[Key, list[Hit]], dict[Key, asyncio.Future[Outcome]]]:
        """What is known of them, and what will be; starts the search for the rest."""
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
            raise Overloaded(f"{len(self._waiting)} queries wait, and this server holds at most {self._max_waiting}")
        self.metrics.queries += len(keys)
        hits = sum(key in found for key in keys)
        self.metrics.cache_hits += hits
        self.metrics.joined += len(keys) - hits - len(new)
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
            self.metrics.failures += len(left)
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
        self.metrics.batches += 1
        self.metrics.batch_queries += len(batch)
        self.metrics.search_seconds += time.perf_counter() - begin
        done, self._running = self._running, {}
        for (key, future), outcome in zip(done.items(), outcomes, strict=True):
            if isinstance(outcome, list):
                self.cache.put(key, outcome, len(key[0]) + sum(hit.document.characters for hit in outcome))
            else:
                self.metrics.failures += 1
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
