"""The configuration of a trainer, as a tracker reads it."""

from pathlib import Path

import pytest

from burnish.config.trainer import TrainerConfig


@pytest.fixture
def trainer(tmp_path: Path) -> TrainerConfig:
    names = {"project_name": "project", "experiment_name": "experiment"}
    return TrainerConfig(default_local_dir=str(tmp_path / "run"), logger=["jsonl"], **names)
