"""A run that does not fit: what `--plan` says, and how a run ends that runs out of memory."""

import json

import pytest
import torch

from burnish.config.load import load_ppo
from burnish.engine.forward import Forward
from burnish.entry.guard import guard
from burnish.errors import OutOfMemory
from burnish.trainer import executor, setup
from burnish.trainer.main_ppo import main
from burnish.trainer.rm_trainer import main as rm
from burnish.trainer.sft_trainer import main as sft

SUPERVISED = pytest.mark.parametrize(("command", "passes"), [(sft, "log_probs"), (rm, "scores")], ids=["sft", "rm"])
SIZE, FEWER = "data.micro_batch_size_per_gpu", "each added to those above it:\n  data.micro_batch_size_per_gpu="


def test_the_plan_of_a_run_that_does_not_fit_names_keys_with_numbers(job, reward, monkeypatch, capsys):
    monkeypatch.setattr(setup, "device_memory", lambda kind: 3 * 2**19)
    size = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"
    loaded = load_ppo([*job, "algorithm.adv_estimator=grpo", f"{size}=8", "--plan"])
    setup.prepare(loaded)
    with pytest.raises(
        OutOfMemory, match=r"^does not fit: planned are .* of 1\.5 MiB: .* throughout, plus one"
    ) as error:
        setup.run(loaded)
    assert f"{size}=" in str(error.value) and " → " in str(error.value) and error.value.exit_code == 2
    assert "estimated peak memory" in capsys.readouterr().out


def test_a_run_out_of_memory_ends_with_phase_plan_and_keys(job, reward, tmp_path, monkeypatch, capsys):
    def log_probs(*args, **options):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(Forward, "log_probs", log_probs)
    folder = tmp_path / "run"
    words = [*job, "algorithm.adv_estimator=grpo", f"trainer.default_local_dir={folder}"]
    assert guard(main, words) == 2
    said = capsys.readouterr().err
    assert "old_log_prob: ActorRolloutRefWorker.compute_log_prob failed on rank 0 of 1: out of memory" in said
    assert "planned are" in said and "each added to those above it:\n" in said
    error = json.loads((folder / "error.json").read_text())
    assert error["type"] == "OutOfMemory" and error["phase"] == "old_log_prob"


@SUPERVISED
def test_the_plan_of_a_supervised_run_that_does_not_fit_names_keys_with_numbers(
    command, passes, supervised, monkeypatch, capsys
):
    monkeypatch.setattr(executor, "memory_of", lambda device, processes: 2**21)
    with pytest.raises(OutOfMemory, match=r"^does not fit: planned are .* of 2\.0 MiB: .* plus one") as error:
        supervised(command, f"{SIZE}=3", "model.enable_gradient_checkpointing=False", "--plan")
    assert f"{FEWER}1  → " in str(error.value) and error.value.exit_code == 2
    assert "estimated peak memory" in capsys.readouterr().out


@SUPERVISED
def test_a_supervised_run_out_of_memory_ends_with_phase_plan_and_keys(
    command, passes, supervised, tmp_path, monkeypatch
):
    def run_out(*args, **options):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(Forward, passes, run_out)
    with pytest.raises(
        OutOfMemory, match=r"^training: SupervisedWorker\.train .*: out of memory, .*; planned are "
    ) as error:
        supervised(command)
    assert f"{FEWER}1  → " in str(error.value)
    assert json.loads((tmp_path / "run" / "error.json").read_text())["type"] == "OutOfMemory"
