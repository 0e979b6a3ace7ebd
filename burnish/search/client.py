"""The client of a retrieval server, shared by all trajectories of a run. No torch.

What is asked within `WINDOW_S` goes out as one request. What cannot be had is a `ToolFailure` for exactly the queries
that it concerns: an answer is not trusted, and a malformed document costs one query.

For each event loop there is a `_Lane`: a timer sends what has gathered, a task for each request waits for the answer
(until its deadline, and `close` cancels it) and wakes the callers. A caller that is cancelled leaves the task alone.
"""

import asyncio
import json
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx

from burnish.errors import ConfigError, ToolFailure
from burnish.loop_thread import run_to_end
from burnish.search.documents import MAX_QUERY_CHARACTERS, AnswerCache, Document
from burnish.waits import waiting

KEY_VARIABLE = "BURNISH_RETRIEVER_API_KEY"  # its value is sent to the server, and is in no configuration
WINDOW_S = 0.003
PER_REQUEST = 256  # queries; as long as they may be, and in JSON, they stay below the server's limit of a body
MAX_REQUESTS = 16  # at the same time
CACHED_DOCUMENTS = 100_000
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 8.0  # before a retry; each pause is twice the one before
PORTS = {"http": 80, "https": 443}  # where the address names none
MOMENT_S = 5.0  # for a request that is past its deadline to say why
CLOSED = "the client was closed before the answer came"
SHOWN_CHARACTERS = 100
MAX_ANSWER_BYTES = 64 * 1024 * 1024
TOO_LARGE, UNPROCESSABLE = 413, 422
ABOUT_THE_QUERIES = {400, TOO_LARGE, UNPROCESSABLE, 500}
AGAIN = {408, 429}  # and all from 500 on

HOW_TO_SERVE = "start a server with `burnish retriever serve FOLDER`, or fix retriever.url"
SLOW_SERVER = "the server is slow or stuck (see its /metrics); give it more cores, or raise retriever.timeout"
FEWER_DOCUMENTS = "ask for fewer documents (retriever.topk)"
WRONG_SERVER = "retriever.url must be the /retrieve address of a retrieval server"

Outcome = list[Document] | ToolFailure

logger = logging.getLogger(__name__)


class BadAnswer(Exception):
    """Not an answer of a retrieval server; the text says what it is."""


class Refused(Exception):
    def __init__(self, seen: str, fix: str = "", *, status: int = 0, again: bool = False, pause: float = 0.0):
        super().__init__(f"{seen}; {fix}" if fix else seen)
        self.status = status  # of HTTP; 0 where there was none
        self.again = again  # may pass
        self.pause = pause  # seconds that the server asks to wait
        self.one_may_be_at_fault = status in ABOUT_THE_QUERIES  # of several queries; the others may have answers


@dataclass
class _Lane:
    http: httpx.AsyncClient
    gate: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_REQUESTS))
    waiting: list[str] = field(default_factory=list)  # for the timer
    timer: asyncio.TimerHandle | None = None
    asked: dict[str, asyncio.Future[Outcome]] = field(default_factory=dict)  # waiting, or sent
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


