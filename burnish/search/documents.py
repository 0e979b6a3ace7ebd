"""What retrieval returns, how much one request may ask for, and the cache of answers of server and client. No torch."""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

# What one request may ask for. The server refuses more, so the client never sends it.
MAX_QUERIES = 4096  # in one request
MAX_QUERY_CHARACTERS = 4096
MAX_TOPK = 100
MAX_DOCUMENTS = 65_536  # queries × topk of one request
MAX_BODY_BYTES = 8 * 1024 * 1024  # of a request

MAX_CHARACTERS = 1 << 28  # a byte or more each

Key = TypeVar("Key", bound=Hashable)
Answer = TypeVar("Answer", bound=list[Any])


@dataclass(frozen=True)
class Document:
    """One passage of a corpus. The contents are the title in quotes, then the text from the next line on."""

    id: str
    contents: str

    @property
    def characters(self) -> int:
        return len(self.id) + len(self.contents)

    @property
    def title(self) -> str:
        return self.contents.partition("\n")[0].strip().strip('"')

    @property
    def text(self) -> str:
        return self.contents.partition("\n")[2]


@dataclass(frozen=True)
class Hit:
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


class AnswerCache(Generic[Key, Answer]):
    """Lists by key, the least recently used thrown out first, bounded by documents and by their characters, which take
    the memory. An empty list takes the room of one document; what is larger than the room there is, is not kept."""

    def __init__(self, capacity: int, max_characters: int = MAX_CHARACTERS):
        self.documents, self.characters = 0, 0  # held
        self._capacity, self._max_characters = capacity, max_characters
        self._answers: OrderedDict[Key, tuple[Answer, int]] = OrderedDict()

    def get(self, key: Key) -> Answer | None:
        if key not in self._answers:
            return None
        self._answers.move_to_end(key)
        return self._answers[key][0]

    def put(self, key: Key, answer: Answer, characters: int) -> None:
        self._forget(key)
        if max(1, len(answer)) > self._capacity or characters > self._max_characters:
            return
        self._answers[key] = answer, characters
        self.documents += max(1, len(answer))
        self.characters += characters
        while self.documents > self._capacity or self.characters > self._max_characters:
            self._forget(next(iter(self._answers)))

    def _forget(self, key: Key) -> None:
        if key in self._answers:
            answer, characters = self._answers.pop(key)
            self.documents -= max(1, len(answer))
            self.characters -= characters
