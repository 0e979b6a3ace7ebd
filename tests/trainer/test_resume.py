"""Stopping and going on: a resumed run is the run that was never stopped, or says why it cannot be."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from burnish.errors import CheckpointError

GRPO = ["algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=3"]
PPO = ["algorithm.adv_estimator=gae", "critic.optim.lr=1e-3", "algorithm.kl_ctrl.kl_coef=0.01",
       "algorithm.kl_ctrl.type=adaptive", "algorithm.kl_ctrl.horizon=100"]  # fmt: skip
ALGORITHMS = pytest.mark.parametrize("algorithm", [GRPO, PPO], ids=["grpo", "ppo"])


@ALGORITHMS
def test_resume_gives_the_run_that_was_never_stopped(train, metrics_of, algorithm):
    common = [*algorithm, "trainer.save_freq=1", "trainer.total_epochs=2", "data.val_files=null"]
    train(*common, "trainer.default_local_dir=whole")
    train(*common, "trainer.default_local_dir=parts", "trainer.max_actor_ckpt_to_keep=1", "data.shuffle=true",
          "trainer.total_training_steps=6")  # fmt: skip
    assert metrics_of("whole") == metrics_of("parts"), "the number of steps is all that total_epochs says"

    train(*common, "trainer.default_local_dir=stopped")
    for step in (4, 5, 6):
        for name in os.listdir(f"stopped/global_step_{step}"):
            path = Path(f"stopped/global_step_{step}") / name
            path.unlink() if not path.is_dir() else None
    train(*common, "trainer.default_local_dir=stopped")  # the newest whole checkpoint is step 3
    assert metrics_of("whole") == metrics_of("stopped")
    for file in ("actor/model.safetensors", "actor/optimizer.safetensors"):
        one, other = (load_file(f"{run}/global_step_6/{file}") for run in ("whole", "stopped"))
        assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@ALGORITHMS
def test_kill_9_and_resume_is_the_same_run(job, reward, train, metrics_of, algorithm, tmp_path):
    """The certified case: kill the process without warning in the middle of a step, run the same command again."""
    common = [*algorithm, "trainer.save_freq=1", "data.val_files=null", "trainer.total_training_steps=6"]
    train(*common, "trainer.default_local_dir=whole")
    command = [sys.executable, "-m", "burnish.trainer.main_ppo", *job, *common, "trainer.default_local_dir=killed"]
    process = subprocess.Popen(command, start_new_session=True)
    wait_for(lambda: Path("killed/global_step_3").exists(), process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not Path("killed/global_step_6").exists(), "the run was over before it could be killed"
    subprocess.run(command, check=True)
    assert metrics_of("whole") == metrics_of("killed")
    one, other = (load_file(f"{run}/global_step_6/actor/model.safetensors") for run in ("whole", "killed"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def wait_for(condition, process, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, f"the run ended by itself with {process.returncode}"
        assert time.monotonic() < deadline, "the run did not get there in time"
        time.sleep(0.02)


def test_a_finished_run_does_nothing_more(train, metrics_of):
    train(*GRPO)
    before = metrics_of("run")
    train(*GRPO)
    assert metrics_of("run") == before


def test_a_checkpoint_of_another_model_is_refused(train, tmp_path):
    from burnish.models.tiny import write_tiny_model

    train(*GRPO, "trainer.total_training_steps=1")
    other = write_tiny_model(tmp_path / "other", hidden_size=16)
    with pytest.raises(CheckpointError, match="checkpoint of another model.*trainer.resume_mode=disable"):
        train(*GRPO, f"actor_rollout_ref.model.path={other}")


def test_training_goes_on_from_a_checkpoint_folder(train):
    train(*GRPO, "trainer.total_training_steps=1")
    train(*GRPO, "actor_rollout_ref.model.path=run/global_step_1", "trainer.default_local_dir=stage2")
    assert Path("stage2/global_step_3/model.safetensors").exists()


def test_val_only_on_an_older_checkpoint_forgets_nothing(train, metrics_of):
    train(*GRPO, "trainer.save_freq=1", "trainer.val_before_train=False", "trainer.test_freq=-1")
    before = metrics_of("run")
    train(*GRPO, "trainer.val_only=True", "trainer.resume_from_path=run/global_step_1")
    after = metrics_of("run")
    assert after[: len(before)] == before and [line["step"] for line in after[len(before) :]] == [1]
    assert sorted(p.name for p in Path("run/rollouts").iterdir()) == ["1.jsonl", "2.jsonl", "3.jsonl"]


def test_a_longer_run_goes_on_where_the_shorter_one_ended(train, metrics_of):
    """12 rows in batches of 8: the second epoch follows the short last batch of the first, and no prompt is lost."""
    batch = ["data.train_batch_size=8", "actor_rollout_ref.actor.ppo_mini_batch_size=4", "data.val_files=null"]
    train(*GRPO, *batch, "trainer.total_epochs=1")
    train(*GRPO, *batch, "trainer.total_epochs=2")
    dumps = sorted(Path("run/rollouts").iterdir(), key=lambda path: int(path.stem))
    seen = [json.loads(line)["uid"] for path in dumps for line in path.read_text().splitlines()]
    assert sorted(seen) == sorted([*range(24)] * 3)


def test_resuming_with_other_prompts_is_refused(train):
    train(*GRPO, "data.val_files=null", "trainer.total_training_steps=1")
    more = ["data.val_files=null", "trainer.total_training_steps=2"]
    with pytest.raises(CheckpointError, match=r"saved with data\.train_batch_size=4, and this run has 2"):
        train(*GRPO, *more, "data.train_batch_size=2")
    with pytest.raises(CheckpointError, match=r"saved with data\.seed=1, and this run has 9.*resume_mode=disable"):
        train(*GRPO, *more, "data.seed=9")


def test_damaged_checkpoints_alone_do_not_start_the_run_over(train):
    train(*GRPO, "data.val_files=null", "trainer.total_training_steps=1")
    Path("run/global_step_1/actor/model.safetensors").write_bytes(b"cut")
    with pytest.raises(CheckpointError, match="has checkpoints, but none is whole.*trainer.resume_mode=disable"):
        train(*GRPO, "data.val_files=null", "trainer.total_training_steps=2")


def test_a_finished_run_says_that_nothing_is_trained(train, caplog):
    train(*GRPO, "trainer.total_training_steps=1", "data.val_files=null")
    train(*GRPO, "trainer.total_training_steps=1", "data.val_files=null")
    assert "nothing is trained. Raise trainer.total_epochs" in caplog.text


def test_keys_that_changed_since_the_checkpoint_are_named(train, caplog):
    train(*GRPO, "trainer.total_training_steps=1", "data.val_files=null")
    train(*GRPO, "trainer.total_training_steps=2", "data.val_files=null", "actor_rollout_ref.actor.optim.lr=1e-4")
    assert "changed since that checkpoint: actor_rollout_ref.actor.optim.lr: 0.001 → 0.0001" in caplog.text
    assert "data.train_batch_size:" not in caplog.text


def test_a_checkpoint_without_a_critic_does_not_resume_as_ppo(train):
    train(*GRPO, "trainer.total_training_steps=1", "data.val_files=null")
    with pytest.raises(CheckpointError, match="has no critic.*resume_mode=disable actor_rollout_ref.model.path="):
        train(*PPO, "trainer.total_training_steps=2", "data.val_files=null")


def test_files_of_a_checkpoint_follow_the_umask(train):
    train(*GRPO, "trainer.total_training_steps=1", "data.val_files=null")
    modes = {path.name: path.stat().st_mode & 0o777 for path in Path("run/global_step_1/actor").iterdir()}
    umask = os.umask(0)
    os.umask(umask)
    assert set(modes.values()) == {0o666 & ~umask}, modes


def test_stopping_names_the_newest_checkpoint(job, reward):
    command = [sys.executable, "-m", "burnish.trainer.main_ppo", *job, *GRPO, "trainer.save_freq=1",
               "trainer.total_training_steps=500", "data.val_files=null"]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: Path("run/global_step_2").exists(), process)
    process.terminate()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopped in step" in said and "the newest checkpoint is run/global_step_" in said, said