class RetrieverClient:
    """Documents for queries. Usable from one event loop after another."""

    def __init__(self, url: str, *, topk: int, timeout: float, retries: int, cache: bool):
        """`timeout` is that of one request; with its `retries`, it has as much again for each."""
        check_url(url)
        self._url, self._topk, self._timeout, self._retries = url, topk, timeout, retries
        self._cache: AnswerCache[str, list[Document]] = AnswerCache(CACHED_DOCUMENTS if cache else 0)
        self._lanes: dict[asyncio.AbstractEventLoop, _Lane] = {}
        self._stats = dict.fromkeys(("queries", "requests", "cache_hits", "failures", "retries", "seconds"), 0.0)

    async def search(self, query: str) -> list[Document]:
        """At most `topk` documents, the best first. A blank query finds none, a very long one is cut."""
        self._stats["queries"] += 1
        text = clean(query).strip()[:MAX_QUERY_CHARACTERS]
        if not text:
            return []
        kept = self._cache.get(text)
        if kept is not None:
            self._stats["cache_hits"] += 1
            return list(kept)
        limit = self._timeout * (self._retries + 1)
        with waiting("retriever", "", f"{self._url}: {text:.60}", limit) as wait:
            future = self._future(text)
            done, _ = await asyncio.wait({future}, timeout=limit)
            if not done:
                wait.overdue()  # the task that asks began later, and is where it hangs for a moment yet
                done, _ = await asyncio.wait({future}, timeout=MOMENT_S)
        late = f"no answer within {limit:g} s, retries included, and the request does not end"
        outcome: Outcome = future.result() if done else self._failure(f"{late}; {SLOW_SERVER}")
        if isinstance(outcome, ToolFailure):
            self._stats["failures"] += 1
            raise ToolFailure(str(outcome))
        return list(outcome)

    def stats(self) -> dict[str, float]:
        """Counters since the client was made. `failures` are queries; `seconds` were waited, summed over requests."""
        return dict(self._stats)

    async def close(self) -> None:
        """End running requests in this event loop, and its connections. A later `search` makes new ones."""
        lane = self._lanes.pop(asyncio.get_running_loop(), None)
        if lane is None:
            return
        if lane.timer is not None:  # first, so that nothing more is sent
            lane.timer.cancel()
        for task in lane.tasks:
            task.cancel()
        await asyncio.gather(*lane.tasks, return_exceptions=True)
        for future in lane.asked.values():  # of callers that wait for the timer, or for a task that had not begun
            future.set_result(self._failure(CLOSED))
        await lane.http.aclose()

    def _future(self, query: str) -> asyncio.Future[Outcome]:
        loop = asyncio.get_running_loop()
        if loop not in self._lanes:
            self._lanes = {other: lane for other, lane in self._lanes.items() if not other.is_closed()}
            self._lanes[loop] = _Lane(open_connections(self._url))
        lane = self._lanes[loop]
        if query not in lane.asked:
            lane.asked[query] = loop.create_future()
            lane.waiting.append(query)
            if lane.timer is None:
                lane.timer = loop.call_later(WINDOW_S, self._send, lane)
        return lane.asked[query]

    def _send(self, lane: _Lane) -> None:
        queries, lane.waiting, lane.timer = lane.waiting, [], None
        for start in range(0, len(queries), PER_REQUEST):
            task = asyncio.get_running_loop().create_task(self._deliver(lane, queries[start : start + PER_REQUEST]))
            lane.tasks.add(task)
            task.add_done_callback(lane.tasks.discard)

    async def _deliver(self, lane: _Lane, queries: list[str]) -> None:
        deadline = asyncio.get_running_loop().time() + self._timeout * (self._retries + 1)
        outcomes: Sequence[Outcome] = [self._failure(CLOSED)] * len(queries)  # if it is cancelled
        try:
            outcomes = await self._ask(lane, queries, deadline, self._retries)
        except Exception as error:  # an unexpected one; it rises in the callers
            logger.error("%s", self._url, exc_info=error)
            outcomes = [self._failure(f"{type(error).__name__}: {error}")] * len(queries)
        finally:
            for query, outcome in zip(queries, outcomes, strict=True):
                if isinstance(outcome, list):
                    self._cache.put(query, outcome, len(query) + sum(document.characters for document in outcome))
                lane.asked.pop(query).set_result(outcome)

    async def _ask(self, lane: _Lane, queries: list[str], deadline: float, retries: int) -> list[Outcome]:
        """Documents or a failure for each query. Several of which one may be at fault are asked again one by one."""
        try:
            async with asyncio.timeout_at(deadline):
                found = await self._retry(lane, queries, deadline, retries)
        except TimeoutError:
            seen = f"no answer within {self._timeout * (self._retries + 1):g} s, retries included"
            return [self._failure(f"{seen}; {SLOW_SERVER}")] * len(queries)
        except Refused as problem:
            if len(queries) == 1 or not problem.one_may_be_at_fault:
                return [self._failure(str(problem))] * len(queries)
            retries = 0 if problem.again else retries  # what may pass had its second chance with all of them
            singles = await asyncio.gather(*(self._ask(lane, [query], deadline, retries) for query in queries))
            return [outcome for outcomes in singles for outcome in outcomes]
        return [self._failure(f"{one}; {WRONG_SERVER}") if isinstance(one, BadAnswer) else one for one in found]

    async def _retry(
        self, lane: _Lane, queries: list[str], deadline: float, retries: int
    ) -> list[list[Document] | BadAnswer]:
        """Send until there is an answer, a refusal that does not pass, or two that one of several queries may cause."""
        pause, tries_left, doubted = FIRST_PAUSE_S, retries, False
        while True:
            try:
                async with lane.gate:
                    self._stats["requests"] += 1
                    begin = time.perf_counter()
                    try:
                        return await post(lane.http, self._url, queries, self._topk, self._timeout)
                    finally:
                        self._stats["seconds"] += time.perf_counter() - begin
            except Refused as problem:
                wait = max(pause, problem.pause)
                late = asyncio.get_running_loop().time() + wait >= deadline
                doubtful = problem.one_may_be_at_fault and len(queries) > 1
                if not problem.again or not tries_left or late or (doubtful and doubted):
                    raise
                doubted |= doubtful
            self._stats["retries"] += 1
            await asyncio.sleep(wait)
            pause, tries_left = min(2 * pause, LONGEST_PAUSE_S), tries_left - 1

    def _failure(self, text: str) -> ToolFailure:
        return ToolFailure(f"retriever {self._url}: {text}")


