"""The buffer of new prompts: rows proposed while training wait here until a batch draws them.

A row is checked as a row of a file is; what is wrong with it is counted and reported. It carries its `Provenance` in
`extra_info.augmented`. The buffer is part of the checkpoint, so its values are JSON; no prompt is in it twice.
"""

import json
import math
import reprlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from burnish.config.data import DataConfig
from burnish.data.chat import ChatRenderer
from burnish.data.dataset import Check, complete_row, refuse_media
from burnish.data.files import Row
from burnish.errors import ConfigError, DataError, UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

AUGMENTED = "augmented"
MOST_ROWS = 64  # of a trajectory that are looked at, so that no function can hold up a step
DEEPEST = 64  # levels of lists and objects in a row


@dataclass(frozen=True)
class Provenance:
    """Where a proposed row comes from: the prompt whose trajectory proposed it, the step, and who did."""

    from_uid: int
    from_index: Any
    step: int
    by: str  # reward, agent
    depth: int = 1  # of a child of a dataset's row; 2 of a child of such a child, and so on


@dataclass(frozen=True)
class Proposal:
    rows: Any
    origin: Provenance


@dataclass
class Intake:
    added: int = 0
    duplicates: int = 0  # their prompt is waiting already
    refused: int = 0
    dropped: int = 0  # rows, new or waiting, that found no room, and those over MOST_ROWS
    reasons: dict[str, Provenance] = field(default_factory=dict)  # why rows were refused, and the first one's origin

    def refuse(self, origin: Provenance, reason: str) -> None:
        self.refused += 1
        self.reasons.setdefault(reason, origin)


class PromptBuffer:
    """The rows that wait. `check` says what is wrong with a completed row, or None."""

    def __init__(self, config: DataConfig, tokenizer: "PreTrainedTokenizerBase", check: Check | None = None):
        self.config, self.check = config, check
        self.chat = ChatRenderer(tokenizer, config.apply_chat_template_kwargs, escape=config.escape_special_tokens)
        self._waiting: OrderedDict[str, Row] = OrderedDict()  # by the prompt's messages, oldest first
        name = "train_batch_size" if config.gen_batch_size in (None, config.train_batch_size) else "gen_batch_size"
        size: int = getattr(config, name)  # prompts that are drawn at a time
        if not self.most(size):
            raise ConfigError(
                f"data.augment.share={config.augment.share} of data.{name}={size} is less than one prompt, so none "
                f"would ever be drawn; raise it to {1 / size:.3g} or more"
            )

    def __len__(self) -> int:
        return len(self._waiting)

    def most(self, size: int) -> int:
        return math.floor(self.config.augment.share * size + 1e-9)  # 0.29 × 100 is 28.999…

    def take(self, size: int) -> list[Row]:
        count = min(self.most(size), len(self))
        rows = [self._waiting.popitem(last=False)[1] for _ in range(count)]
        return [{**row, AUGMENTED: row["extra_info"][AUGMENTED]} for row in rows]

    def add(self, proposals: Iterable[Proposal]) -> Intake:
        intake = Intake()
        for proposal in proposals:
            if not isinstance(proposal.rows, list | tuple):
                intake.refuse(proposal.origin, f"new_prompts is {_shown(proposal.rows)}, expected a list of rows")
                continue
            for row in proposal.rows[:MOST_ROWS]:
                self._add_row(row, proposal.origin, intake)
            intake.dropped += max(0, len(proposal.rows) - MOST_ROWS)
        return intake

    def _add_row(self, row: Any, origin: Provenance, intake: Intake) -> None:
        is_full = len(self) >= self.config.augment.buffer_size
        try:
            full = self._completed(row, origin)
            name = json.dumps(full["raw_prompt"], sort_keys=True)
            if name in self._waiting:
                intake.duplicates += 1
                return
            if is_full and self.config.augment.on_full == "drop_new":
                intake.dropped += 1
                return
            limit = self.config.start_limit
            (length,) = self.chat.token_counts([self.chat.text(full["raw_prompt"])], limit)
            if length > limit and (self.config.truncation == "error" or self.config.filter_overlong_prompts):
                raise DataError(f"the prompt has {length} tokens, over {self.config.start_limit_key}={limit}")
            if self.check and (problem := self.check(full)):
                raise DataError(problem)
        except UserError as error:
            intake.refuse(origin, str(error))
            return
        if is_full:
            intake.dropped += 1
            self._waiting.popitem(last=False)
        self._waiting[name] = full
        intake.added += 1

    def _completed(self, row: Any, origin: Provenance) -> Row:
        """The row with its standard fields and its origin. One without an index has that of the row it comes from."""
        if not isinstance(row, Mapping):
            raise DataError(f"a new prompt is {_shown(row)}, expected a row: an object")
        row = _as_json(row)
        refuse_media(row, (self.config.image_key, self.config.video_key), "a new prompt")
        full = complete_row(
            {**row, "index": origin.from_index if row.get("index") is None else row["index"]},
            prompt_key=self.config.prompt_key,
            reward_fn_key=self.config.reward_fn_key,
            position=origin.from_uid,
        )
        full["extra_info"] = {**full["extra_info"], AUGMENTED: asdict(origin)}
        return full

    def state_dict(self) -> dict[str, Any]:
        return {"waiting": list(self._waiting.values())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        rows = state["waiting"]
        self._waiting = OrderedDict((json.dumps(row["raw_prompt"], sort_keys=True), row) for row in rows)


def _as_json(row: Mapping[str, Any]) -> Row:
    """A copy in JSON's values: arrays, tuples and sets become lists, other objects their text."""

    def default(value: Any) -> Any:
        if isinstance(value, Mapping):
            return dict(value)
        if hasattr(value, "tolist"):  # numpy and torch, without importing either
            return value.tolist()
        return list(value) if isinstance(value, set | frozenset) else str(value)

    def is_deep(value: Any, levels: int) -> bool:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        return any(not levels or is_deep(item, levels - 1) for item in inner)

    try:
        copied: Row = json.loads(json.dumps(dict(row), default=default))
        too_deep = is_deep(copied, DEEPEST)
    except (TypeError, ValueError) as error:
        raise DataError(f"a new prompt holds what JSON cannot: {error}") from error
    except RecursionError:
        too_deep = True
    if too_deep:
        raise DataError(f"a new prompt is nested more than {DEEPEST} levels deep")
    return copied


def _shown(value: Any) -> str:
    return f"a {type(value).__name__} ({reprlib.repr(value):.60})"  # which no nesting and no length can hurt
