"""A small RL job: a random model, a few arithmetic rows, and `train(*overrides)` that runs it in this process."""

import json
from contextlib import nullcontext
from pathlib import Path

import pytest

from burnish.config.load import load_ppo
from burnish.data.files import write_parquet
from burnish.data.tasks import arithmetic
from burnish.trainer import setup

# What says how long something took differs between two runs that are otherwise the same.
CLOCKS = ("timing_s/", "timing_per_token_ms/", "perf/")


@pytest.fixture(autouse=True)
def _no_collection(monkeypatch):
    """A run collects garbage once before it trains, which takes long in a process that has run thousands of tests."""
    monkeypatch.setattr("burnish.trainer.ppo.older_objects_kept", nullcontext)


@pytest.fixture
def job(tmp_path, tiny_model, monkeypatch):
    """The overrides of a job of a few seconds, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    write_parquet(arithmetic.rows("train", 12, seed=0), "train.parquet")
    write_parquet(arithmetic.rows("test", 4, seed=0), "test.parquet")
    return [
        "data.train_files=train.parquet",
        "data.val_files=test.parquet",
        "data.train_batch_size=4",
        "data.max_prompt_length=32",
        "data.max_response_length=8",
        f"actor_rollout_ref.model.path={tiny_model}",
        "actor_rollout_ref.actor.ppo_mini_batch_size=2",
        "actor_rollout_ref.actor.optim.lr=1e-3",
        "custom_reward_function.path=reward.py",
        "trainer.device=cpu",
        "trainer.default_local_dir=run",
        "trainer.logger=jsonl",
    ]


@pytest.fixture
def reward(tmp_path):
    """Write the job's reward function; by default one that a random model sometimes earns."""

    def write(body: str = "return float(len(set(solution_str)) % 3)") -> None:
        source = f"def compute_score(solution_str, ground_truth, extra_info):\n    {body}\n"
        (tmp_path / "reward.py").write_text(source)

    write()
    return write


@pytest.fixture
def train(job, reward):
    """Run the job with further overrides; returns the last metrics."""

    def run(*overrides: str) -> dict[str, float]:
        trainer = build(*job, *overrides)
        trainer.init_workers()
        return trainer.fit()

    return run


@pytest.fixture
def build_trainer(job, reward):
    """The trainer of the job with further overrides, its workers made."""

    def make(*overrides: str):
        trainer = build(*job, *overrides)
        trainer.init_workers()
        return trainer

    return make


def build(*overrides: str):
    loaded = load_ppo(list(overrides))
    setup.prepare(loaded)
    return setup.build(loaded.config)


@pytest.fixture
def metrics_of():
    """The metrics of every step in a run folder, without what depends on the clock."""

    def read(folder: str | Path) -> list[dict[str, float]]:
        lines = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
        return [{k: v for k, v in line.items() if not k.startswith(CLOCKS)} for line in lines]

    return read
