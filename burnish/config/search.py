"""`retriever.*`: the retrieval server that the search agent asks."""

from dataclasses import dataclass

from burnish.config.key import Keys, key


@dataclass
class RetrieverConfig(Keys, reader="agents/environment.py"):
    """Where documents come from."""

    url: str = key("http://127.0.0.1:8000/retrieve", "address of the retrieval server")
    topk: int = key(3, "documents per query", low=1, high=100)
    timeout: float = key(10.0, "seconds for one request", above=0)
    retries: int = key(3, "further tries after a failure", low=0)
    cache: bool = key(True, "cache the results of queries")
