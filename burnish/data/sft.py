"""Supervised examples: rows to token ids with a loss mask.

Consumes rows with a `messages` column, or with a prompt and a response column, and optionally a `tools` column; hands
on `SFTExample`s. Loss is on the assistant's tokens only, each turn's end included (`chat.py`).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from burnish.config.sft import SFTDataConfig
from burnish.data.chat import Message, to_messages, without_nulls
from burnish.data.files import Row, lookup
from burnish.data.supervised import Examples
from burnish.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class SFTExample:
    """One conversation. `loss_mask[t]` is 1 where token t is to be predicted; never for the first token."""

    ids: np.ndarray  # (T,)
    loss_mask: np.ndarray  # (T,)

    def __len__(self) -> int:
        return len(self.ids)


class SFTDataset(Examples[SFTExample]):
    """All conversations of the files. One that has no assistant token left after truncation is left out."""

    emptied = "examples have no assistant token left"

    def __init__(
        self,
        files: Sequence[str],
        tokenizer: "PreTrainedTokenizerBase",
        config: SFTDataConfig,
        *,
        max_samples: int = -1,
    ):
        self.config = config
        super().__init__(files, tokenizer, config, max_samples=max_samples)

    def example(self, row: Row) -> SFTExample | None:
        ids, mask = self.renderer.conversation(self._messages(row), tools_of(row))
        ids, mask = self.shorten("the example", ids, mask)
        mask[0] = 0  # nothing stands before the first token to predict it from
        return SFTExample(np.array(ids, dtype=np.int32), np.array(mask, dtype=np.int8)) if any(mask) else None

    def _messages(self, row: Row) -> list[Message]:
        if not self.config.prompt_key:
            return messages_of(row, self.config.messages_key)
        response = lookup(row, str(self.config.response_key))
        if not isinstance(response, str):
            kind = "missing or null" if response is None else f"a {type(response).__name__}"
            raise DataError(f"field '{self.config.response_key}' is {kind}, expected text")
        prompt = messages_of(row, self.config.prompt_key)
        return [*prompt, {"role": "assistant", "content": response}]


def messages_of(row: Row, key: str) -> list[Message]:
    """The messages in a field; text is one user message."""
    value = lookup(row, key)
    if value is None:
        raise DataError(f"field '{key}' is missing or null")
    try:
        return to_messages(value)
    except DataError as exc:
        raise DataError(f"field '{key}': {exc}") from exc


def tools_of(row: Row) -> list[dict[str, Any]] | None:
    """Tool schemas of a row: a list, or one as JSON text, which keeps parquet from mixing the fields of schemas."""
    tools = row.get("tools")
    if isinstance(tools, str) and tools.strip():
        try:
            tools = json.loads(tools)
        except json.JSONDecodeError as exc:
            raise DataError(f"field 'tools' is not valid JSON: {exc}") from exc
    if not tools:
        return None
    if not isinstance(tools, list):
        raise DataError(f"field 'tools' is a {type(tools).__name__}, expected a list of tool schemas")
    return without_nulls(tools)
