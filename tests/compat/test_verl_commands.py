"""`python -m verl.trainer.…` runs burnish's commands, with users' files that import from verl."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from burnish.cli.quickstart import NANO
from burnish.data.files import write_parquet
from burnish.data.tasks import arithmetic

USER_FILES = Path(__file__).parent / "user_files"


def run(module: str, folder: Path, *overrides: str, **environment: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", module, *overrides]
    return subprocess.run(command, cwd=folder, env=os.environ | environment, capture_output=True, text=True)


def test_main_ppo_trains_with_a_users_reward_file_estimator_loss_and_manager(tmp_path):
    write_parquet(arithmetic.rows("train", 8, seed=0), tmp_path / "train.parquet")
    done = run(
        "verl.trainer.main_ppo",
        tmp_path,
        f"actor_rollout_ref.model.external_lib=[{USER_FILES}/algorithms.py,{USER_FILES}/managers.py]",
        "algorithm.adv_estimator=loop_grpo",
        "actor_rollout_ref.actor.policy_loss.loss_mode=older_ppo",
        "reward_model.reward_manager=own_loop",
        "data.train_files=train.parquet",
        "data.train_batch_size=4",
        "data.max_prompt_length=32",
        "data.max_response_length=64",
        f"actor_rollout_ref.model.path={NANO}",
        "actor_rollout_ref.rollout.n=4",
        f"custom_reward_function.path={USER_FILES / 'reward.py'}",
        "reward.num_workers=1",
        "trainer.device=cpu",
        "trainer.logger=jsonl",
        "trainer.total_training_steps=1",
        "trainer.default_local_dir=run",
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("answers `import verl`") == 1
    [step] = map(json.loads, (tmp_path / "run/metrics.jsonl").read_text().splitlines())
    assert step["critic/score/max"] > 0


@pytest.mark.parametrize(
    "module, command",
    [
        ("main_generation", "generate"),
        ("main_eval", "eval"),
        ("fsdp_sft_trainer", "sft"),
        ("sft_trainer", "sft"),
    ],
)
def test_programs_are_those_of_burnish(module, command, tmp_path):
    done = run(f"verl.trainer.{module}", tmp_path, "--help")
    assert done.returncode == 0 and done.stdout.startswith(f"burnish {command}: ")


def test_sft_under_torchrun_trains_in_the_first_process_only(tmp_path):
    first, second = (
        run("verl.trainer.fsdp_sft_trainer", tmp_path, "--help", WORLD_SIZE="2", RANK=rank) for rank in "01"
    )
    assert "trains in one process; the other 1 of torchrun end" in first.stderr and first.stdout
    assert second.returncode == 0 and not second.stdout
