"""Token ids to text, one token at a time, and stop strings found in it; `burnish/serving` shows the same text.

A character split over byte-level tokens comes when it is whole. Special tokens count as their text. Only the completion
is searched, never the prompt.
"""

from typing import Any

UNFINISHED = "\ufffd"  # what a decoder writes for the first bytes of a character
BEGUN = 3  # at most so many of them stand for a character that is not whole: it has up to 4 bytes
BROKEN = 32  # tokens of broken bytes that are decoded together at most


def decode(tokenizer: Any, ids: list[int]) -> str:
    if not ids:
        return ""
    return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


class Detokenizer:
    """Ids in, text out, as soon as it is certain. The text of all pieces together is that of all ids together."""

    def __init__(self, tokenizer: Any):
        self.rest = ""  # text of the ids so far that a later one may change
        self._tokenizer = tokenizer
        self._context: list[int] = []  # ids of the piece before: decoders strip spaces without it
        self._before = 0  # characters of their text
        self._pending: list[int] = []  # ids whose text is not all returned
        self._given = 0  # characters of it that are

    def push(self, token_id: int) -> str:
        self._pending.append(token_id)
        text = decode(self._tokenizer, self._context + self._pending)[self._before :]
        ready, self.rest = text[self._given :], ""
        if len(self._pending) > BROKEN or (text and not text.endswith(UNFINISHED)):
            self._start_piece()
            return ready
        certain = len(ready) - _begun(ready)
        self._given += certain
        self.rest = ready[certain:]
        return ready[:certain]

    def flush(self) -> str:
        ready, self.rest = self.rest, ""
        if self._pending:
            self._start_piece()
        return ready

    def _start_piece(self) -> None:
        self._context, self._pending, self._given = self._pending, [], 0
        self._before = len(decode(self._tokenizer, self._context))


class StopMatcher:
    """Feed it token ids with `push`; it returns the stop string that the token completed, or None."""

    def __init__(self, tokenizer: Any, stops: tuple[str, ...]):
        self._stops = stops
        self._keep = max(len(stop) for stop in stops) - 1  # characters that may begin a match
        self._tail = ""  # the end of the text that is certain
        self._detokenizer = Detokenizer(tokenizer)

    def push(self, token_id: int) -> str | None:
        certain = self._tail + self._detokenizer.push(token_id)
        searched = certain + self._detokenizer.rest
        found = [(searched.find(stop), stop) for stop in self._stops if stop in searched]
        self._tail = certain[max(0, len(certain) - self._keep) :]
        return min(found)[1] if found else None


def _begun(text: str) -> int:
    """Characters at the end of a text that may be one which is not whole yet."""
    end = text[-BEGUN:]
    return len(end) - len(end.rstrip(UNFINISHED))
