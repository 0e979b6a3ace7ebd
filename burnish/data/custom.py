"""Users' own dataset and sampler classes, loaded from a Python file or module and held to a small protocol.

`data.custom_cls.{path,name}`: a dataset is constructed as `cls(files, tokenizer, config)`, with the keywords
`max_samples` and `check` where its signature takes them. It has `__len__` and `__getitem__(i) -> dict`; a row has the
fields a file's row may have, or `raw_prompt` with messages. Rows are completed as those of files are.

`data.sampler.{class_path,class_name}`: a sampler is constructed as `cls(dataset, config)` and has `__len__`, the
number of positions in an epoch, and one of
  - `index(position) -> int`: the row at any position of the endless stream. It must depend on nothing else.
  - `__iter__`: the rows of one epoch, the same each time it is iterated. With `set_epoch(epoch)`, which is called
    first, epochs may differ.
Resuming asks for a position that no one asked for before, so an order that changes from call to call is refused.
"""

import copy
import inspect
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any

from burnish.config.data import DataConfig
from burnish.data.files import Row, lookup
from burnish.data.row import complete_row, refuse_media
from burnish.errors import ConfigError, DataError

log = logging.getLogger(__name__)


def _accepted(cls: type, keywords: dict[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(cls).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return keywords
    return {name: value for name, value in keywords.items() if name in parameters}


def _construct(cls: type, key: str, arguments: tuple, keywords: dict[str, Any]) -> Any:
    """Only a signature that does not fit is the protocol's business; what a constructor raises rises as it is."""
    signature = inspect.signature(cls)
    try:
        signature.bind(*arguments, **keywords)
    except TypeError as exc:
        raise ConfigError(
            f"{key}: {cls.__name__}{signature} cannot be called with {len(arguments)} arguments: {exc}"
        ) from exc
    return cls(*arguments, **keywords)


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
        check: Callable[[Row], str | None] | None = None,
    ):
        self.config, self.name = config, cls.__name__
        for method in ("__len__", "__getitem__"):
            if not hasattr(cls, method):
                raise ConfigError(
                    f"data.custom_cls: {self.name} has no {method}; a dataset needs __len__ and __getitem__"
                )
        keywords = _accepted(cls, {"max_samples": max_samples, "check": check})
        if max_samples >= 0 and "max_samples" not in keywords:
            raise ConfigError(
                f"data.custom_cls: {self.name} takes no max_samples, so data.train_max_samples or val_max_samples "
                "cannot limit its rows; add the parameter or leave the key out"
            )
        self._check = None if "check" in keywords else check
        self._inner = _construct(cls, "data.custom_cls", (list(files), tokenizer, config), keywords)
        if len(self._inner) == 0:
            raise DataError(f"data.custom_cls: {self.name} has no rows")
        self.source_sizes: list[int] = list(getattr(self._inner, "source_sizes", [len(self._inner)]))
        self.notices: list[str] = list(getattr(self._inner, "notices", []))
        if config.filter_overlong_prompts and not hasattr(self._inner, "notices"):
            self._say(
                "data.filter_overlong_prompts is left to the custom dataset class; burnish does not filter its rows"
            )
        self[0]  # a wrong class shows in its first row; the rest is seen as it is drawn

    def __len__(self) -> int:
        return len(self._inner)

    def __getitem__(self, i: int) -> Row:
        row = self._inner[i]
        if not isinstance(row, dict):
            raise DataError(f"{self.where(i)}: __getitem__ gave a {type(row).__name__}, expected a dict")
        refuse_media(row, (self.config.image_key, self.config.video_key), self.where(i))
        try:
            full = complete_row(
                copy.deepcopy(row),
                prompt_key=self.config.prompt_key,
                reward_fn_key=self.config.reward_fn_key,
                position=i,
            )
        except DataError as exc:
            raise DataError(f"{self.where(i)}: {exc}") from exc
        if self._check and (problem := self._check(full)):
            raise DataError(f"{self.where(i)}: {problem}")
        return full

    def value(self, i: int, key: str) -> Any:
        """The value of row `i` at a dotted path; None where there is none."""
        return lookup(self[i], key)

    def known_rows(self) -> list[Row]:
        """None: rows of a user's class are made as they are drawn."""
        return []

    def where(self, i: int) -> str:
        """How messages name row `i`."""
        return f"dataset {self.name}, row {i} (the first is 0)"

    def _say(self, notice: str) -> None:
        log.info(notice)
        self.notices.append(notice)


class CustomOrder:
    """A user's sampler behind the interface of `Order`."""

    def __init__(self, cls: type, dataset: Any, config: DataConfig):
        self.name = cls.__name__
        if not hasattr(cls, "__len__") or not (hasattr(cls, "index") or hasattr(cls, "__iter__")):
            raise ConfigError(f"data.sampler: {self.name} needs __len__, and either index(position) or __iter__")
        self._sampler = _construct(cls, "data.sampler", (dataset, config), {})
        self._rows = len(dataset)
        self._epoch_length: int = len(self._sampler)
        if self._epoch_length < 1:
            raise ConfigError(f"data.sampler: {self.name} has an epoch of {self._epoch_length} positions")
        self._positional = hasattr(cls, "index")
        self._epochs: dict[int, list[int]] = {}
        if not self._positional and self._iterate(0) != self._iterate(0):
            raise ConfigError(
                f"data.sampler: {self.name} gives another order each time it is iterated, so a run could not be "
                "resumed. Derive the order from a seed and set_epoch(epoch), or define index(position)"
            )

    def __len__(self) -> int:
        return self._epoch_length

    def epoch(self, position: int) -> int:
        """The epoch a position belongs to."""
        return position // self._epoch_length

    def start(self, epoch: int) -> int:
        """The first position of an epoch."""
        return epoch * self._epoch_length

    def index(self, position: int) -> int:
        """The row at a position."""
        if self._positional:
            row = self._sampler.index(position)
        else:
            epoch, offset = divmod(position, self._epoch_length)
            if epoch not in self._epochs:
                self._epochs = {epoch: self._iterate(epoch)}
            row = self._epochs[epoch][offset]
        if not 0 <= int(row) < self._rows:
            raise ConfigError(
                f"data.sampler: {self.name} gives row {row} at position {position}; rows are 0 to {self._rows - 1}"
            )
        return int(row)

    def _iterate(self, epoch: int) -> list[int]:
        if hasattr(self._sampler, "set_epoch"):
            self._sampler.set_epoch(epoch)
        rows = list(itertools.islice(iter(self._sampler), self._epoch_length))
        if len(rows) < self._epoch_length:
            raise ConfigError(
                f"data.sampler: {self.name} has the length {self._epoch_length} but gives {len(rows)} rows per epoch"
            )
        return rows
