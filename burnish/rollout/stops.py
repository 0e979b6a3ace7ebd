"""Find stop strings in the text of tokens as they are sampled, one token at a time.

Text is decoded piece by piece from the last safe boundary, so a string that spans several tokens is found at the token
that completes it, and a character split over byte-level tokens does not disturb the rest. Special tokens count as
their text. Only the completion is searched, never the prompt.
"""

from typing import Any

UNFINISHED = "\ufffd"  # what a decoder writes for the first bytes of a character
LONGEST_CHARACTER = 4  # bytes; longer runs of broken bytes are no character and are taken as they are


class StopMatcher:
    """Feed it token ids with `push`; it returns the stop string that the token completed, or None."""

    def __init__(self, tokenizer: Any, stops: tuple[str, ...]):
        self._tokenizer = tokenizer
        self._stops = stops
        self._keep = max(len(stop) for stop in stops) - 1  # characters that may begin a match
        self._tail = ""  # the end of the text decoded so far
        self._context: list[int] = []  # ids of the last finished piece: decoders strip spaces without it
        self._piece: list[int] = []  # ids after it

    def push(self, token_id: int) -> str | None:
        self._piece.append(token_id)
        before = self._decode(self._context)
        text = self._decode(self._context + self._piece)[len(before) :]
        searched = self._tail + text
        found = [(searched.find(stop), stop) for stop in self._stops if stop in searched]
        if text and (not text.endswith(UNFINISHED) or len(self._piece) > LONGEST_CHARACTER):
            self._tail = searched[len(searched) - self._keep :] if self._keep < len(searched) else searched
            self._context, self._piece = self._piece, []
        return min(found)[1] if found else None

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False) if ids else ""
