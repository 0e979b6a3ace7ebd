"""Stopping and going on: a resumed run is the run that was never stopped, or says why it cannot be."""

import json
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from burnish.config.load import load_ppo
from burnish.data.files import write_parquet
from burnish.data.tasks import arithmetic
from burnish.errors import CheckpointError, ConfigError
from burnish.trainer import setup
from burnish.trainer.checkpoint import CheckpointStore
from burnish.trainer.ppo import PPOTrainer
from burnish.workers.model_worker import ModelFolder
from tests.trainer.conftest import GRPO, PPO, events, rollouts, same_weights, wait_for

STEPS = ["data.val_files=null", "trainer.save_freq=1"]
ONE, TWO = [*STEPS, "trainer.total_training_steps=1"], [*STEPS, "trainer.total_training_steps=2"]
WHOLE = [*STEPS, "trainer.total_epochs=2"]  # 12 rows in batches of 4: six steps
FUNCTIONS = "custom_reward_function.functions"
PARTS = "actor_rollout_ref.actor.checkpoint"
ASYNC, WEIGHTS_ONLY = f"{PARTS}.async_save=True", f"{PARTS}.save_contents=[hf_model]"


@pytest.mark.parametrize(("algorithm", "step"), [(GRPO, 3), (PPO, 4)], ids=["after an epoch", "in the middle of one"])
def test_resume_gives_the_run_that_was_never_stopped(train, begun, metrics_of, algorithm, step):
    begun(*algorithm, *WHOLE)
    shutil.move("run", "whole")
    shutil.copytree("whole", "run", symlinks=True)
    for later in range(step + 1, 7):
        Path(f"run/global_step_{later}/manifest.json").unlink()
    # The newest whole checkpoint is that step; the number of steps is all that total_epochs says.
    train(*algorithm, *STEPS, "trainer.total_training_steps=6", "data.shuffle=true")
    assert metrics_of("whole") == metrics_of("run")
    assert same_weights(6, "whole", "run", "actor/model.safetensors", "actor/optimizer.safetensors")
    assert [event["step"] for event in events("resume")] == [step]


@pytest.mark.parametrize("words", [[*GRPO, *ONE], [*PPO, *ONE, WEIGHTS_ONLY]], ids=["whole", "its weights alone"])
def test_a_finished_run_only_reports_that_it_is_done(train, begun, metrics_of, caplog, words):
    begun(*words)
    before, files = metrics_of("run"), files_in("run/global_step_1")
    train(*words)
    assert metrics_of("run") == before and files_in("run/global_step_1") == files
    assert "nothing is trained. Raise trainer.total_epochs" in caplog.text


def test_val_only_on_an_older_checkpoint_forgets_nothing(train, begun, metrics_of):
    begun(*GRPO, *WHOLE)
    before, samples = metrics_of("run"), sorted(Path("run/rollouts").iterdir())
    train(*GRPO, "trainer.val_only=True", "trainer.resume_from_path=run/global_step_1")
    after = metrics_of("run")
    assert after[: len(before)] == before and [line["step"] for line in after[len(before) :]] == [1]
    assert sorted(Path("run/rollouts").iterdir()) == samples and len(samples) == 6


def test_a_longer_run_resumes_where_the_shorter_one_ended(train):
    """12 rows in batches of 8: the second epoch follows the short last batch of the first, and no prompt is lost."""
    batch = ["data.train_batch_size=8", "actor_rollout_ref.actor.ppo_mini_batch_size=4", "data.val_files=null"]
    train(*GRPO, *batch, "trainer.total_epochs=1")
    train(*GRPO, *batch, "trainer.total_epochs=2")
    seen = [row["uid"] for step in range(1, 5) for row in rollouts(step)]
    assert len(list(Path("run/rollouts").iterdir())) == 4 and sorted(seen) == sorted([*range(24)] * 3)


