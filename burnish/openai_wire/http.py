"""OpenAI's bodies over HTTP: JSON that anyone may have sent, error responses, server-sent events."""

import json
import logging
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response

from burnish.openai_wire.fields import ApiError, bad, broken, is_deep
from burnish.web import HttpProblem
from burnish.web.requests import Limits, bare_app

MAX_DEPTH = 32  # of nested objects and lists
DONE = "data: [DONE]\n\n"  # the last server-sent event

logger = logging.getLogger(__name__)


def openai_app(routes: str, limits: Limits) -> FastAPI:
    """An app without routes, whose errors have OpenAI's shape; `routes` says which there are."""
    return bare_app(error_response, routes, limits, openapi_url=None, docs_url=None)


def parse_json(body: bytes) -> Any:
    try:
        value = json.loads(body.decode("utf-8"))
        # JSON may contain half a surrogate pair, which neither a tokenizer nor an answer takes.
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise bad(f"the body is not readable as JSON: {str(error)[:100] or type(error).__name__}") from None
    if is_deep(value, MAX_DEPTH):
        raise bad(f"the body has more than {MAX_DEPTH} nested objects and lists")
    return value


def event(data: dict[str, Any]) -> str:
    # In ASCII: some clients take U+2028 and its like for the end of a line.
    return f"data: {json.dumps(data)}\n\n"


def as_api_error(error: Exception) -> ApiError:
    if isinstance(error, ApiError):
        return error
    if isinstance(error, HttpProblem):
        return ApiError(error.status, str(error), headers=error.headers)
    logger.error("a request failed", exc_info=error)
    return broken()


def error_response(problem: Exception) -> Response:
    error = as_api_error(problem)
    return JSONResponse(error.body, status_code=error.status, headers=error.headers)
