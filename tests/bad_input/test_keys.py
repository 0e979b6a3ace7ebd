"""What a user can get wrong, through the command, told with thing, value and fix: keys."""

import pytest
import torch

from burnish.config.actor import AGGREGATIONS, KL_KINDS, LOSSES
from burnish.config.algorithm import ESTIMATORS
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
    "not a number": (["data.train_batch_size=many"], ["data.train_batch_size=many", "must be an integer"]),
    "out of range": (["actor_rollout_ref.rollout.top_p=1.5"], ["rollout.top_p=1.5", "at most 1"]),
    "no such choice": (["trainer.device=gpu"], ["trainer.device=gpu", "one of auto, cuda, cpu"]),
    "no such estimator": (
        ["algorithm.adv_estimator=grop"],
        ["algorithm.adv_estimator=grop", "did you mean 'grpo'?", *ESTIMATORS],
    ),
    "no such loss": (
        ["actor_rollout_ref.actor.policy_loss.loss_mode=vanila"],
        ["loss_mode=vanila", "did you mean 'vanilla'?", *LOSSES],
    ),
    "no such aggregation": (["actor_rollout_ref.actor.loss_agg_mode=mean"], ["loss_agg_mode=mean", *AGGREGATIONS]),
    "no such KL": (["algorithm.kl_penalty=k4", "algorithm.use_kl_in_reward=true"], ["kl_penalty=k4", *KL_KINDS]),
    "not true or false": (["data.shuffle=maybe"], ["data.shuffle=maybe", "true or false"]),
    "unsupported": (
        ["actor_rollout_ref.actor.fsdp_config.grad_offload=true"],
        ["grad_offload", "not supported", "param_offload"],
    ),
    "batches do not divide": (
        ["data.train_batch_size=16", "actor_rollout_ref.actor.ppo_mini_batch_size=5"],
        ["data.train_batch_size=16", "ppo_mini_batch_size=5", "4 and 8"],
    ),
    "no model": (
        ["actor_rollout_ref.model.path=DROP"],
        ["actor_rollout_ref.model.path must be set", "for example actor_rollout_ref.model.path="],
    ),
    "no files": (["data.train_files=DROP"], ["data.train_files must be set", "for example data.train_files="]),
    "no such logger": (["trainer.logger=tensorbord"], ["trainer.logger=tensorbord", "Did you mean tensorboard?"]),
    "longer than the context": (
        ["data.max_prompt_length=500", "data.max_response_length=100"],
        ["data.max_prompt_length=500", "data.max_response_length=100", "600", "context of 512", "lower"],
    ),
    "a reward model without a path": (
        ["reward_model.enable=true"],
        ["reward_model.enable=true needs reward_model.model.path", "burnish rm"],
    ),
    "no such reward manager": (["reward_model.reward_manager=naiv"], ["reward_manager=naiv", "naive"]),
    "no override": (["--verbose"], ["--verbose"]),
    "not key=value": (["data.train_files"], ["data.train_files", "key=value"]),
}


BAD_SFT_KEYS = {
    "unknown": (["data.maxlength=4"], ["unknown key 'data.maxlength'", "did you mean 'data.max_length'?"]),
    "wrong type": (["optim.lr=fast"], ["optim.lr=fast", "must be a number"]),
    "no model": (["model.path=DROP"], ["model.path must be set"]),
    "half a pair": (["data.prompt_key=q"], ["data.prompt_key and data.response_key go together"]),
    "longer than the context": (["data.max_length=600"], ["data.max_length=600", "512"]),
    "no such logger": (["trainer.logger=tensorbord"], ["trainer.logger=tensorbord", "Did you mean tensorboard?"]),
}


@pytest.mark.parametrize(
    ("command", "overrides", "parts"),
    [("ppo", *case) for case in BAD_KEYS.values()] + [("sft", *case) for case in BAD_SFT_KEYS.values()],
    ids=[*BAD_KEYS, *(f"sft: {name}" for name in BAD_SFT_KEYS)],
)
def test_keys(refuses, no_model, command, overrides, parts):
    assert_says(refuses(command, *overrides), *parts)


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
