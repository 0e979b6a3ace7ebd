"""The configuration of a trainer, as a tracker reads it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from burnish.config.trainer import TrainerConfig
from burnish.tracking import RunFolder


@pytest.fixture
def trainer(tmp_path: Path) -> TrainerConfig:
    names = {"project_name": "project", "experiment_name": "experiment"}
    return TrainerConfig(default_local_dir=str(tmp_path / "run"), logger=["jsonl"], **names)


@pytest.fixture
def folder(trainer: TrainerConfig) -> Iterator[RunFolder]:
    with RunFolder.of(trainer) as folder:
        yield folder
