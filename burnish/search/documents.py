"""What retrieval returns: a passage, and a passage with its score; and how much one request may ask for. No torch.

A corpus is JSONL with an object `{"id": …, "contents": "\\"Title\\"\\ntext"}` on each line.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

# What one request may ask for. The server refuses more, so the client never sends it.
MAX_QUERIES = 4096  # in one request
MAX_QUERY_CHARACTERS = 4096
MAX_TOPK = 100
MAX_DOCUMENTS = 65_536  # queries × topk of one request
MAX_BODY_BYTES = 8 * 1024 * 1024  # of a request


@dataclass(frozen=True)
class Document:
    """One passage of a corpus."""

    id: str
    contents: str

    @property
    def characters(self) -> int:
        """How long it is: what it takes in memory."""
        return len(self.id) + len(self.contents)

    @property
    def title(self) -> str:
        """The first line, without the quotes around it."""
        return self.contents.partition("\n")[0].strip().strip('"')

    @property
    def text(self) -> str:
        """What follows the title."""
        return self.contents.partition("\n")[2]


@dataclass(frozen=True)
class Hit:
    """A document that was found; a higher score is a better match."""

    document: Document
    score: float


class Retriever(ABC):
    """Finds documents. Called from one thread at a time."""

    name: str  # how it finds: bm25, dense, hybrid; with "+rerank" where the hits are put in another order

    @abstractmethod
    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """For each query, in order, at most `topk` hits, the best first. Fewer where fewer match."""

    @abstractmethod
    def __len__(self) -> int:
        """Documents in the corpus."""
