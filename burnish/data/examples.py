"""Examples of SFT and reward models: the rows of some files, rendered and checked, and batches of them by step.

`SFTDataset` makes conversations with a loss mask, `PreferenceDataset` pairs (chosen, rejected), both sides whole.
"""

import json
import logging
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np

from burnish.config.supervised import RMDataConfig, SFTDataConfig, SupervisedDataConfig
from burnish.data.chat import ChatRenderer, Message, SpecialTexts, to_messages, truncate, without_nulls
from burnish.data.files import Row, at, lookup, read_first_rows
from burnish.data.order import Order
from burnish.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)

_DIALOGUE = re.compile(r"\s*(Human|Assistant):.*\n\n(Human|Assistant):", re.DOTALL)  # real answers, too, begin so


class Tokenized(Sized, Protocol):
    @property
    def ids(self) -> np.ndarray: ...


Example = TypeVar("Example", bound=Tokenized)


class Examples(ABC, Generic[Example]):
    """All examples of the files, or `max_samples` of them. What was left out is logged, and kept in `notices`."""

    emptied: ClassVar[str]  # what the notice says of examples of which truncation leaves nothing, after their number

    def __init__(
        self,
        files: Sequence[str],
        tokenizer: "PreTrainedTokenizerBase",
        config: SupervisedDataConfig,
        *,
        max_samples: int = -1,
    ):
        if not files:
            raise DataError("no data files are given; set data.train_files")
        self.config = config
        self.renderer = ChatRenderer(tokenizer, config.apply_chat_template_kwargs, escape=config.escape_special_tokens)
        self.notices: list[str] = []
        self.special = SpecialTexts(self.renderer)
        made: list[Example | None] = []
        for file, table in zip(files, read_first_rows(files, max_samples), strict=True):
            for i, row in enumerate(table):
                self._where = partial(at, file, i)
                try:
                    made.append(self.example(row))
                except DataError as exc:
                    raise DataError(f"{self._where()}: {exc}") from exc
        self.special.warn()
        self._examples = [example for example in made if example is not None]
        if emptied := len(made) - len(self._examples):
            self.say(f"{emptied} of {len(made)} {self.emptied} after truncation; skipped")
        if not self._examples:
            raise DataError(f"no example of {', '.join(map(str, files))} is left to learn from; raise data.max_length")

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, i: int) -> Example:
        return self._examples[i]

    @abstractmethod
    def example(self, row: Row) -> Example | None:
        """What a row teaches; None where truncation leaves nothing of it. A DataError need not name the row."""

    def look_at(self, messages: Sequence[Message]) -> None:
        """Note special tokens in the text. Refuse what is far too long before it is tokenised, which takes memory."""
        self.special.add(messages, self._where)
        count, longest = sum(len(message["content"]) for message in messages), self.renderer.longest_token
        if count > 4 * self.config.max_length * longest:
            raise DataError(
                f"the messages have {count} characters, far over data.max_length={self.config.max_length} tokens of at "
                f"most {longest}; shorten or drop the row"
            )

    def shorten(self, what: str, *columns: list[int]) -> list[list[int]]:
        """Columns with a value per token, cut to `data.max_length` by `data.truncation`; `what` is for messages."""
        count, limit = len(columns[0]), self.config.max_length
        if count > limit and self.config.truncation == "error":
            raise DataError(
                f"{what} has {count} tokens, over data.max_length={limit}. Raise the limit, or set "
                "data.truncation=left|right|middle to cut such examples"
            )
        return [truncate(column, limit, self.config.truncation) for column in columns]

    def say(self, notice: str) -> None:
        log.info(notice)
        self.notices.append(notice)


@dataclass(frozen=True)
class SFTExample:
    """One conversation. `loss_mask[t]` is 1 where token t is to be predicted; never for the first token."""

    ids: np.ndarray  # (T,)
    loss_mask: np.ndarray  # (T,)

    def __len__(self) -> int:
        return len(self.ids)


class SFTDataset(Examples[SFTExample]):
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
        self.look_at(messages)
        ids, mask = self.renderer.conversation(messages, tools_of(row))
        ids, mask = self.shorten("the example", ids, mask)
        mask[0] = 0  # there is nothing to predict the first token from
        return SFTExample(np.array(ids, dtype=np.int32), np.array(mask, dtype=np.int8)) if any(mask) else None


@dataclass(frozen=True)
class PreferencePair:
    chosen: np.ndarray  # (T,)
    rejected: np.ndarray  # (T',)
    margin: float = 0.0

    @property
    def ids(self) -> np.ndarray:  # (T+T',)
        return np.concatenate([self.chosen, self.rejected])

    def __len__(self) -> int:
        return len(self.chosen) + len(self.rejected)


