"""The prompts of a run: files to checked rows, held in memory.

Consumes `data.*` and a tokenizer; hands on rows by number (`dataset[i]`), which `order.py` puts in order and
`collate.py` makes a batch of. All rows are checked here, before a model is loaded or a step is taken: the types of
their fields (`row.py`), the length of their prompts, and what the caller's `check` asks, e.g. that a row has the
ground truth its scorer reads. What was left out or renamed is logged, and kept in `notices`.
"""

import copy
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from burnish.config.data import DataConfig
from burnish.data.chat import ChatRenderer
from burnish.data.custom import CustomDataset
from burnish.data.files import Row, at, columns, lookup, no_column, read_rows
from burnish.data.row import complete_row, find_prompt_key, kept_name, refuse_media
from burnish.data.shares import largest_remainder
from burnish.errors import DataError
from burnish.user_code import load_class

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Check = Callable[[Row], str | None]
log = logging.getLogger(__name__)


def train_dataset(
    config: DataConfig, tokenizer: "PreTrainedTokenizerBase | None", check: Check | None = None
) -> "RLDataset | CustomDataset":
    """The rows to train on, by the configured class."""
    return _make(config.train_files or [], tokenizer, config, config.train_max_samples, check)


def val_dataset(
    config: DataConfig, tokenizer: "PreTrainedTokenizerBase | None", check: Check | None = None
) -> "RLDataset | CustomDataset | None":
    """The rows to validate on; None where no file is given."""
    if not config.val_files:
        return None
    return _make(config.val_files, tokenizer, config, config.val_max_samples, check)


def _make(
    files: Sequence[str],
    tokenizer: "PreTrainedTokenizerBase | None",
    config: DataConfig,
    max_samples: int,
    check: Check | None,
) -> "RLDataset | CustomDataset":
    chosen = config.custom_cls
    if not chosen.path:
        return RLDataset(files, tokenizer, config, max_samples=max_samples, check=check)
    cls = load_class(chosen.path, chosen.name, "data.custom_cls.path", "data.custom_cls.name")
    return CustomDataset(cls, files, tokenizer, config, max_samples=max_samples, check=check)


