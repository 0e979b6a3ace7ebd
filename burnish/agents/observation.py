"""What an environment says, made safe and short enough for a trajectory.

Text from outside may spell tokens that mean something here: the end of a turn, a call, the tags of the search agent. It
could then end the observation, call a tool or answer in the policy's name. `Observations.harmless` breaks such marks
up: they stay readable, as ordinary text. `Observations.cut` keeps a number of tokens.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from burnish.data.chat import Marks, special_ids, truncate
from burnish.search.client import Document

Side = Literal["left", "right", "middle"]
LONGEST_TOKEN = 64  # characters that a token may stand for
BROKEN = "\ufffd"  # what decoding leaves of a character that was cut in two


class Observations:
    """Observations in the tokens of one tokenizer. `tags` are further marks, next to the tokenizer's special tokens."""

    def __init__(self, tokenizer: Any, tags: Iterable[str] = ()):
        self.tokenizer = tokenizer
        added = {number: str(token.content) for number, token in tokenizer.added_tokens_decoder.items()}
        special = special_ids(tokenizer)
        marks = {text for number, text in added.items() if number in special or text.startswith("<")} | {*tags}
        self._marks = Marks(marks)

    def harmless(self, text: str) -> str:
        """The text with a space after the first character of each mark, and without lone surrogates."""
        return self._marks.broken_up(text.encode("utf-8", "replace").decode())

    def ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def cut(self, text: str, length: int, side: Side) -> tuple[str, bool]:
        """About `length` tokens of the text, harmless, and whether anything was cut; `side` is where it is cut."""
        most = length * LONGEST_TOKEN
        short = "".join(truncate(text, most, side))  # first, so that a huge text is not tokenised
        ids = self.ids(self.harmless(short))
        if len(ids) <= length:
            return self.harmless(short), len(text) > most
        if side == "middle":
            head, tail = ids[: length // 2], ids[len(ids) - (length - length // 2) :]
            return self.harmless(f"{self._text(head)}…{self._text(tail)}"), True
        return self.harmless(self._text(truncate(ids, length, side))), True

    def _text(self, ids: list[int]) -> str:
        text = self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return str(text).strip(BROKEN)


def passages(documents: Sequence[Document]) -> str:
    parts = [document.contents.partition("\n") for document in documents]
    return "\n".join(f"Doc {number}(Title: {title}) {text}".strip() for number, (title, _, text) in enumerate(parts, 1))
