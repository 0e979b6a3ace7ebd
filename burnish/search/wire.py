"""What goes over the wire to and from the retrieval server: the shapes, reading a body with bounds, problems as JSON.

Consumes bytes that anyone may have sent; produces a `Query` whose every field is in range. The classes are also what
the OpenAPI page shows.
"""

import asyncio
import json
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import Request
from fastapi.responses import Response
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, FailFast, Field, ValidationError
from pydantic_core import from_json
from starlette.requests import ClientDisconnect

from burnish.search.documents import MAX_BODY_BYTES, MAX_DOCUMENTS, MAX_QUERIES, MAX_QUERY_CHARACTERS, MAX_TOPK, Hit

JSON = "application/json"
READ_AT_MOST = 4 * MAX_BODY_BYTES  # of a body that is too large: a client that still sends does not hear the answer
BODY_DEADLINE_S = 60.0
MAX_FIELDS = 16  # more are not looked at one by one
NOT_BLANK = r"[^ \t\r\n]"  # not \S, which is another set of characters to each who reads the OpenAPI page
GONE = 499  # the status of a request whose client has left; it is never read
FIELDS = "queries, topk and return_scores"


def _not_blank(text: str) -> str:
    if not re.search(NOT_BLANK, text):
        raise ValueError("is empty")
    return text


Text = Annotated[
    str,
    Field(min_length=1, max_length=MAX_QUERY_CHARACTERS, json_schema_extra={"pattern": NOT_BLANK}),
    AfterValidator(_not_blank),
]


class Query(BaseModel):
    """The body of a request."""

    model_config = ConfigDict(strict=True, extra="forbid", title="Query")

    queries: Annotated[
        list[Text], Field(min_length=1, max_length=MAX_QUERIES, examples=[["who wrote Faust?"]]), FailFast()
    ]
    # 5.0 is an integer to JSON, which has one kind of number.
    topk: Annotated[int | None, BeforeValidator(lambda n: int(n) if isinstance(n, float) and n.is_integer() else n)] = (
        Field(None, ge=1, le=MAX_TOPK, description="documents per query; null: the server's own number")
    )
    return_scores: bool = Field(False, description="a score with each document; else the documents alone")


class DocumentModel(BaseModel):
    id: str
    contents: str = Field(description="the title in quotes on the first line, then the text")


class ScoredDocument(BaseModel):
    document: DocumentModel
    score: float


class Retrieved(BaseModel):
    """One list for each query, in order, the best document first. There may be fewer than `topk`."""

    result: list[list[ScoredDocument]] | list[list[DocumentModel]]


class Health(BaseModel):
    status: Literal["ok"]
    retriever: str
    documents: int
    topk: int = Field(description="documents per query where a request does not set it")
    checksum: str | None = Field(description="of the index")


class ProblemModel(BaseModel):
    detail: str = Field(description="what is wrong")


class HttpProblem(Exception):
    """An answer other than 200."""

    def __init__(self, status: int, detail: str, headers: dict[str, str] | None = None):
        super().__init__(detail)
        self.status, self.detail, self.headers = status, detail, headers

    def response(self) -> Response:
        return json_response({"detail": self.detail}, self.status, self.headers)


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    # Half a surrogate pair in a document is no text, and no client could read it.
    body = json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
    return Response(body, status, headers, media_type=JSON)


def found_response(lists: Sequence[Sequence[Hit]], return_scores: bool) -> Response:
    def item(hit: Hit) -> dict[str, Any]:
        document = {"id": hit.document.id, "contents": hit.document.contents}
        return {"document": document, "score": float(hit.score)} if return_scores else document  # may be numpy's

    return json_response({"result": [[item(hit) for hit in hits] for hits in lists]})


async def read_query(request: Request, default_topk: int) -> tuple[Query, int]:
    """What was asked, and how many documents per query."""
    body = await _read_body(request)
    try:
        value = from_json(body)
    except ValueError as error:
        raise HttpProblem(422, f"the body is not readable as JSON: {error}") from None
    if not isinstance(value, dict) or len(value) > MAX_FIELDS:
        raise HttpProblem(422, f"the body: expected an object with the fields {FIELDS}")
    try:
        query = Query.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        name, *rest = first["loc"]
        if first["type"] == "extra_forbidden":
            raise HttpProblem(422, f"{str(name)[:100]}: there is no such field; there are {FIELDS}") from None
        place = "".join(f"[{part}]" for part in rest)
        raise HttpProblem(422, f"{name}{place}: {first['msg'].removeprefix('Value error, ')}") from None
    topk = default_topk if query.topk is None else query.topk
    if len(query.queries) * topk > MAX_DOCUMENTS:
        raise HttpProblem(
            422, f"queries: {len(query.queries)} with topk={topk} are more than {MAX_DOCUMENTS} documents; send fewer"
        )
    return query, topk


async def _read_body(request: Request) -> bytes:
    # Only JSON: a web page elsewhere can make a browser post a form here, but not this.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
        raise HttpProblem(415, f"send JSON, with the header Content-Type: {JSON}")
    body, size = bytearray(), 0
    try:
        async with asyncio.timeout(BODY_DEADLINE_S):
            async for part in request.stream():
                size += len(part)
                body += part if size <= MAX_BODY_BYTES else b""
                if size > READ_AT_MOST:
                    break
    except TimeoutError:
        raise HttpProblem(408, f"the body did not arrive within {BODY_DEADLINE_S:.0f} s") from None
    except ClientDisconnect:
        raise HttpProblem(GONE, "the client has left") from None
    if size > MAX_BODY_BYTES:
        raise HttpProblem(413, f"the body is larger than {MAX_BODY_BYTES} bytes; send fewer queries at a time")
    return bytes(body)
