"""The prompts of a run: files to checked rows, held in memory, and rows to batches.

All rows are checked before a model is loaded; what was left out or renamed is logged, and kept in `notices`.
"""

import copy
import inspect
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from burnish.config.data import DataConfig
from burnish.data.chat import ChatRenderer, SpecialTexts, to_messages, without_nulls
from burnish.data.files import Row, at, columns, lookup, no_column, read_first_rows
from burnish.errors import ConfigError, DataError, NotAvailable
from burnish.user_code import load_class

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from burnish.protocol import DataProto

log = logging.getLogger(__name__)

Check = Callable[[Row], str | None]  # what is wrong with a completed row, or None

# What a run itself adds to a batch, stage by stage, and the arguments of an agent loop's `run` besides the row.
_ADDED = {
    "the prompt stream": "uid sample greedy augmented",
    "rollout": "prompts responses input_ids attention_mask position_ids response_mask rollout_log_probs num_turns "
    "num_tool_calls truncated retrieved turn_scores tool_score interaction_score added_turn_rewards finish_reason "
    "policy_version agent_metrics new_prompts",
    "reward": "score_result rm_scores token_level_scores reward_info reward_baselines outcomes process_ref_log_prob "
    "process_rewards",
    "log-probs": "old_log_probs entropys sum_pi_squared ref_log_prob values",
    "credit": "token_level_rewards advantages returns rollout_is_weights loss_mask chosen",
    "agent loops": "self sampling_params messages",
}
# A file's column of such a name is kept as `row_<name>`.
TAKEN = frozenset(name for names in _ADDED.values() for name in names.split())

DEFAULT_REWARD = {"style": "rule", "ground_truth": None}
NO_SOURCE = "unknown"


def find_prompt_key(row: Row, prompt_key: str) -> str | None:
    """The column that holds the prompt: the configured one, else `prompts`, else messages made by a custom dataset."""
    return next((name for name in (prompt_key, "prompts", "raw_prompt") if row.get(name) is not None), None)


def complete_row(row: Row, *, prompt_key: str, reward_fn_key: str, position: int) -> Row:
    """The row with every standard field in place. `position` is its index where the row does not bring one."""
    key = find_prompt_key(row, prompt_key)
    if key is None:
        raise DataError(f"field '{prompt_key}' is missing or null (the row has: {', '.join(row) or 'nothing':.200})")
    try:
        messages = to_messages(row[key])
    except DataError as exc:
        raise DataError(f"field '{key}': {exc}") from exc
    source = lookup(row, reward_fn_key)
    if source is None and reward_fn_key != "data_source":
        raise DataError(f"field '{reward_fn_key}' (data.reward_fn_key) is missing or null")
    for name, value in ((reward_fn_key, source), ("agent_name", row.get("agent_name"))):
        if value is not None and not isinstance(value, str):
            raise DataError(f"field '{name}' is a {type(value).__name__} ({value!r:.60}), expected text")
    extra_info = _object(row, "extra_info")
    others = {kept_name(name): value for name, value in row.items() if name != key}
    return others | {
        "raw_prompt": messages,
        "data_source": NO_SOURCE if source is None else source,
        "reward_model": DEFAULT_REWARD | _object(row, "reward_model"),
        "extra_info": extra_info,
        "ability": row.get("ability"),
        "agent_name": row.get("agent_name"),
        "interaction_kwargs": without_nulls(_object(row, "interaction_kwargs", extra_info)),
        "tools_kwargs": without_nulls(_object(row, "tools_kwargs", extra_info)),
        "index": next((i for i in (extra_info.get("index"), row.get("index")) if i is not None), position),
    }


def checked_row(row: Row, config: DataConfig, where: str, position: int, check: Check | None) -> Row:
    refuse_media(row, (config.image_key, config.video_key), where)
    keys = {"prompt_key": config.prompt_key, "reward_fn_key": config.reward_fn_key}
    try:
        full = complete_row(row, position=position, **keys)
    except DataError as exc:
        raise DataError(f"{where}: {exc}") from exc
    if check and (problem := check(full)):
        raise DataError(f"{where}: {problem}")
    return full


def kept_name(column: str) -> str:
    return f"row_{column}" if column in TAKEN else column


def refuse_media(row: Row, keys: tuple[str, ...], where: str) -> None:
    for key in keys:
        value = row.get(key)
        if value is not None and (not hasattr(value, "__len__") or len(value) > 0):
            raise NotAvailable(f"{key} in prompts ({where})", f"Drop the column '{key}' to train on the text alone.")


def _object(row: Row, name: str, fallback: Row | None = None) -> Row:
    """A field that holds named values; {} where it is absent. Some files keep it inside `extra_info`."""
    value: Any = next((found for fields in (row, fallback or {}) if (found := fields.get(name)) is not None), {})
    if not isinstance(value, dict):
        raise DataError(f"field '{name}' is a {type(value).__name__} ({value!r:.60}), expected an object")
    return value


