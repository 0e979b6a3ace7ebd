"""What a user can get wrong, through the command, told with thing, value and fix: keys."""

import pytest
import torch

from burnish.config.actor import LOSSES
from tests.bad_input.conftest import EACH, assert_says


def test_the_right_command_runs(run):
    """So that every refusal below comes from what that test changes."""
    for command in ("ppo", "sft", "rm"):
        code, _, err = run(command, f"trainer.default_local_dir=run-{command}")
        assert code == 0, err


BAD_KEYS = {
    "unknown": (
        ["data.train_batchsize=4"],
        ["unknown key 'data.train_batchsize'", "did you mean 'data.train_batch_size'?"],
    ),
    "unknown with +": (["+trainer.total_epoch=4"], ["'trainer.total_epoch'", "did you mean 'trainer.total_epochs'?"]),
    "no such loss": (
        ["actor_rollout_ref.actor.policy_loss.loss_mode=vanila"],
        ["loss_mode=vanila", "did you mean 'vanilla'?", *LOSSES],
    ),
    "no model": (
        ["actor_rollout_ref.model.path=DROP"],
        ["actor_rollout_ref.model.path must be set", "for example actor_rollout_ref.model.path="],
    ),
    "longer than the context": (
        ["data.max_prompt_length=500", "data.max_response_length=100"],
        ["data.max_prompt_length=500", "data.max_response_length=100", "600", "context of 512", "lower"],
    ),
    "a reward model without a path": (
        ["reward_model.enable=true"],
        ["reward_model.enable=true needs reward_model.model.path", "burnish rm"],
    ),
    "no override": (["--verbose"], ["--verbose"]),
    "not key=value": (["data.train_files"], ["data.train_files", "key=value"]),
    "sft: unknown": (["data.maxlength=4"], ["unknown key 'data.maxlength'", "did you mean 'data.max_length'?"]),
    "sft: longer than the context": (["data.max_length=600"], ["data.max_length=600", "512"]),
}


@pytest.mark.parametrize("case", BAD_KEYS)
def test_keys(refuses, no_model, case):
    overrides, parts = BAD_KEYS[case]
    assert_says(refuses("sft" if case.startswith("sft: ") else "ppo", *overrides), *parts)


@EACH
def test_a_gpu_where_there_is_none(refuses, no_model, monkeypatch, command):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert_says(refuses(command, "trainer.device=cuda"), "trainer.device=cuda", "torch sees no", "cpu")


@EACH
def test_debug_shows_where(run, command):
    code, _, err = run(command, "data.train_files=nowhere.parquet", "--debug")
    assert code == 2
    assert err.startswith("Traceback") and "DataError: data.train_files: data file not found: nowhere.parquet" in err


def test_plan_is_arithmetic_only(run, no_model, place):
    code, out, err = run("ppo", "--plan", "data.train_batch_size=2", "trainer.total_epochs=3")
    assert code == 0, err
    plan = dict(line.split("  ", 1) for line in out.splitlines())
    assert plan["sequences per step"].split()[0] == "4"
    assert plan["tokens per step, at most"].split()[0] == str(4 * 36)
    assert plan["steps in total"].split()[0] == "6"
    assert "GiB" in plan["estimated peak memory"] or "MiB" in plan["estimated peak memory"]
    assert not (place / "run").exists()
