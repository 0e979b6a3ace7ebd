"""Configuration against the world: the data files and the model it names.

The facts come in from outside (`data.files.describe`, `models.facts.read_model_facts`), so that nothing here opens a
file or imports what does.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from burnish.config.ppo import PPOConfig
from burnish.config.sft import SFTConfig
from burnish.errors import ConfigError, DataError


class FileFacts(Protocol):
    """Row count and columns of a data file."""

    @property
    def rows(self) -> int: ...
    @property
    def columns(self) -> Sequence[str]: ...


class ContextFacts(Protocol):
    """How long a model's sequences may be; None where its folder does not say."""

    @property
    def context(self) -> int | None: ...


def check_files(config: PPOConfig | SFTConfig, describe: Callable[[str], FileFacts]) -> int:
    """The files exist, have rows and the columns that are read; returns the number of training rows used.

    `describe` raises DataError for a file that is missing or unreadable.
    """
    data = config.data
    total = sum(_check_file(config, "data.train_files", file, describe) for file in data.train_files)
    for file in data.val_files or []:
        _check_file(config, "data.val_files", file, describe)
    return total if data.train_max_samples < 0 else min(total, data.train_max_samples)


def _check_file(config: PPOConfig | SFTConfig, key: str, file: str, describe: Callable[[str], FileFacts]) -> int:
    try:
        facts = describe(file)
    except DataError as error:
        raise DataError(f"{key}: {error}") from error
    if not facts.rows:
        raise DataError(f"{key}: {file}: the file has no rows")
    if isinstance(config, SFTConfig):
        data = config.data
        if data.prompt_key is None or data.response_key is None:
            _check_column(file, facts, data.messages_key, "data.messages_key")
        else:
            _check_column(file, facts, data.prompt_key, "data.prompt_key")
            _check_column(file, facts, data.response_key, "data.response_key")
    elif config.data.custom_cls.path is None and "prompts" not in facts.columns:
        _check_column(file, facts, config.data.prompt_key, "data.prompt_key")
    return facts.rows


def _check_column(file: str, facts: FileFacts, column: str, key: str) -> None:
    """A dotted name is a field inside a column."""
    if column not in facts.columns and column.partition(".")[0] not in facts.columns:
        raise DataError(
            f"{file}: no column {column!r} ({key}); its columns are {', '.join(facts.columns)}. "
            f"Name the right one in {key}"
        )


def check_model(config: PPOConfig, key: str, facts: ContextFacts) -> None:
    """Prompt and response fit the context of a model of the run (`PPOConfig.models`)."""
    data = config.data
    longest = data.max_prompt_length + data.max_response_length
    if facts.context is not None and longest > facts.context:
        raise ConfigError(
            f"data.max_prompt_length={data.max_prompt_length} + data.max_response_length={data.max_response_length} = "
            f"{longest} tokens, but {key}.path={config.models[key].path} has a context of {facts.context}; lower "
            "one of them"
        )