class PreferenceDataset(Examples[PreferencePair]):
    emptied = "pairs have the same tokens on both sides"

    config: RMDataConfig

    def __init__(
        self, files: Sequence[str], tokenizer: "PreTrainedTokenizerBase", config: RMDataConfig, *, max_samples: int = -1
    ):
        self._cut = 0
        super().__init__(files, tokenizer, config, max_samples=max_samples)
        if self._cut:
            what = f"{self._cut} conversations are over data.max_length={config.max_length}"
            self.say(f"{what} and were cut (data.truncation={config.truncation})")

    def example(self, row: Row) -> PreferencePair | None:
        keys, tools = (self.config.chosen_key, self.config.rejected_key), tools_of(row)
        sides = []
        for key in keys:
            messages = self._conversation(row, key)
            try:
                self.look_at(messages)
                sides.append(self.renderer.whole(messages, tools))
            except DataError as exc:
                raise DataError(f"field '{key}': {exc}") from exc
        if sides[0] == sides[1]:
            raise DataError(f"fields '{keys[0]}' and '{keys[1]}' are equal, so neither is preferred; drop the row")
        margin = self._margin(row)
        short = [self.shorten(f"field '{key}': the conversation", ids)[0] for key, ids in zip(keys, sides, strict=True)]
        self._cut += sum(len(cut) < len(ids) for cut, ids in zip(short, sides, strict=True))
        chosen, rejected = short
        if chosen == rejected:
            return None
        return PreferencePair(np.array(chosen, dtype=np.int32), np.array(rejected, dtype=np.int32), margin)

    def _conversation(self, row: Row, key: str) -> list[Message]:
        answer = lookup(row, key)
        _refuse_dialogue(answer, key)
        messages = [{"role": "assistant", "content": answer}] if isinstance(answer, str) else messages_of(row, key)
        last = messages[-1]
        if last["role"] != "assistant":
            raise DataError(f"field '{key}': the last message is from {last['role']}; it has to be the assistant's")
        if not last["content"].strip() and not last.get("tool_calls"):
            raise DataError(f"field '{key}': the answer is empty")
        if messages[0]["role"] != "assistant":
            return messages
        prompt_key = self.config.prompt_key
        if (value := lookup(row, prompt_key)) is None:
            missing = f"field '{prompt_key}' (data.prompt_key) with its prompt"
            raise DataError(f"field '{key}' is only an answer, and {missing} is missing or null")
        _refuse_dialogue(value, prompt_key)
        prompt = messages_of(row, prompt_key)
        if not any(message["content"].strip() for message in prompt):
            raise DataError(f"field '{prompt_key}': the prompt is empty")
        return [*prompt, *messages]

    def _margin(self, row: Row) -> float:
        key = self.config.margin_key
        if key is None:
            return 0.0
        field, value = f"field '{key}' (data.margin_key)", lookup(row, key)
        if value is None:
            raise DataError(f"{field} is missing or null")
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise DataError(f"{field} is {value!r}, expected a finite number")
        return float(value)


def _refuse_dialogue(value: Any, key: str) -> None:
    if isinstance(value, str) and _DIALOGUE.match(value):
        raise DataError(
            f"field '{key}' is a dialogue in one text (Human: and Assistant: turns), and would be read as one message. "
            "Make rows of such dialogues with `burnish data make preference`"
        )


class Batches(Generic[Example]):
    """Batches as a function of the step: step s has positions s·batch_size and on of the stream of examples."""

    def __init__(self, dataset: Examples[Example], batch_size: int, *, seed: int, shuffle: bool = True):
        self.dataset, self.batch_size = dataset, batch_size
        self._order = Order([len(dataset)], seed, shuffle)

    def __len__(self) -> int:
        """Steps per epoch. The stream does not stop at an epoch's end, so no example is left out."""
        return max(1, len(self.dataset) // self.batch_size)

    def batch(self, step: int) -> list[Example]:
        positions = range(step * self.batch_size, (step + 1) * self.batch_size)
        return [self.dataset[self._order.index(p)] for p in positions]

    def epoch(self, step: int) -> int:
        return self._order.epoch(step * self.batch_size)

    def once(self) -> Iterator[list[Example]]:
        """Every example exactly once, in file order: what a validation pass goes through."""
        numbers = range(len(self.dataset))
        for start in range(0, len(self.dataset), self.batch_size):
            yield [self.dataset[i] for i in numbers[start : start + self.batch_size]]


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
        except (ValueError, RecursionError) as exc:
            raise DataError(f"field 'tools' is not valid JSON: {exc!s:.80}") from exc
    if not tools:
        return None
    if not isinstance(tools, list):
        raise DataError(f"field 'tools' is a {type(tools).__name__}, expected a list of tool schemas")
    return without_nulls(tools)