def check_url(url: str) -> None:
    example = "write it as in http://127.0.0.1:8000/retrieve"
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
        httpx.URL(url)
    except (ValueError, TypeError, httpx.InvalidURL) as error:
        raise ConfigError(f"retriever.url={url}: no address ({error}); {example}") from None
    if parts.scheme not in ("http", "https"):
        raise ConfigError(f"retriever.url={url}: it must begin with http:// or https://; {example}")
    if not host:
        raise ConfigError(f"retriever.url={url}: no machine is named; {example}")
    if parts.path in ("", "/"):
        raise ConfigError(f"retriever.url={url}: the path is missing; write {parts.scheme}://{parts.netloc}/retrieve")


def probe(url: str, timeout: float, topk: int = 1) -> None:
    """ConfigError where no retrieval server answers at `url`, or none that gives `topk` documents. From any thread."""
    check_url(url)

    async def ask() -> None:
        async with open_connections(url) as http:
            (found,) = await post(http, url, ["Is anybody there?"], topk, timeout)
            if isinstance(found, BadAnswer):
                raise Refused(str(found), WRONG_SERVER)

    try:
        with waiting("retriever", "", f"{url}: a first answer", timeout):
            run_to_end(ask())
    except Refused as error:
        refusals = {401: "it asks for a key", UNPROCESSABLE: f"it refuses a search with retriever.topk={topk}"}
        if error.status in refusals:
            raise ConfigError(f"retriever.url={url}: {refusals[error.status]}: {error}") from None
        parts = urlsplit(url)
        raise ConfigError(
            f"retriever.url={url}: no retrieval server answers there. Start one with `burnish retriever serve FOLDER "
            f"--port {parts.port or PORTS[parts.scheme]}`. Seen: {error}"
        ) from None


def open_connections(url: str) -> httpx.AsyncClient:
    # Certificates take long to load. Without the environment: a proxy for the internet does not know the machines of a
    # cluster.
    key = os.environ.get(KEY_VARIABLE, "").strip()
    headers = {b"authorization": f"Bearer {key}".encode()} if key else {}
    return httpx.AsyncClient(headers=headers, verify=url.startswith("https:"), timeout=None, trust_env=False)


