"""`retriever.*`: the retrieval server that the search agent asks."""

from dataclasses import dataclass

from burnish.config.key import key

SEARCH_AGENT = "the search agent"


@dataclass
class RetrieverConfig:
    """Where documents come from."""

    url: str = key("http://127.0.0.1:8000/retrieve", "address of the retrieval server")
    topk: int = key(3, "documents per query")
    timeout: float = key(30.0, "seconds for one request")
    retries: int = key(3, "further tries after a failure")
    cache: bool = key(True, "remember the answers to queries")
