"""Rows and files: settings that only make sense together, and output files that are not the ones that are read."""

import os
from pathlib import Path

from burnish.config.evaluation import EvalConfig
from burnish.config.generation import GenerationConfig
from burnish.config.key import read
from burnish.config.ppo import PPOConfig
from burnish.config.rules.given import Given
from burnish.errors import ConfigError


def rows(config: PPOConfig, given: Given) -> None:
    """Weights for each file, curricula and classes that are whole."""
    data = config.data
    data.val_files = data.val_files or []
    if data.dataset_weights is not None:
        weights, files = data.dataset_weights, len(data.train_files)
        if len(weights) != files:
            raise ConfigError(f"data.dataset_weights has {len(weights)} weights for {files} files; give one for each")
        if min(weights) < 0 or sum(weights) <= 0:
            raise ConfigError(f"data.dataset_weights={weights}: weights are at least 0 and not all 0")
    if not data.augment.enable:
        for name in sorted({*given.below("data.augment")} - {"data.augment.enable"}):
            given.say(f"{name} has no effect, because data.augment.enable is false")
    for pair in (("curriculum.key", "curriculum.stages"), ("custom_cls.path", "custom_cls.name"),
                 ("sampler.class_path", "sampler.class_name")):  # fmt: skip
        there = [name for name in pair if read(data, name) is not None]
        if len(there) == 1:
            missing = pair[there[0] == pair[0]]
            raise ConfigError(f"data.{there[0]} is set without data.{missing}; give both")


def output_of_generation(config: GenerationConfig) -> None:
    """Responses go to a separate parquet file."""
    data = config.data
    if not data.output_path.endswith(".parquet"):
        raise ConfigError(f"data.output_path={data.output_path}: the output is a parquet file; end it with .parquet")
    if os.path.realpath(data.output_path) == os.path.realpath(data.path):
        raise ConfigError(
            f"data.output_path={data.output_path} is the file of data.path, which is only read; name another file"
        )


def outputs_of_evaluation(config: EvalConfig) -> None:
    """Metrics go next to the responses where nothing else is set: `out.jsonl.gz` → `out.eval.json`."""
    data, path = config.data, Path(config.data.path)
    own = str(path.with_name(f"{Path(path.name.removesuffix('.gz')).stem}.eval.json"))
    data.output_path = data.output_path or own
    if os.path.realpath(data.output_path) == os.path.realpath(data.path):
        raise ConfigError(
            f"data.output_path={data.output_path} is the file of responses itself, which the metrics would replace; "
            f"name another, for example data.output_path={own}"
        )
    if data.scored_path and os.path.realpath(data.scored_path) == os.path.realpath(data.path):
        raise ConfigError(f"data.scored_path={data.scored_path} is the file of responses itself; name another")
    if data.scored_path and not data.scored_path.endswith(".parquet"):
        raise ConfigError(f"data.scored_path={data.scored_path}: it becomes a parquet file; name it so, ….parquet")
