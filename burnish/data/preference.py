"""Preference pairs: rows to the token ids of two conversations, of which the first was preferred.

Consumes rows with a better and a worse answer, and optionally a `tools` column and a margin; produces
`PreferencePair`s. What `burnish data make preference` writes is read as it is. An answer (`data.chosen_key`,
`data.rejected_key`) is one of

    text                       the assistant's answer to the prompt (`data.prompt_key`: text or messages)
    messages, assistant first  what follows the prompt
    messages, otherwise        a whole conversation, which holds its prompt; the prompt column is not read

and ends with a message of the assistant. Both are rendered whole with the tokenizer's own chat template, as they are
wherever a reward model is asked (`ChatRenderer.whole`). Text that is a whole dialogue (`Human: …`, `Assistant: …`) is
refused: it would be learnt as one message.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from burnish.config.rm import RMDataConfig
from burnish.data.chat import Message
from burnish.data.examples import Examples
from burnish.data.files import Row, lookup
from burnish.data.sft import messages_of, tools_of
from burnish.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_DIALOGUE = re.compile(r"\s*(Human|Assistant):.*\n\n(Human|Assistant):", re.DOTALL)  # real answers, too, begin so


@dataclass(frozen=True)
class PreferencePair:
    """Two conversations, and by how much the reward of the first is to be higher."""

    chosen: np.ndarray  # (T,)
    rejected: np.ndarray  # (T',)
    margin: float = 0.0

    @property
    def ids(self) -> np.ndarray:  # (T+T',)
        return np.concatenate([self.chosen, self.rejected])

    def __len__(self) -> int:
        return len(self.chosen) + len(self.rejected)


class PreferenceDataset(Examples[PreferencePair]):
    """All pairs of the files. One whose sides are the same after truncation is left out."""

    emptied = "pairs have the same tokens on both sides"

    config: RMDataConfig

    def __init__(
        self,
        files: Sequence[str],
        tokenizer: "PreTrainedTokenizerBase",
        config: RMDataConfig,
        *,
        max_samples: int = -1,
    ):
        self._cut = 0
        super().__init__(files, tokenizer, config, max_samples=max_samples)
        if self._cut:
            self.say(
                f"{self._cut} conversations are over data.max_length={config.max_length} and were cut "
                f"(data.truncation={config.truncation})"
            )

    def example(self, row: Row) -> PreferencePair | None:
        keys, tools = (self.config.chosen_key, self.config.rejected_key), tools_of(row)
        sides = []
        for key in keys:
            messages = self._conversation(row, key)
            try:
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
        """The conversation of one side of a row."""
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
        value = lookup(row, prompt_key)
        if value is None:
            raise DataError(
                f"field '{key}' is only an answer, and field '{prompt_key}' (data.prompt_key) with its prompt "
                "is missing or null"
            )
        _refuse_dialogue(value, prompt_key)
        prompt = messages_of(row, prompt_key)
        if not any(message["content"].strip() for message in prompt):
            raise DataError(f"field '{prompt_key}': the prompt is empty")
        return [*prompt, *messages]

    def _margin(self, row: Row) -> float:
        if self.config.margin_key is None:
            return 0.0
        field, value = f"field '{self.config.margin_key}' (data.margin_key)", lookup(row, self.config.margin_key)
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