def test_a_second_stage_is_a_run_of_its_own_and_resumes_as_such(job, train, begun, metrics_of):
    """Other data and another starting model under the same name; the third starts from the second."""
    begun(*GRPO, *ONE)
    first = files_in("run/global_step_1")
    stages = {}
    for number, (start, steps) in enumerate((("run", TWO), ("run-2", ONE)), 2):
        write_parquet(arithmetic.rows("train", 8, seed=number), f"{number}.parquet")
        model = f"actor_rollout_ref.model.path={start}/global_step_1"
        stages[number] = [*GRPO, *steps, f"data.train_files={number}.parquet", model]
        train(*stages[number])
    assert files_in("run/global_step_1") == first and not Path("run/previous-1").exists()
    assert [len(metrics_of(run)) for run in ("run", "run-2", "run-3")] == [1, 2, 1]
    whole = metrics_of("run-2")
    Path("run-2/global_step_2/manifest.json").unlink()  # killed after its first step
    train(*stages[2])
    assert [event["step"] for event in events("resume", "run-2")] == [1] and metrics_of("run-2") == whole
    setup.prepare(loaded := load_ppo([*job, *stages[2]]))
    (notice,) = [notice for notice in loaded.notices if "holds a run on other data.train_files" in notice]
    assert notice.startswith("run holds") and "folder of this run is run-2; trainer.experiment_name names" in notice
    assert loaded.given["trainer.experiment_name"] == "run-2"


def test_a_run_resumes_with_rows_that_were_added(train, begun, metrics_of, caplog):
    begun(*GRPO, *ONE)
    write_parquet(arithmetic.rows("train", 8, seed=7), "more.parquet")
    more = "data.train_files=[train.parquet,more.parquet]"
    train(*GRPO, *TWO, more)
    assert len(metrics_of("run")) == 2 and "rows of data.train_files: 12 → 20, drawn in another order" in caplog.text
    with pytest.raises(CheckpointError, match=r"rows of data\.train_files=20, and this run has 8.*experiment_name="):
        train(*GRPO, *TWO, "data.train_files=more.parquet")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ([*GRPO, "data.train_batch_size=2"], r"saved with data\.train_batch_size=4, and this run has 2"),
        (
            [*GRPO, "data.seed=9"],
            r"saved with data\.seed=1, and this run has 9.*path=run/gl\S+ trainer\.experiment_name=",
        ),
        ([*GRPO, "data.augment.enable=true"], r"saved with data\.augment\.enable=None, and this run has True"),
        (PPO, r"has no critic.*actor_rollout_ref\.model\.path=\S+ trainer\.experiment_name="),
    ],
    ids=["other batches", "another order", "augmentation", "no critic"],
)
def test_resuming_as_another_run_is_refused(train, begun, keys, said):
    begun(*GRPO, *ONE)
    with pytest.raises(CheckpointError, match=said):
        train(*keys, *TWO)


def test_keys_that_changed_since_the_checkpoint_are_named(train, begun, caplog, monkeypatch):
    begun(*GRPO, *ONE)
    monkeypatch.setattr("burnish.config.plan.host_memory", lambda: 1)  # so that activations are recomputed
    train(*GRPO, *TWO, "actor_rollout_ref.actor.optim.lr=1e-4", "critic.ppo_micro_batch_size_per_gpu=1")
    assert "changed since that checkpoint: actor_rollout_ref.actor.optim.lr: 0.001 → 0.0001" in caplog.text
    assert "data.train_batch_size:" not in caplog.text and "checkpointing: " not in caplog.text
    assert "micro_batch_size_per_gpu: " not in caplog.text
    assert "contents of" not in caplog.text


@pytest.mark.parametrize("keys", [[], [f"{FUNCTIONS}.one.path=reward.py", f"{FUNCTIONS}.one.name=compute_score"]])
def test_a_reward_file_that_was_edited_since_the_checkpoint_is_named(train, begun, reward, caplog, keys):
    keys = [*GRPO, *keys, "custom_reward_function.path=null"] if keys else GRPO
    begun(*keys, *ONE)
    reward("return float(len(solution_str) % 2)")
    train(*keys, *TWO)
    assert re.search("changed since that checkpoint: contents of reward.py: [0-9a-f]{12} → [0-9a-f]{12}", caplog.text)


