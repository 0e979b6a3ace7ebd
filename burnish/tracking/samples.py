"""The samples of a run, as `RunFolder` writes them: one file per step, in `rollouts/` and `validation/`."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from burnish.errors import DataError
from burnish.tracking.jsonl import read_lines
from burnish.tracking.run_folder import read_config


def samples_folder(run: Path, validation: bool = False) -> Path:
    """Where they are: in the run folder, or where the run's own keys put them."""
    name, own = ("validation", "validation_data_dir") if validation else ("rollouts", "rollout_data_dir")
    trainer = read_config(run).get("trainer")
    elsewhere = trainer.get(own) if isinstance(trainer, dict) else None
    return run / name if (run / name).is_dir() or not elsewhere else Path(str(elsewhere)).expanduser()


def sample_steps(folder: Path) -> list[int]:
    return sorted(int(file.stem) for file in folder.glob("*.jsonl") if file.stem.isdecimal())


def read_samples(folder: Path, step: int | None = None) -> list[dict[str, Any]]:
    """The samples of a step, by default the newest, each with its `step`."""
    steps = sample_steps(folder)
    wanted = steps[-1] if step is None and steps else step
    if wanted is None or wanted not in steps:
        there = f"there are {steps[0]} to {steps[-1]}" if steps else "there are none (trainer.rollout_dump_freq)"
        raise DataError(f"no samples of {'any step' if wanted is None else f'step {wanted}'} in {folder}; {there}")
    return [{"step": wanted, **row} for row in read_lines(folder / f"{wanted}.jsonl")]


def with_prompt(folder: Path, text: str, step: int | None) -> Iterator[dict[str, Any]]:
    """Samples whose prompt has a text: of one step, or of all, the newest first."""
    for one in [step] if step is not None else sample_steps(folder)[::-1]:
        yield from (row for row in read_samples(folder, one) if text.lower() in str(row.get("prompt")).lower())


def by_score(rows: list[dict[str, Any]], *, best: bool) -> list[dict[str, Any]]:
    """The worst or the best first; samples without a score come last."""

    def rank(row: dict[str, Any]) -> float:
        score = row.get("score")
        if not isinstance(score, int | float) or math.isnan(score):
            return math.inf
        return -score if best else score

    return sorted(rows, key=rank)
