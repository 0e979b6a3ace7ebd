"""One request to a retrieval server and what came of it. No torch.

Consumes a few queries; hands on, for each, documents or what is wrong with them. Where there is no answer as a whole,
`Refused` says what was seen, what to do about it, and whether another try may help.
"""

import asyncio
import json

import httpx

from burnish.search.answer import BadAnswer, read_answer, shown
from burnish.search.documents import Document

MAX_ANSWER_BYTES = 64 * 1024 * 1024
TOO_LARGE, UNPROCESSABLE = 413, 422
ABOUT_THE_QUERIES = {400, TOO_LARGE, UNPROCESSABLE, 500}
AGAIN = {408, 429}  # and all from 500 on

HOW_TO_SERVE = "start a server with `burnish retriever serve --index FOLDER`, or mend retriever.url"
SLOW_SERVER = "the server is slow or stuck (its /metrics tells); give it more cores, or raise retriever.timeout"
FEWER_DOCUMENTS = "ask for fewer documents (retriever.topk)"
WRONG_SERVER = "retriever.url must be the /retrieve address of a retrieval server"


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
