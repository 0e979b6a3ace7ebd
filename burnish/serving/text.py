"""Sampled token ids to text, piece by piece, as it may be shown: what a stream sends and what a whole answer holds.

`TextStream` consumes token ids one at a time and hands out text that no later token can change:

- a character that is split over tokens comes when it is whole;
- a stop string is left out, and text that may be the beginning of one is held back until that is decided;
- special tokens are left out, as they are from what a reward function reads, but count as their text in the search for
  stop strings, as they do in the engine's own search (`rollout/stops.py`);
- the token that ended the completion by its id is left out, special or not. Which one that is, only the engine knows
  (a model may end with more than one token), so the newest token always waits for the next one, or for the end.
"""

from typing import Any

UNFINISHED = "\ufffd"  # what a decoder writes for the first bytes of a character
LONGEST_CHARACTER = 4  # bytes, and so tokens
BROKEN = 32  # tokens of broken bytes that are decoded together at most


def special_ids(tokenizer: Any) -> frozenset[int]:
    """The tokens that are no text: those with a role, and added ones that are marked as special."""
    added = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    return frozenset(added | set(tokenizer.all_special_ids))


def decode(tokenizer: Any, ids: list[int]) -> str:
    if not ids:
        return ""
    return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


class Detokenizer:
    """Ids in, text out, as soon as it is certain. The text of all pieces together is that of all ids together."""

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer
        self._context: list[int] = []  # ids of the piece before: decoders strip spaces without it
        self._pending: list[int] = []  # ids whose text is not all handed out
        self._given = 0  # characters of it that are

    def push(self, token_id: int) -> str:
        self._pending.append(token_id)
        text = self._text()
        if len(self._pending) <= LONGEST_CHARACTER and (not text or text.endswith(UNFINISHED)):
            return ""
        if len(self._pending) <= BROKEN and text.endswith(UNFINISHED):
            # These bytes are no character, but the last of them may begin one.
            ready = text[self._given : -1]
            self._given += len(ready)
            return ready
        return self.flush()

    def flush(self) -> str:
        """All that is there, finished or not."""
        ready = self._text()[self._given :]
        self._context, self._pending, self._given = self._pending or self._context, [], 0
        return ready

    def skip(self, token_id: int) -> None:
        """Leave out a token, after `flush`; what follows is decoded as following it."""
        self._context = [token_id]

    def _text(self) -> str:
        before = decode(self._tokenizer, self._context)
        return decode(self._tokenizer, self._context + self._pending)[len(before) :]


class TextStream:
    """The text of one completion. `push` every token as it is sampled, then `finish` with what ended it."""

    def __init__(self, tokenizer: Any, hidden: frozenset[int], stops: tuple[str, ...] = ()):
        self.length = 0  # characters decoded so far, those that are held back included
        self._tokenizer = tokenizer
        self._hidden = hidden
        self._stops = stops
        self._detokenizer = Detokenizer(tokenizer)
        self._newest: int | None = None
        self._held: list[tuple[str, bool]] = []  # text, and whether it is shown
        self._ended = False  # a stop string has been found

    def push(self, token_id: int) -> str:
        """Text that is certain now, often that of the token before."""
        newest, self._newest = self._newest, token_id
        return "" if newest is None else self._add(newest)

    def finish(self, stop: str | int | None) -> str:
        """The rest. `stop` is the string or token id that ended the completion, None where nothing did."""
        text = "" if self._newest is None or isinstance(stop, int) else self._add(self._newest)
        self._newest = None
        self._hold(self._detokenizer.flush(), shown=True)
        return text + self._release(final=True)

    def _add(self, token_id: int) -> str:
        if token_id in self._hidden:
            self._hold(self._detokenizer.flush(), shown=True)
            self._hold(decode(self._tokenizer, [token_id]), shown=False)
            self._detokenizer.skip(token_id)
        else:
            self._hold(self._detokenizer.push(token_id), shown=True)
        return self._release()

    def _hold(self, text: str, shown: bool) -> None:
        if text and not self._ended:
            self._held.append((text, shown))
            self.length += len(text) if shown else 0

    def _release(self, final: bool = False) -> str:
        whole = "".join(text for text, _ in self._held)
        found = [place for stop in self._stops if (place := whole.find(stop)) >= 0]
        self._ended = self._ended or bool(found)
        count = min(found) if found else len(whole) - (0 if final else self._undecided(whole))
        ready, rest = [], []
        for text, shown in self._held:
            ready.append(text[:count] if shown else "")
            rest.append((text[count:], shown))
            count = max(0, count - len(text))
        self._held = [] if self._ended else [(text, shown) for text, shown in rest if text]
        return "".join(ready)

    def _undecided(self, text: str) -> int:
        """Characters at the end that may begin a stop string."""
        longest = 0
        for stop in self._stops:
            sizes = range(min(len(stop) - 1, len(text)), longest, -1)
            longest = next((size for size in sizes if text.endswith(stop[:size])), longest)
        return longest