@pytest.mark.parametrize("path", ["run/global_step_1", "run"])
def test_a_run_that_starts_from_scratch_does_not_move_its_inputs(train, begun, path):
    begun(*GRPO, *ONE)
    from_there = [*GRPO, *TWO, "trainer.resume_mode=disable", f"actor_rollout_ref.model.path={path}"]
    with pytest.raises(ConfigError, match=rf"model.path={path} was left by an earlier run in .*experiment_name="):
        train(*from_there)
    assert Path("run/global_step_1").is_dir() and not Path("run/previous-1").exists()
    train(*from_there, "trainer.default_local_dir=other")
    assert Path("other/global_step_2").is_dir()


def test_a_checkpoint_can_be_validated_in_its_own_run_folder(train, begun):
    begun(*GRPO, *ONE)
    rows = ["data.val_files=train.parquet", "actor_rollout_ref.model.path=run/global_step_1"]
    train(*GRPO, *rows, "trainer.val_only=True", "trainer.resume_mode=disable")
    assert Path("run/global_step_1").is_dir() and Path("run/validation").is_dir()


def test_stopping_names_the_newest_checkpoint(job, reward):
    command = [sys.executable, "-m", "burnish.trainer.main_ppo", *job, *GRPO, *STEPS,
               "trainer.total_training_steps=500"]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: Path("run/global_step_1").exists(), process)
    process.terminate()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert re.search(r"stopped in step \d+ of 500; the newest checkpoint is run/global_step_", said), said


def test_checkpoints_written_behind_training_are_the_same(train, begun, metrics_of):
    """Capturing must neither disturb the run nor see anything of the step after."""
    begun(*PPO, *WHOLE)
    last = train(*PPO, *WHOLE, ASYNC, "trainer.max_actor_ckpt_to_keep=2", "trainer.keep_best=False",
                 "trainer.default_local_dir=behind")  # fmt: skip
    assert "timing_s/save_checkpoint" in last
    assert metrics_of("run") == metrics_of("behind")
    for step in (5, 6):
        one, other = (files_in(f"{run}/global_step_{step}") for run in ("run", "behind"))
        states = [json.loads(files.pop("data/trainer.json")) for files in (one, other)]
        for state in states:
            del state["config"]  # which names the run folder, and async_save
        assert states[0] == states[1] and one == other
    kept = sorted(path.name for path in Path("behind").glob("global_step_*"))
    assert kept == ["global_step_5", "global_step_6"]
    assert [event["step"] for event in events("checkpoint", "behind")] == [1, 2, 3, 4, 5, 6]


