"""Answers that are kept for when the same query comes again, the least recently used thrown out first. No torch.

The server keeps hits, the client documents; both bound what is held by the number of documents and by their characters,
which are what takes memory. For one thread.
"""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any, Generic, TypeVar

MAX_CHARACTERS = 1 << 28  # a byte or more each

Key = TypeVar("Key", bound=Hashable)
Answer = TypeVar("Answer", bound=list[Any])


class AnswerCache(Generic[Key, Answer]):
    """Lists by key. An empty list takes the room of one document. An answer that is larger than the room there is, and
    with `capacity` 0 every one, is not kept."""

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
        """Keep an answer of so many characters, its key among them."""
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
