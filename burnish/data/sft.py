"""Supervised examples: rows to token ids with a loss mask, and batches of them as a function of the step.

Consumes files with a `messages` column, or with a prompt and a response column, and optionally a `tools` column; hands
on `SFTExample`s. Loss is on the assistant's tokens only, each turn's end included (`chat.py`). How many examples one
pass of the model holds is the trainer's business: a step has the same examples however it is cut.
"""

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from burnish.config.sft import SFTDataConfig
from burnish.data.chat import ChatRenderer, Message, to_messages, truncate, without_nulls
from burnish.data.files import Row, at, columns, lookup, no_column, read_rows
from burnish.data.order import Order
from burnish.data.shares import largest_remainder
from burnish.errors import ConfigError, DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SFTExample:
    """One conversation. `loss_mask[t]` is 1 where token t is to be predicted; never for the first token."""

    ids: np.ndarray  # (T,)
    loss_mask: np.ndarray  # (T,)

    def __len__(self) -> int:
        return len(self.ids)


class SFTDataset:
    """All examples of the files, rendered and checked. What was left out is logged, and kept in `notices`.

    max_samples  rows to use, -1 for all; several files give in proportion to their sizes, each its first rows
    """

    def __init__(
        self,
        files: Sequence[str],
        tokenizer: "PreTrainedTokenizerBase",
        config: SFTDataConfig,
        *,
        max_samples: int = -1,
    ):
        if not files:
            raise DataError("no data files are given; set data.train_files")
        self.config = config
        self.renderer = ChatRenderer(tokenizer, config.apply_chat_template_kwargs)
        self.notices: list[str] = []
        self._examples: list[SFTExample] = []
        tables = [read_rows(file) for file in files]
        sizes = [len(table) for table in tables]
        if 0 <= max_samples < sum(sizes):
            sizes = largest_remainder(sizes, max_samples)
        silent = 0
        for file, table, size in zip(files, tables, sizes, strict=True):
            self._check_columns(str(file), table)
            for number, row in enumerate(table[:size]):
                example = self._example(row, at(file, number))
                if example.loss_mask.any():
                    self._examples.append(example)
                else:
                    silent += 1
        if silent:
            self._say(f"{silent} of {sum(sizes)} examples have no assistant token left after truncation; left out")
        if not self._examples:
            raise DataError(f"no example of {', '.join(map(str, files))} is left to learn from; raise data.max_length")

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, i: int) -> SFTExample:
        return self._examples[i]

    def _check_columns(self, file: str, table: list[Row]) -> None:
        config, there = self.config, columns(table)
        if bool(config.prompt_key) != bool(config.response_key):
            raise ConfigError("data.prompt_key and data.response_key go together; set both or neither")
        wanted = [config.prompt_key, config.response_key] if config.prompt_key else [config.messages_key]
        for name in wanted:
            if name not in there and str(name).split(".")[0] not in there:
                fix = (
                    "Name the one with conversations in data.messages_key, or set data.prompt_key and data.response_key"
                )
                raise no_column(file, str(name), there, fix)

    def _example(self, row: Row, where: str) -> SFTExample:
        try:
            ids, mask = self.renderer.conversation(self._messages(row), tools_of(row))
        except DataError as exc:
            raise DataError(f"{where}: {exc}") from exc
        limit, mode = self.config.max_length, self.config.truncation
        if len(ids) > limit and mode == "error":
            raise DataError(
                f"{where}: the example has {len(ids)} tokens, over data.max_length={limit}. Raise the limit, or set "
                "data.truncation=left|right|middle to cut such examples"
            )
        ids, mask = truncate(ids, limit, mode), truncate(mask, limit, mode)
        mask[0] = 0  # nothing stands before the first token to predict it from
        return SFTExample(np.array(ids, dtype=np.int32), np.array(mask, dtype=np.int8))

    def _messages(self, row: Row) -> list[Message]:
        if not self.config.prompt_key:
            return messages_of(row, self.config.messages_key)
        response = lookup(row, str(self.config.response_key))
        if not isinstance(response, str):
            kind = "missing or null" if response is None else f"a {type(response).__name__}"
            raise DataError(f"field '{self.config.response_key}' is {kind}, expected text")
        prompt = messages_of(row, self.config.prompt_key)
        return [*prompt, {"role": "assistant", "content": response}]

    def _say(self, notice: str) -> None:
        log.info(notice)
        self.notices.append(notice)


class SFTBatches:
    """Batches as a function of the step: step s has positions s·batch_size and on of the stream of examples."""

    def __init__(self, dataset: SFTDataset, batch_size: int, *, seed: int, shuffle: bool = True):
        self.dataset, self.batch_size = dataset, batch_size
        self._order = Order([len(dataset)], seed, shuffle)

    def __len__(self) -> int:
        """Steps per epoch. The stream does not stop at an epoch's end, so no example is left out."""
        return max(1, len(self.dataset) // self.batch_size)

    def batch(self, step: int) -> list[SFTExample]:
        """The examples of a step."""
        positions = range(step * self.batch_size, (step + 1) * self.batch_size)
        return [self.dataset[self._order.index(p)] for p in positions]

    def epoch(self, step: int) -> int:
        """The epoch in which a step starts."""
        return self._order.epoch(step * self.batch_size)

    def once(self) -> Iterator[list[SFTExample]]:
        """Every example exactly once, in file order: what a validation pass goes through."""
        for start in range(0, len(self.dataset), self.batch_size):
            stop = min(start + self.batch_size, len(self.dataset))
            yield [self.dataset[i] for i in range(start, stop)]


def messages_of(row: Row, key: str) -> list[Message]:
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
