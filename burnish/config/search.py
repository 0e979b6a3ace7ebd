"""`retriever.*`: the retrieval server that the search agent asks."""

from dataclasses import dataclass

from burnish.config.key import key

ENVIRONMENT = "agents/environment.py"


@dataclass
class RetrieverConfig:
    """Where documents come from."""

    url: str = key("http://127.0.0.1:8000/retrieve", "address of the retrieval server", reader=ENVIRONMENT)
    topk: int = key(3, "documents per query", reader=ENVIRONMENT, low=1, high=100)
    timeout: float = key(10.0, "seconds for one request", reader=ENVIRONMENT, above=0)
    retries: int = key(3, "further tries after a failure", reader=ENVIRONMENT, low=0)
    cache: bool = key(True, "remember the answers to queries", reader=ENVIRONMENT)
