"""Configuration against the data files and the model it names. The facts come in from outside (`data.files.describe`,
`models.facts.read_model_facts`): nothing here opens a file."""

from collections.abc import Callable, Sequence
from typing import Protocol

from burnish.config.passes import ModelFacts
from burnish.config.placement import ulysses_of
from burnish.config.ppo import ACTOR_MODEL, REWARD_MODEL, PPOConfig
from burnish.config.supervised import SupervisedConfig
from burnish.errors import ConfigError, DataError


class FileColumns(Protocol):
    """Row count and columns of a data file."""

    @property
    def rows(self) -> int: ...
    @property
    def columns(self) -> Sequence[str]: ...


def check_files(config: PPOConfig | SupervisedConfig, describe: Callable[[str], FileColumns]) -> int:
    """The files exist, have rows and the columns that are read; returns the number of training rows used. `describe`
    raises DataError for a file that is missing or unreadable."""
    data = config.data
    total = sum(_check_file(config, "data.train_files", file, describe) for file in data.train_files)
    for file in data.val_files or []:
        _check_file(config, "data.val_files", file, describe)
    return total if data.train_max_samples < 0 else min(total, data.train_max_samples)


def _check_file(
    config: PPOConfig | SupervisedConfig, key: str, file: str, describe: Callable[[str], FileColumns]
) -> int:
    try:
        facts = describe(file)
    except DataError as error:
        raise DataError(f"{key}: {error}") from error
    if not facts.rows:
        raise DataError(f"{key}: {file}: the file has no rows")
    if isinstance(config, SupervisedConfig):
        for name, column in config.columns.items():
            _check_column(file, facts, column, name)
    elif config.data.custom_cls.path is None and "prompts" not in facts.columns:
        _check_column(file, facts, config.data.prompt_key, "data.prompt_key")
    return facts.rows


def _check_column(file: str, facts: FileColumns, column: str, key: str) -> None:
    """A dotted name is a field inside a column."""
    if column not in facts.columns and column.partition(".")[0] not in facts.columns:
        there = ", ".join(facts.columns)
        raise DataError(f"{file}: no column {column!r} ({key}); its columns are {there}. Name the right one in {key}")


def check_model(config: PPOConfig, key: str, facts: ModelFacts) -> list[str]:
    """Prompt and response fit the context of a model of the run (`PPOConfig.models`). A reward model may read less,
    because a conversation that is too long for it loses its start: returns a notice."""
    data, path, context = config.data, config.models[key].path, facts.context
    longest = data.max_prompt_length + data.max_response_length
    if key != REWARD_MODEL:
        if context is not None and longest > context:
            raise ConfigError(
                f"data.max_prompt_length={data.max_prompt_length} + data.max_response_length="
                f"{data.max_response_length} = {longest} tokens, but {key}.path={path} has a context of {context}; "
                "lower one of them"
            )
        return []
    given = config.reward_model.max_length
    if given is not None and context is not None and given > context:
        raise ConfigError(
            f"reward_model.max_length={given}: {key}.path={path} has a context of {context}; lower it, or leave it out"
        )
    limit = given or context
    if limit is None or longest <= limit:
        return []
    whose = "reward_model.max_length" if given else f"the context of {key}.path={path}"
    return [f"the reward model reads {limit} tokens ({whose}), of up to {longest}: what is longer loses its start"]


def check_heads(config: PPOConfig, key: str, facts: ModelFacts) -> None:
    """Processes that share the sequences of a model exchange its heads, so each must get as many."""
    size = ulysses_of(config, key)
    if facts.heads % size:
        fitting = [str(other) for other in range(1, facts.heads + 1) if facts.heads % other == 0]
        section = key.removesuffix("model") + ("actor." if key == ACTOR_MODEL else "")
        raise ConfigError(
            f"{section}ulysses_sequence_parallel_size={size}: {key}.path={config.models[key].path} has {facts.heads} "
            f"attention heads, which do not split into {size} equal parts; choose one of {', '.join(fitting)}"
        )