class RLDataset:
    """Rows of one or more files; those of a file are adjacent. Without a `tokenizer` the length of prompts is not
    checked. Of `max_samples` rows (-1: all) files give in proportion to their sizes, each its first ones."""

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
        self._rows: list[Row] = []
        self._places: list[tuple[int, int]] = []  # of each row: number of its file, and its number in there
        if not self.files:
            raise DataError("no data files are given; set data.train_files")
        for number, table in enumerate(read_first_rows(self.files, max_samples)):
            if table:
                self._check_columns(self.files[number], table)
            for i, row in enumerate(table):
                self._rows.append(checked_row(row, config, at(self.files[number], i), len(self._rows), check))
                self._places.append((number, i))
        if not self._rows:
            raise DataError(f"no rows are left of {', '.join(self.files)} with a limit of {max_samples} rows")
        if tokenizer is not None:
            self._fit_prompts(tokenizer)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, i: int) -> Row:
        return copy.deepcopy(self._rows[i])

    def value(self, i: int, key: str) -> Any:
        return lookup(self._rows[i], key)

    def known_rows(self) -> list[Row]:
        return self._rows

    def where(self, i: int) -> str:
        number, row = self._places[i]
        return at(self.files[number], row)

    @property
    def source_sizes(self) -> list[int]:
        counts = Counter(number for number, _ in self._places)
        return [counts[number] for number in range(len(self.files))]

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
        renderer = ChatRenderer(
            tokenizer, self.config.apply_chat_template_kwargs, escape=self.config.escape_special_tokens
        )
        special = SpecialTexts(renderer)
        for i, row in enumerate(self._rows):
            special.add(row["raw_prompt"], partial(self.where, i))
        special.warn()
        if not self.config.filter_overlong_prompts and self.config.truncation != "error":
            return
        limit = self.config.start_limit
        texts = []
        for i, row in enumerate(self._rows):
            try:
                texts.append(renderer.text(row["raw_prompt"]))
            except DataError as exc:
                raise DataError(f"{self.where(i)}: {exc}") from exc
        lengths = renderer.token_counts(texts, limit)
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
            self._rows, self._places = [self._rows[i] for i in kept], [self._places[i] for i in kept]

    def _say(self, notice: str) -> None:
        log.info(notice)
        self.notices.append(notice)


class CustomDataset:
    def __init__(
        self, cls: type, files: Sequence[str], tokenizer: Any, config: DataConfig, max_samples: int, check: Check | None
    ):
        self.config, self.name = config, cls.__name__
        for method in ("__len__", "__getitem__"):
            if not hasattr(cls, method):
                needs = "a dataset needs __len__ and __getitem__"
                raise ConfigError(f"data.custom_cls: {self.name} has no {method}; {needs}")
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
            said = "data.filter_overlong_prompts is left to the custom dataset class; burnish does not filter its rows"
            self.notices.append(said)
            log.info(said)
        self[0]  # a wrong class shows in its first row; the rest is seen as it is drawn

    def __len__(self) -> int:
        return len(self._inner)

    def __getitem__(self, i: int) -> Row:
        row = self._inner[i]
        if not isinstance(row, dict):
            raise DataError(f"{self.where(i)}: __getitem__ gave a {type(row).__name__}, expected a dict")
        return checked_row(copy.deepcopy(row), self.config, self.where(i), i, self._check)

    def value(self, i: int, key: str) -> Any:
        return lookup(self[i], key)

    def known_rows(self) -> list[Row]:
        """None: rows of a user's class are made as they are drawn."""
        return []

    def where(self, i: int) -> str:
        return at(f"dataset {self.name}", i)


Dataset = RLDataset | CustomDataset


def train_dataset(
    config: DataConfig, tokenizer: "PreTrainedTokenizerBase | None", check: Check | None = None
) -> Dataset:
    return _make(config.train_files or [], tokenizer, config, config.train_max_samples, check)


def val_dataset(
    config: DataConfig, tokenizer: "PreTrainedTokenizerBase | None", check: Check | None = None
) -> Dataset | None:
    return _make(config.val_files, tokenizer, config, config.val_max_samples, check) if config.val_files else None


def _make(files: Sequence[str], tokenizer: Any, config: DataConfig, max_samples: int, check: Check | None) -> Dataset:
    chosen = config.custom_cls
    if not chosen.path:
        return RLDataset(files, tokenizer, config, max_samples=max_samples, check=check)
    cls = load_class(chosen.path, chosen.name, "data.custom_cls.path", "data.custom_cls.name")
    return CustomDataset(cls, files, tokenizer, config, max_samples, check)


def construct(cls: type, key: str, arguments: tuple, keywords: dict[str, Any]) -> Any:
    """Only a signature that does not fit is the protocol's business; what a constructor raises rises as it is."""
    signature = inspect.signature(cls)
    try:
        signature.bind(*arguments, **keywords)
    except TypeError as exc:
        called = f"{cls.__name__}{signature} cannot be called with {len(arguments)} arguments"
        raise ConfigError(f"{key}: {called}: {exc}") from exc
    return cls(*arguments, **keywords)


def with_same_fields(rows: Sequence[Row]) -> list[Row]:
    names = columns(rows)
    return [{name: row.get(name) for name in names} for row in rows]


def collate(rows: Sequence[Row]) -> "DataProto":
    """The rows as a batch of object arrays, without tensors; a field that only some rows have is None in the others."""
    from burnish.protocol import DataProto

    if not rows:
        raise ValueError("collate needs at least one row")
    return DataProto.from_dict(non_tensors={name: [row.get(name) for row in rows] for name in columns(rows)})
