"""A run leaves the recipe that makes it again: `--config-path=RUN --config-name=recipe`, alone or with other keys."""

import json

import pytest
import yaml

from burnish.cli.main import main
from burnish.data.files import write_parquet
from burnish.data.tasks import arithmetic


def metrics(folder, *names):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [[line[name] for name in names] for line in lines]


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_parquet(arithmetic.rows("train", 8, seed=0), "train.parquet")
    (tmp_path / "reward.py").write_text("def compute_score(solution_str):\n    return float(len(solution_str) % 3)\n")
    turns = [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}]
    write_parquet([{"messages": turns}] * 4, "talk.parquet")
    return tmp_path


def test_ppo(place, tiny_model):
    keys = [
        "algorithm.adv_estimator=grpo", "data.train_files=train.parquet", f"actor_rollout_ref.model.path={tiny_model}",
        "data.train_batch_size=4", "data.max_prompt_length=32", "data.max_response_length=8", "trainer.device=cpu",
        "custom_reward_function.path=reward.py", "trainer.logger=jsonl", "trainer.save_freq=-1",
        "trainer.total_training_steps=1", "actor_rollout_ref.actor.optim.lr=1e-3",
    ]  # fmt: skip
    assert main(["ppo", *keys]) == 0
    first = place / "outputs/burnish/run"
    recipe = yaml.safe_load((first / "recipe.yaml").read_text())
    assert recipe["data"] == {
        "train_files": ["train.parquet"], "train_batch_size": 4, "max_prompt_length": 32, "max_response_length": 8,
    }  # fmt: skip
    assert yaml.safe_load((first / "config.yaml").read_text())["actor_rollout_ref"]["rollout"]["n"] == 4

    run_again = ["ppo", f"--config-path={first}", "--config-name=recipe"]
    assert main([*run_again, "trainer.experiment_name=again"]) == 0
    names = ("critic/score/mean", "actor/pg_loss", "actor/grad_norm")
    assert metrics(place / "outputs/burnish/again", *names) == metrics(first, *names)

    assert main([*run_again, "trainer.experiment_name=other", "actor_rollout_ref.rollout.n=2",
                 "data.max_prompt_length=40", "data.train_batch_size=2"]) == 0  # fmt: skip
    assert len((place / "outputs/burnish/other/rollouts/1.jsonl").read_text().splitlines()) == 4


def test_sft(place, tiny_model):
    keys = [
        "data.train_files=talk.parquet", f"model.path={tiny_model}", "data.train_batch_size=2", "data.max_length=64",
        "trainer.device=cpu", "trainer.logger=jsonl", "trainer.total_training_steps=1",
    ]  # fmt: skip
    assert main(["sft", *keys, "trainer.default_local_dir=first"]) == 0
    again = ["--config-path=first", "--config-name=recipe", "trainer.default_local_dir=again"]
    assert main(["sft", *again, "data.max_length=128"]) == 0
    assert metrics(place / "again", "train/loss") == metrics(place / "first", "train/loss")
    assert yaml.safe_load((place / "again/recipe.yaml").read_text())["data"]["max_length"] == 128
