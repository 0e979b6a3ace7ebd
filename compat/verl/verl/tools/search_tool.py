"""The tool `search`, by the name that users' files have. It is burnish's, at the address of the entry's `config`."""

from collections.abc import Callable
from typing import Any

from burnish.agents.tools import search
from burnish.agents.tools.schema import Schema
from burnish.search.client import RetrieverClient


class SearchTool(search.SearchTool):
    """`retrieval_service_url`, `topk` and `timeout` are read; `num_workers` and `rate_limit` have no effect, because
    requests are batched over trajectories."""

    def __init__(self, config: dict[str, Any], tool_schema: Schema, *, retriever: Callable[[], RetrieverClient]):
        self._own: list[RetrieverClient] = []
        if url := config.get("retrieval_service_url"):
            topk, timeout = config.get("topk", 3), config.get("timeout", 30)
            client = RetrieverClient(url, topk=topk, timeout=timeout, retries=3, cache=True)
            self._own, retriever = [client], lambda: client
        super().__init__(config, tool_schema, retriever=retriever)

    async def close(self) -> None:
        for client in self._own:
            await client.close()
