"""Evaluation: a file for the figures that is not the one that is read."""

import os
from pathlib import Path

from burnish.config.evaluation import EvalConfig
from burnish.config.rules.given import Given
from burnish.errors import ConfigError


def files(config: EvalConfig, given: Given) -> None:
    """The figures go beside the responses where nothing else is said."""
    data = config.data
    if not data.output_path:
        data.output_path = str(beside(Path(data.path)))
    if os.path.realpath(data.output_path) == os.path.realpath(data.path):
        raise ConfigError(
            f"data.output_path={data.output_path} is the file of responses itself, which the figures would replace; "
            f"name another, for example data.output_path={beside(Path(data.path))}"
        )
    if data.scored_path and os.path.realpath(data.scored_path) == os.path.realpath(data.path):
        raise ConfigError(f"data.scored_path={data.scored_path} is the file of responses itself; name another")
    if data.scored_path and not data.scored_path.endswith(".parquet"):
        raise ConfigError(f"data.scored_path={data.scored_path}: it becomes a parquet file; name it so, ….parquet")


def beside(path: Path) -> Path:
    """`out.parquet` and `out.jsonl.gz` → `out.eval.json` in the same folder."""
    return path.with_name(f"{Path(path.name.removesuffix('.gz')).stem}.eval.json")
