"""Sampled token ids to text, piece by piece: what a stream sends and what a whole answer holds.

`TextStream` consumes token ids one at a time and returns text that no later token can change:

- a character that is split over tokens comes when it is whole;
- a stop string is left out, and text that may be the beginning of one is held back until the engine has decided;
- special tokens are left out, but count as their text where stop strings are concerned;
- the token that ended the completion by its id is left out, special or not. Which one that is, only the engine knows
  (a model may end with more than one token), so the newest token always waits for the next one, or for the end.
"""

from typing import Any

from burnish.rollout.stops import Detokenizer


class TextStream:
    """The text of one completion. `push` every token as it is sampled, then `finish` with what ended it."""

    def __init__(self, tokenizer: Any, hidden: frozenset[int], stops: tuple[str, ...] = ()):
        self.length = 0  # characters decoded so far, those that are held back included
        self._hidden = hidden
        self._stops = stops
        self._detokenizer = Detokenizer(tokenizer)
        self._newest: int | None = None
        self._held: list[tuple[str, bool]] = []  # text, and whether it is shown

    def push(self, token_id: int) -> str:
        """Text that is certain now, often that of the token before."""
        if self._newest is not None:
            self._add(self._newest)
        self._newest = token_id
        whole = self._whole()
        return self._release(len(whole) - self._undecided(whole))

    def finish(self, stop: str | int | None) -> str:
        """The rest. `stop` is the string or token id that ended the completion, None where nothing did."""
        if self._newest is not None and not isinstance(stop, int):
            self._add(self._newest)
        self._newest = None
        self._hold(self._detokenizer.flush(), shown=True)
        whole = self._whole()
        return self._release(len(whole.partition(stop)[0] if isinstance(stop, str) else whole))

    def _add(self, token_id: int) -> None:
        if token_id in self._hidden:
            self._hold(self._detokenizer.flush(), shown=True)
            self._hold(self._detokenizer.push(token_id) + self._detokenizer.flush(), shown=False)
        else:
            self._hold(self._detokenizer.push(token_id), shown=True)

    def _hold(self, text: str, shown: bool) -> None:
        self._held.append((text, shown))
        self.length += len(text) if shown else 0

    def _whole(self) -> str:
        return "".join(text for text, _ in self._held)

    def _release(self, count: int) -> str:
        """So many characters of what is held, without the hidden ones."""
        ready, rest = [], []
        for text, shown in self._held:
            ready.append(text[:count] if shown else "")
            rest.append((text[count:], shown))
            count = max(0, count - len(text))
        self._held = [(text, shown) for text, shown in rest if text]
        return "".join(ready)

    def _undecided(self, text: str) -> int:
        """Characters at the end that may begin a stop string."""
        longest = 0
        for stop in self._stops:
            sizes = range(min(len(stop) - 1, len(text)), longest, -1)
            longest = next((size for size in sizes if text.endswith(stop[:size])), longest)
        return longest
