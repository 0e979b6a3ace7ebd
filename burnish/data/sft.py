"""SFT examples: rows to token ids with a loss mask.

Consumes rows with a `messages` column, or with a prompt and a response column, and optionally a `tools` column; hands
on `SFTExample`s. Loss is on the assistant's tokens only, each turn's end included (`chat.py`).
"""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from burnish.config.sft import SFTDataConfig
from burnish.data.chat import Message, to_messages, without_nulls
from burnish.data.examples import Examples
from burnish.data.files import Row, lookup
from burnish.errors import DataError


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

    config: SFTDataConfig

    def example(self, row: Row) -> SFTExample | None:
        if self.config.prompt_key:
            response = lookup(row, str(self.config.response_key))
            if not isinstance(response, str):
                kind = "missing or null" if response is None else f"a {type(response).__name__}"
                raise DataError(f"field '{self.config.response_key}' is {kind}, expected text")
            messages = [*messages_of(row, self.config.prompt_key), {"role": "assistant", "content": response}]
        else:
            messages = messages_of(row, self.config.messages_key)
        ids, mask = self.renderer.conversation(messages, tools_of(row))
        ids, mask = self.shorten("the example", ids, mask)
        mask[0] = 0  # there is nothing to predict the first token from
        return SFTExample(np.array(ids, dtype=np.int32), np.array(mask, dtype=np.int8)) if any(mask) else None


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