def files_in(folder):
    """What is in a checkpoint; the manifest follows from the rest."""
    paths = [path for path in Path(folder).rglob("*") if path.is_file() and path.name != "manifest.json"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.mark.parametrize("failing", [1, 2], ids=["the first", "the last"])
def test_a_save_that_fails_behind_training_stops_the_run(train, monkeypatch, failing):
    """Saves are due at steps 3 and 6 of 6: the failure of the first is told before the next one is due."""
    saves, save = [], ModelFolder.save

    def fail(self, folder):
        saves.append(folder)
        if len(saves) == failing:
            raise OSError(28, "No space left on device")
        save(self, folder)

    monkeypatch.setattr(ModelFolder, "save", fail)
    step = {1: 3, 2: 6}[failing]
    keys = [ASYNC, "trainer.save_freq=3", "trainer.total_epochs=2", "data.val_files=null"]
    with pytest.raises(CheckpointError, match=rf"cannot write checkpoint run/global_step_{step}: No space left"):
        train(*GRPO, *keys)
    logged = len(Path("run/metrics.jsonl").read_text().splitlines())
    assert logged in (4, 5) if failing == 1 else logged == 6
    latest = CheckpointStore("run").latest()
    assert (latest and latest.name) == (None if failing == 1 else "global_step_3")


@pytest.mark.parametrize(
    ("error", "of_the_save", "words"),
    [
        (ValueError, None, None),
        (KeyboardInterrupt, None, None),
        (ValueError, OSError(28, "No space left on device"), "checkpoint run/global_step_1: No space left"),
        (ValueError, ZeroDivisionError("a bug"), "a bug"),
    ],
    ids=["error", "interrupt", "full disk", "bug"],
)
def test_a_failing_run_completes_the_running_save(train, monkeypatch, caplog, error, of_the_save, words):
    failed, sync = threading.Event(), CheckpointStore._put_in_place

    def stop(self, batch, metrics):
        if self.step == 2:
            failed.set()
            raise error("of something else")
        return batch

    def slow(self, *places):
        assert failed.wait(60)
        time.sleep(0.05)  # until the run is being closed
        if of_the_save is not None:
            raise of_the_save
        sync(self, *places)

    monkeypatch.setattr(PPOTrainer, "resampled", stop)
    monkeypatch.setattr(CheckpointStore, "_put_in_place", slow)
    with pytest.raises(error, match="of something else"):
        train(*GRPO, *TWO, ASYNC)
    if of_the_save is None:
        assert CheckpointStore("run").latest().name == "global_step_1"
    else:
        assert words in caplog.text


def test_closing_raises_why_a_save_failed_where_nothing_else_did(build_trainer, monkeypatch):
    def fail(folder):
        raise ZeroDivisionError("a bug")

    trainer, closed = build_trainer(*GRPO, *ONE), []
    monkeypatch.setattr(trainer.policy.worker.rollouts.scoring, "close", lambda: closed.append("scoring"))
    trainer.store.save_behind(1, fail)
    with pytest.raises(ZeroDivisionError, match="a bug"):
        trainer.close()
    assert closed == ["scoring"]


def test_a_run_saves_and_reads_the_configured_parts(train, begun, caplog):
    begun(*GRPO, *ONE, f"{PARTS}.save_contents=[model]")
    actor = {path.name for path in Path("run/global_step_1/actor").iterdir()}
    assert "masters.safetensors" in actor and not actor & {"optimizer.safetensors", "rng.safetensors"}
    with pytest.raises(CheckpointError, match=r"no part optimizer.*Set checkpoint\.load_contents=\[model\]"):
        train(*GRPO, *TWO)
    train(*GRPO, *TWO, f"{PARTS}.save_contents=[model]")  # read as it is saved
    assert "the optimiser's moments start from scratch" in caplog.text
    assert Path("run/global_step_2").is_dir()


def test_a_checkpoint_to_be_loaded_only_is_small_and_starts_another_run(train, begun):
    begun(*PPO, *ONE)
    shutil.move("run", "full")
    begun(*PPO, *ONE, WEIGHTS_ONLY)
    files = [Path(run).rglob("actor/*.safetensors") for run in ("run", "full")]
    small, full = (sum(path.stat().st_size for path in of_run) for of_run in files)
    assert small < full / 3.5  # a float32 model: weights, without masters and two moments
    assert Path("run/global_step_1/critic/masters.safetensors").exists(), "the critic has keys of its own"
    with pytest.raises(CheckpointError, match=r"has no part model.*save_contents=\[hf_model\]"):
        train(*PPO, *TWO)
    train(*GRPO, *ONE, "actor_rollout_ref.model.path=run/global_step_1", "trainer.default_local_dir=next")


def test_resuming_unpickles_nothing(train, begun, monkeypatch):
    begun(*PPO, *ONE)

    def refuse(*_args, **_kwargs):
        raise AssertionError("something was unpickled")

    for target in ("torch.load", "pickle.load", "pickle.loads", "pickle.Unpickler", "torch.serialization.load"):
        monkeypatch.setattr(target, refuse)
    train(*PPO, *TWO)
    assert Path("run/global_step_2").is_dir()
