"""What a retrieval server answered, to documents; nothing of it is trusted. No torch.

Consumes the bytes of a 200. Hands on, for each query, its documents or what is wrong with them, so that a document that
is malformed costs one query and not all that were asked together.
"""

import json
from typing import Any

from burnish.search.documents import Document

SHOWN_CHARACTERS = 100


class BadAnswer(Exception):
    """Not an answer of a retrieval server; the text says what it is."""


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
    if not isinstance(items, list):
        return BadAnswer(f"no list of documents: {_shown_json(items)}")
    try:
        return [_read_document(item) for item in items[:topk]]
    except BadAnswer as error:
        return error


def _read_document(item: Any) -> Document:
    """From `{"document": {…}, "score": …}`, or the document alone."""
    document = item.get("document", item) if isinstance(item, dict) else None
    if not isinstance(document, dict):
        raise BadAnswer(f"a document that is no object: {_shown_json(item)}")
    contents, name = document.get("contents"), document.get("id", "")
    if not isinstance(contents, str):
        raise BadAnswer(f"a document without the text 'contents': {_shown_json(item)}")
    if not isinstance(name, str | int):
        raise BadAnswer(f"a document whose id is neither text nor a number: {_shown_json(item)}")
    return Document(clean(str(name)), clean(contents))


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
