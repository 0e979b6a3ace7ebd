"""`search`: asks the retrieval server of `retriever.*`, through the client that all trajectories share.

One query is `query`, several at once are `query_list`; a schema in a YAML file may show either or both. A server that
cannot be reached or answers nonsense is the client's ToolFailure.
"""

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from burnish.agents.observation import passages
from burnish.agents.tools.base import Answer, BaseTool, ToolError, ToolResponse
from burnish.agents.tools.schema import Schema, function_schema

if TYPE_CHECKING:
    from burnish.search.client import RetrieverClient

MOST_QUERIES = 10  # of one call
NOTHING = "No documents were found."


class SearchTool(BaseTool):
    """Keeps no state and gives no reward. `retriever` returns the client when it is first needed."""

    SCHEMA = function_schema(
        "search",
        "Searches a collection of texts and gives back the passages that match best.",
        {
            "query": {"type": "string", "description": "What to look for"},
            "query_list": {
                "type": "array",
                "items": {"type": "string"},
                "description": f"Several queries at once, at most {MOST_QUERIES}, in place of query",
            },
        },
        [],
    )

    def __init__(self, config: dict[str, Any], tool_schema: Schema, *, retriever: "Callable[[], RetrieverClient]"):
        super().__init__(config, tool_schema)
        self._retriever = retriever

    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> Answer:
        several = parameters.get("query_list") or []
        queries = [query.strip() for query in [*([parameters["query"]] if "query" in parameters else []), *several]]
        if not queries or not all(queries):
            names = " or ".join(self.tool_schema["function"]["parameters"]["properties"])
            raise ToolError(f"there is nothing to search for: give {names}, with words in it")
        if len(queries) > MOST_QUERIES:
            raise ToolError(f"{len(queries)} queries are too many: give at most {MOST_QUERIES} at a time")
        queries = list(dict.fromkeys(queries))
        start = time.monotonic()
        found = await asyncio.gather(*(self._retriever().search(query) for query in queries))
        metrics = {"documents": float(sum(map(len, found))), "seconds": time.monotonic() - start}
        if len(queries) == 1:
            return ToolResponse(passages(found[0]) or NOTHING), 0.0, metrics
        parts = [
            f"Results for {query!r}:\n{passages(documents) or NOTHING}"
            for query, documents in zip(queries, found, strict=True)
        ]
        return ToolResponse("\n\n".join(parts)), 0.0, metrics