class RLDataset:
    """Rows of one or more files. Rows of a file are adjacent; `source_sizes` says how many each file gave.

    files        paths; parquet, json or jsonl
    tokenizer    measures prompts; None skips the check of their length
    max_samples  rows to use, -1 for all; several files give in proportion to their sizes, each its first rows
    check        says what is wrong with a row, or None
    """

    def __init__(
        self,
        files: Sequence[str],
        tokenizer: "PreTrainedTokenizerBase | None",
        config: DataConfig,
        *,
        max_samples: int = -1,
        check: Check | None = None,
    ):
        self.config, self.files = config, [str(file) for file in files]
        self.notices: list[str] = []
        self.source_sizes: list[int] = []
        self._rows: list[Row] = []
        self._origin: list[int] = []  # row number in its file
        if not self.files:
            raise DataError("no data files are given; set data.train_files")
        self._load(max_samples, check)
        if tokenizer is not None:
            self._fit_prompts(tokenizer)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, i: int) -> Row:
        """Row `i`, the caller's to change."""
        return copy.deepcopy(self._rows[i])

    def value(self, i: int, key: str) -> Any:
        """The value of row `i` at a dotted path, e.g. `extra_info.difficulty`; None where there is none."""
        return lookup(self._rows[i], key)

    def known_rows(self) -> list[Row]:
        """All rows, as far as they are known before they are drawn."""
        return self._rows

    def where(self, i: int) -> str:
        """How messages name row `i`."""
        return at(self.files[self.source(i)], self._origin[i])

    def source(self, i: int) -> int:
        """The number of the file that row `i` is from."""
        for number, size in enumerate(self.source_sizes):
            if i < size:
                return number
            i -= size
        raise IndexError(f"row {i} of {len(self)}")

    def _load(self, max_samples: int, check: Check | None) -> None:
        tables = [read_rows(file) for file in self.files]
        sizes = [len(table) for table in tables]
        if 0 <= max_samples < sum(sizes):
            sizes = largest_remainder(sizes, max_samples)
        for file, table, size in zip(self.files, tables, sizes, strict=True):
            self._check_columns(file, table)
            for number, row in enumerate(table[:size]):
                self._rows.append(self._complete(row, at(file, number), check))
                self._origin.append(number)
            self.source_sizes.append(size)
        if not self._rows:
            raise DataError(f"no rows are left of {', '.join(self.files)} with a limit of {max_samples} rows")

    def _check_columns(self, file: str, table: list[Row]) -> None:
        names = columns(table)
        prompt = find_prompt_key(dict.fromkeys(names, True), self.config.prompt_key)
        if prompt is None:
            raise no_column(file, self.config.prompt_key, names, "Name the one with the prompts in data.prompt_key")
        for name in names:
            if name != prompt and kept_name(name) != name:
                self._say(f"{file}: column '{name}' is kept as '{kept_name(name)}'; burnish uses that name itself")

    def _complete(self, row: Row, where: str, check: Check | None) -> Row:
        refuse_media(row, (self.config.image_key, self.config.video_key), where)
        keys = {"prompt_key": self.config.prompt_key, "reward_fn_key": self.config.reward_fn_key}
        try:
            full = complete_row(row, position=len(self._rows), **keys)
        except DataError as exc:
            raise DataError(f"{where}: {exc}") from exc
        if check and (problem := check(full)):
            raise DataError(f"{where}: {problem}")
        return full

    def _fit_prompts(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        """Drop prompts over the limit, or refuse them; the other truncations cut when a prompt is rendered."""
        renderer = ChatRenderer(tokenizer, self.config.apply_chat_template_kwargs)
        if not self.config.filter_overlong_prompts and self.config.truncation != "error":
            return
        limit = self.config.start_limit
        lengths = renderer.token_counts([self._rendered(renderer, i) for i in range(len(self))])
        over = [i for i, length in enumerate(lengths) if length > limit]
        if over and not self.config.filter_overlong_prompts:
            raise DataError(
                f"{self.where(over[0])}: the prompt has {lengths[over[0]]} tokens, over {self.config.start_limit_key}="
                f"{limit} ({len(over)} of {len(self)} prompts are, the longest has {max(lengths)}). Raise it, or set "
                "data.filter_overlong_prompts=true to leave them out, or data.truncation=left|right|middle to cut them"
            )
        if over:
            self._drop(over, limit, max(lengths))

    def _rendered(self, renderer: ChatRenderer, i: int) -> str:
        try:
            return renderer.text(self._rows[i]["raw_prompt"])
        except DataError as exc:
            raise DataError(f"{self.where(i)}: {exc}") from exc

    def _drop(self, over: list[int], limit: int, longest: int) -> None:
        total, out = len(self), set(over)
        if len(out) == total:
            raise DataError(
                f"all {total} prompts are over {self.config.start_limit_key}={limit} (the longest has {longest} "
                "tokens), so data.filter_overlong_prompts leaves nothing. Raise the limit"
            )
        ends = [sum(self.source_sizes[: n + 1]) for n in range(len(self.source_sizes))]
        starts = [0, *ends[:-1]]
        self.source_sizes = [
            sum(i not in out for i in range(start, end)) for start, end in zip(starts, ends, strict=True)
        ]
        self._rows = [row for i, row in enumerate(self._rows) if i not in out]
        self._origin = [number for i, number in enumerate(self._origin) if i not in out]
        self._say(f"{len(over)} of {total} prompts are over {self.config.start_limit_key}={limit} and left out")

    def _say(self, notice: str) -> None:
        log.info(notice)
        self.notices.append(notice)
