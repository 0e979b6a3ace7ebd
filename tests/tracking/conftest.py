"""A trainer configuration with the fields a tracker reads."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest


@dataclass
class TrainerFacts:
    default_local_dir: str
    logger: list[str] = field(default_factory=lambda: ["jsonl"])
    project_name: str = "project"
    experiment_name: str = "experiment"
    rollout_data_dir: str | None = None
    validation_data_dir: str | None = None


@pytest.fixture
def trainer(tmp_path: Path) -> TrainerFacts:
    return TrainerFacts(str(tmp_path / "run"))
