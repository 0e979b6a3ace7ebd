"""The prompts of a run: files to checked rows, held in memory, and rows to batches.

Consumes `data.*` and a tokenizer; produces rows by number (`dataset[i]`), which `order.py` puts in order and `collate`
makes a batch of. All rows are checked here, before a model is loaded or a step is taken: the types of their fields
(`row.py`), the length of their prompts, and what the caller's `check` asks, e.g. that a row has the ground truth its
scorer reads. What was left out or renamed is logged, and kept in `notices`.

`data.custom_cls.{path,name}` names a user's class, constructed as `cls(files, tokenizer, config)`, with the keywords
`max_samples` and `check` where its signature takes them. It has `__len__` and `__getitem__(i) -> dict`; a row has the
fields a file's row may have, or `raw_prompt` with messages. Rows are completed as those of files are.
"""

import copy
import inspect
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from burnish.config.data import DataConfig
from burnish.data.chat import ChatRenderer
from burnish.data.files import Row, at, columns, lookup, no_column, read_first_rows
from burnish.data.row import Check, checked_row, find_prompt_key, kept_name
from burnish.errors import ConfigError, DataError
from burnish.user_code import load_class

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from burnish.protocol import DataProto

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
        for file, table in zip(self.files, read_first_rows(self.files, max_samples), strict=True):
            if table:
                self._check_columns(file, table)
            for number, row in enumerate(table):
                self._rows.append(checked_row(row, config, at(file, number), len(self._rows), check))
                self._origin.append(number)
            self.source_sizes.append(len(table))
        if not self._rows:
            raise DataError(f"no rows are left of {', '.join(self.files)} with a limit of {max_samples} rows")
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

    def _check_columns(self, file: str, table: list[Row]) -> None:
        names = columns(table)
        prompt = find_prompt_key(dict.fromkeys(names, True), self.config.prompt_key)
        if prompt is None:
            raise no_column(file, self.config.prompt_key, names, "Name the one with the prompts in data.prompt_key")
        for name in names:
            if name != prompt and kept_name(name) != name:
                self._say(f"{file}: column '{name}' is kept as '{kept_name(name)}'; burnish uses that name itself")

    def _fit_prompts(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        """Drop prompts over the limit, or refuse them; the other truncations cut when a prompt is rendered."""
        renderer = ChatRenderer(tokenizer, self.config.apply_chat_template_kwargs)
        if not self.config.filter_overlong_prompts and self.config.truncation != "error":
            return
        limit = self.config.start_limit
        texts = []
        for i, row in enumerate(self._rows):
            try:
                texts.append(renderer.text(row["raw_prompt"]))
            except DataError as exc:
                raise DataError(f"{self.where(i)}: {exc}") from exc
        lengths = renderer.token_counts(texts)
        over = [i for i, length in enumerate(lengths) if length > limit]
        if over and not self.config.filter_overlong_prompts:
            raise DataError(
                f"{self.where(over[0])}: the prompt has {lengths[over[0]]} tokens, over {self.config.start_limit_key}="
                f"{limit} ({len(over)} of {len(self)} prompts are, the longest has {max(lengths)}). Raise it, or set "
                "data.filter_overlong_prompts=true to leave them out, or data.truncation=left|right|middle to cut them"
            )
        if len(over) == len(self):
            raise DataError(
                f"all {len(self)} prompts are over {self.config.start_limit_key}={limit} (the longest has "
                f"{max(lengths)} tokens), so data.filter_overlong_prompts leaves nothing. Raise the limit"
            )
        if over:
            self._say(f"{len(over)} of {len(self)} prompts are over {self.config.start_limit_key}={limit} and skipped")
            kept = [i for i, length in enumerate(lengths) if length <= limit]
            sources = [self.source(i) for i in kept]
            self.source_sizes = [sources.count(number) for number in range(len(self.files))]
            self._rows = [self._rows[i] for i in kept]
            self._origin = [self._origin[i] for i in kept]

    def _say(self, notice: str) -> None:
        log.info(notice)
        self.notices.append(notice)


class CustomDataset:
    """A user's dataset behind the interface of `RLDataset`: its rows completed, its mistakes named."""

    def __init__(
        self,
        cls: type,
        files: Sequence[str],
        tokenizer: Any,
        config: DataConfig,
        *,
        max_samples: int = -1,
        check: Check | None = None,
    ):
        self.config, self.name = config, cls.__name__
        for method in ("__len__", "__getitem__"):
            if not hasattr(cls, method):
                raise ConfigError(
                    f"data.custom_cls: {self.name} has no {method}; a dataset needs __len__ and __getitem__"
                )
        keywords: dict[str, Any] = {"max_samples": max_samples, "check": check}
        parameters = inspect.signature(cls).parameters
        if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
            keywords = {name: value for name, value in keywords.items() if name in parameters}
        if max_samples >= 0 and "max_samples" not in keywords:
            raise ConfigError(
                f"data.custom_cls: {self.name} takes no max_samples, so data.train_max_samples or val_max_samples "
                "cannot limit its rows; add the parameter or leave the key out"
            )
        self._check = None if "check" in keywords else check
        self._inner = construct(cls, "data.custom_cls", (list(files), tokenizer, config), keywords)
        if len(self._inner) == 0:
            raise DataError(f"data.custom_cls: {self.name} has no rows")
        self.source_sizes: list[int] = list(getattr(self._inner, "source_sizes", [len(self._inner)]))
        self.notices: list[str] = list(getattr(self._inner, "notices", []))
        if config.filter_overlong_prompts and not hasattr(self._inner, "notices"):
            notice = (
                "data.filter_overlong_prompts is left to the custom dataset class; burnish does not filter its rows"
            )
            log.info(notice)
            self.notices.append(notice)
        self[0]  # a wrong class shows in its first row; the rest is seen as it is drawn

    def __len__(self) -> int:
        return len(self._inner)

    def __getitem__(self, i: int) -> Row:
        row = self._inner[i]
        if not isinstance(row, dict):
            raise DataError(f"{self.where(i)}: __getitem__ gave a {type(row).__name__}, expected a dict")
        return checked_row(copy.deepcopy(row), self.config, self.where(i), i, self._check)

    def value(self, i: int, key: str) -> Any:
        """The value of row `i` at a dotted path; None where there is none."""
        return lookup(self[i], key)

    def known_rows(self) -> list[Row]:
        """None: rows of a user's class are made as they are drawn."""
        return []

    def where(self, i: int) -> str:
        """How messages name row `i`."""
        return f"dataset {self.name}, row {i} (the first is 0)"


def construct(cls: type, key: str, arguments: tuple, keywords: dict[str, Any]) -> Any:
    """Only a signature that does not fit is the protocol's business; what a constructor raises rises as it is."""
    signature = inspect.signature(cls)
    try:
        signature.bind(*arguments, **keywords)
    except TypeError as exc:
        raise ConfigError(
            f"{key}: {cls.__name__}{signature} cannot be called with {len(arguments)} arguments: {exc}"
        ) from exc
    return cls(*arguments, **keywords)


def with_same_fields(rows: Sequence[Row]) -> list[Row]:
    """The rows, with None for a field that only others have."""
    names = columns(rows)
    return [{name: row.get(name) for name in names} for row in rows]


def collate(rows: Sequence[Row]) -> "DataProto":
    """The rows as a batch of object arrays, without tensors; a field that only some rows have is None in the others."""
    from burnish.protocol import DataProto

    if not rows:
        raise ValueError("collate needs at least one row")
    return DataProto.from_dict(non_tensors={name: [row.get(name) for row in rows] for name in columns(rows)})