async def post(
    http: httpx.AsyncClient, url: str, queries: list[str], topk: int, timeout: float
) -> list[list[Document] | BadAnswer]:
    # Scores are not looked at, but servers that others wrote may have only the shape that holds them.
    body = json.dumps({"queries": queries, "topk": topk, "return_scores": True}, ensure_ascii=False).encode()
    try:
        async with asyncio.timeout(timeout):
            status, pause, answer = await _exchange(http, url, body)
    except TimeoutError:
        raise Refused(f"no answer within {timeout:g} s", SLOW_SERVER, again=True) from None
    except httpx.RequestError as error:
        raise Refused(f"unreachable ({str(error) or type(error).__name__})", HOW_TO_SERVE, again=True) from None
    if status != 200:
        # A server that knows what is asked of it says itself what it does not like.
        own = {401: f"set {KEY_VARIABLE} to its key", UNPROCESSABLE: ""}
        fix = "the server's log says more" if status >= 500 else own.get(status, WRONG_SERVER)
        again = status >= 500 or status in AGAIN
        raise Refused(f"status {status}: {shown(answer)}", fix, status=status, again=again, pause=pause)
    try:
        return read_answer(answer, len(queries), topk)
    except BadAnswer as error:
        raise Refused(str(error), WRONG_SERVER) from None


async def _exchange(http: httpx.AsyncClient, url: str, body: bytes) -> tuple[int, float, bytes]:
    """Status, seconds of Retry-After, and the body of the answer."""
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
    async with http.stream("POST", url, content=body, headers=headers) as response:
        answer = bytearray()
        async for part in response.aiter_bytes():
            answer += part
            if len(answer) > MAX_ANSWER_BYTES:
                seen = f"more than {MAX_ANSWER_BYTES} bytes: {shown(bytes(answer[:1000]))}"
                raise Refused(seen, FEWER_DOCUMENTS, status=TOO_LARGE)
        after = response.headers.get("Retry-After", "")
        return response.status_code, float(after) if after.isdecimal() else 0.0, bytes(answer)


def read_answer(body: bytes, queries: int, topk: int) -> list[list[Document] | BadAnswer]:
    """At most `topk` documents for each query, in order; BadAnswer where it is none as a whole."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        raise BadAnswer(f"not JSON: {shown(body)}") from None
    lists = answer.get("result") if isinstance(answer, dict) else None
    if not isinstance(lists, list):
        raise BadAnswer(f"JSON without a list named result: {shown(body)}")
    if len(lists) != queries:
        raise BadAnswer(f"{len(lists)} lists of documents for {queries} queries: {shown(body)}")
    return [_read_list(items, topk) for items in lists]


def _read_list(items: Any, topk: int) -> list[Document] | BadAnswer:
    """Documents from items such as `{"document": {…}, "score": …}`, or the document alone."""
    if not isinstance(items, list):
        return BadAnswer(f"no list of documents: {_shown_json(items)}")
    documents = []
    for item in items[:topk]:
        document = item.get("document", item) if isinstance(item, dict) else None
        if not isinstance(document, dict):
            return BadAnswer(f"a document that is no object: {_shown_json(item)}")
        contents, name = document.get("contents"), document.get("id", "")
        if not isinstance(contents, str):
            return BadAnswer(f"a document without the text 'contents': {_shown_json(item)}")
        if not isinstance(name, str | int):
            return BadAnswer(f"a document whose id is neither text nor a number: {_shown_json(item)}")
        documents.append(Document(clean(str(name)), clean(contents)))
    return documents


def clean(text: str) -> str:
    """The text without halves of surrogate pairs, which no tokenizer and no request takes."""
    return text.encode("utf-8", "replace").decode("utf-8")


def shown(body: bytes) -> str:
    """The beginning of what came, on one line and harmless to a terminal."""
    text = body[: 4 * SHOWN_CHARACTERS].decode("utf-8", "replace")
    line = " ".join("".join(character if character.isprintable() else " " for character in text).split())
    return line[:SHOWN_CHARACTERS] or "nothing"


def _shown_json(value: Any) -> str:
    return shown(json.dumps(value)[: 4 * SHOWN_CHARACTERS].encode())
