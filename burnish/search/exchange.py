"""One request to a retrieval server and its answer, which is not trusted. No torch.

Consumes a few queries; produces, for each, documents or what is wrong with them, so that a malformed document costs one
query and not all that were asked together. Where there is no answer as a whole, `Refused` says what was seen, what to
do about it, and whether another try may help.
"""

import asyncio
import json
from typing import Any

import httpx

from burnish.search.documents import Document

SHOWN_CHARACTERS = 100
MAX_ANSWER_BYTES = 64 * 1024 * 1024
TOO_LARGE, UNPROCESSABLE = 413, 422
ABOUT_THE_QUERIES = {400, TOO_LARGE, UNPROCESSABLE, 500}
AGAIN = {408, 429}  # and all from 500 on

HOW_TO_SERVE = "start a server with `burnish retriever serve --index FOLDER`, or fix retriever.url"
SLOW_SERVER = "the server is slow or stuck (see its /metrics); give it more cores, or raise retriever.timeout"
FEWER_DOCUMENTS = "ask for fewer documents (retriever.topk)"
WRONG_SERVER = "retriever.url must be the /retrieve address of a retrieval server"


class BadAnswer(Exception):
    """Not an answer of a retrieval server; the text says what it is."""


class Refused(Exception):
    """A request without an answer."""

    def __init__(self, seen: str, fix: str = "", *, status: int = 0, again: bool = False, pause: float = 0.0):
        super().__init__(f"{seen}; {fix}" if fix else seen)
        self.status = status  # of HTTP; 0 where there was none
        self.again = again  # may pass
        self.pause = pause  # seconds that the server asks to wait
        self.one_may_be_at_fault = status in ABOUT_THE_QUERIES  # of several queries; the others may have answers


def open_connections(url: str) -> httpx.AsyncClient:
    """For the running event loop. Time limits are those of `post`."""
    # Certificates take long to load. Without the environment: a proxy for the internet does not know the machines of a
    # cluster.
    return httpx.AsyncClient(verify=url.startswith("https:"), timeout=None, trust_env=False)


async def post(
    http: httpx.AsyncClient, url: str, queries: list[str], topk: int, timeout: float
) -> list[list[Document] | BadAnswer]:
    """Ask once."""
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
        fix = "the server's log says more" if status >= 500 else "" if status == UNPROCESSABLE else WRONG_SERVER
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
