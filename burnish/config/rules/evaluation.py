"""`finalise_eval`: the last step from keys to a configuration that `burnish eval` can run."""

import os
from pathlib import Path

from burnish.config.evaluation import EvalConfig
from burnish.config.rules import run
from burnish.errors import ConfigError

EXAMPLES = {
    "data.path": "out.parquet",
    "data.prompt_key": "prompt",
    "data.response_key": "responses",
    "data.data_source_key": "data_source",
    "data.reward_model_key": "reward_model",
}


def finalise_eval(config: EvalConfig, explicit: frozenset[str]) -> list[str]:
    """Fill where the figures go, refuse what cannot work; returns notices."""
    data = config.data
    run.require(config, EXAMPLES)
    run.expand_paths(config)
    if not data.output_path:
        data.output_path = str(beside(Path(data.path)))
    if os.path.realpath(data.output_path) == os.path.realpath(data.path):
        raise ConfigError(
            f"data.output_path={data.output_path} is the file of responses itself, which the figures would replace; "
            f"name another, for example data.output_path={beside(Path(data.path))}"
        )
    return []


def beside(path: Path) -> Path:
    """`out.parquet` and `out.jsonl.gz` → `out.eval.json` in the same folder."""
    return path.with_name(f"{Path(path.name.removesuffix('.gz')).stem}.eval.json")
