"""What a user can get wrong, through the command: exit code 2, no traceback, and a message with thing, value and fix.

Here: keys.
"""

import pytest
import torch

from burnish.algorithms import advantages
from burnish.config.actor import AGGREGATIONS, KL_KINDS, LOSSES
from burnish.config.algorithm import ESTIMATORS
from tests.bad_input.said import EACH, assert_says


def test_the_right_command_runs(run):
    """So that every refusal below comes from what that test changes."""
    for command in ("ppo", "sft", "rm"):
        code, _, err = run(command, f"trainer.default_local_dir=run-{command}")
        assert code == 0, err


CORRECTION = "algorithm.rollout_correction"
BAD_KEYS = {
    "unknown": (
        ["data.train_batchsize=4"],
        ["unknown key 'data.train_batchsize'", "did you mean 'data.train_batch_size'?"],
    ),
    "unknown with +": (["+trainer.total_epoch=4"], ["'trainer.total_epoch'", "did you mean 'trainer.total_epochs'?"]),
    "several unknown": (["data.sed=1", "optim.lr=1"], ["'data.seed'", "'actor_rollout_ref.actor.optim.lr'"]),
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
    "the whole KL": (["actor_rollout_ref.actor.kl_loss_type=full"], ["kl_loss_type=full", "whole vocabulary"]),
    "bounds out of order": (
        [f"{CORRECTION}.rollout_is=token", f"{CORRECTION}.rollout_is_threshold=2.0_0.5"],
        [f"{CORRECTION}.rollout_is_threshold=2.0_0.5"],
    ),
    "masks without bounds": ([f"{CORRECTION}.rollout_rs=token_k1"], [f"{CORRECTION}.rollout_rs_threshold"]),
    "no such mask": (
        [f"{CORRECTION}.rollout_rs=token_k9", f"{CORRECTION}.rollout_rs_threshold=1.5"],
        ["token_k9", "token_k1"],
    ),
    "covariance bounds out of order": (
        ["actor_rollout_ref.actor.policy_loss.loss_mode=clip_cov", "actor_rollout_ref.actor.policy_loss.clip_cov_lb=9"],
        ["clip_cov_lb=9", "clip_cov_ub=5"],
    ),
    "weights without components": (
        ["algorithm.adv_estimator=gdpo", "algorithm.gdpo_reward_weights=[1]"],
        ["gdpo_reward_weights", "gdpo_reward_keys"],
    ),
    "other weights than components": (
        ["algorithm.adv_estimator=gdpo", "algorithm.gdpo_reward_keys=[a,b]", "algorithm.gdpo_reward_weights=[1]"],
        ["1 weights for the 2", "one for each"],
    ),
    "a KL that components do not see": (
        ["algorithm.adv_estimator=gdpo", "algorithm.gdpo_reward_keys=[a]", "algorithm.use_kl_in_reward=true"],
        ["use_kl_in_reward", "gdpo_reward_keys", "use_kl_loss"],
    ),
    "a penalty that components do not see": (
        [
            "algorithm.adv_estimator=gdpo",
            "algorithm.gdpo_reward_keys=[a]",
            "algorithm.overlong_buffer.enable=true",
            "algorithm.overlong_buffer.len=2",
        ],
        ["overlong_buffer", "gdpo_reward_keys", "overlong_reward"],
    ),
    "weights that are no weights": (
        ["algorithm.adv_estimator=gdpo", "algorithm.gdpo_reward_keys=[a]", "algorithm.gdpo_reward_weights=[0]"],
        ["gdpo_reward_weights=[0.0]", "not all 0"],
    ),
    "greedy samples against a greedy baseline": (
        ["algorithm.adv_estimator=remax", "actor_rollout_ref.rollout.do_sample=false"],
        ["do_sample=false", "remax"],
    ),
    "no room for the overlong buffer": (["algorithm.overlong_buffer.enable=true"], ["overlong_buffer.len=0"]),
    "rounds of generation without a filter": (["data.gen_batch_size=8"], ["gen_batch_size=8", "filter_groups.enable"]),
    "no process reward for prime": (
        ["algorithm.adv_estimator=prime", "process_reward.enable=false"],
        ["process_reward.enable=false", "prime"],
    ),
    "not true or false": (["data.shuffle=maybe"], ["data.shuffle=maybe", "true or false"]),
    "unsupported": (
        ["actor_rollout_ref.actor.fsdp_config.grad_offload=true"],
        ["grad_offload", "not supported", "param_offload"],
    ),
    "batches do not divide": (
        ["data.train_batch_size=16", "actor_rollout_ref.actor.ppo_mini_batch_size=5"],
        ["data.train_batch_size=16", "ppo_mini_batch_size=5", "4 and 8"],
    ),
    "mini-batch over the batch": (
        ["actor_rollout_ref.actor.ppo_mini_batch_size=8"],
        ["ppo_mini_batch_size=8 is more than data.train_batch_size=4"],
    ),
    "no critic for gae": (
        ["algorithm.adv_estimator=gae", "critic.enable=false"],
        ["critic.enable=false", "gae needs a critic"],
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
    "a server without an address": (
        ["reward_model.sandbox.backend=sandbox_fusion"],
        ["reward_model.sandbox.backend=sandbox_fusion", "reward_model.sandbox.url=http://"],
    ),
    "an address of no server": (["reward_model.sandbox_fusion.url=host/run"], ["url=host/run", "http://"]),
    "a server, and this machine": (
        ["reward_model.sandbox.backend=local", "reward_model.sandbox.url=http://host/run_code"],
        ["reward_model.sandbox.url=http://host/run_code", "reward_model.sandbox.backend=local", "keep one"],
    ),
    "a reward model without a path": (
        ["reward_model.enable=true"],
        ["reward_model.enable=true needs reward_model.model.path", "burnish rm"],
    ),
    "no such reward manager": (["reward_model.reward_manager=naiv"], ["reward_manager=naiv", "naive"]),
    "no override": (["--verbose"], ["--verbose"]),
    "not key=value": (["data.train_files"], ["data.train_files", "key=value"]),
}


@pytest.mark.parametrize(("overrides", "parts"), BAD_KEYS.values(), ids=BAD_KEYS)
def test_keys(refuses, no_model, overrides, parts):
    assert_says(refuses("ppo", *overrides), *parts)


@pytest.mark.parametrize("name", [name for name in ESTIMATORS if advantages.needs_of(name).groups])
def test_groups_of_one(refuses, no_model, name):
    said = refuses("ppo", f"algorithm.adv_estimator={name}", "actor_rollout_ref.rollout.n=1")
    assert_says(said, "rollout.n=1", name, "at least 2", "leave")


BAD_SFT_KEYS = {
    "unknown": (["data.maxlength=4"], ["unknown key 'data.maxlength'", "did you mean 'data.max_length'?"]),
    "wrong type": (["optim.lr=fast"], ["optim.lr=fast", "must be a number"]),
    "no model": (["model.path=DROP"], ["model.path must be set"]),
    "half a pair": (["data.prompt_key=q"], ["data.prompt_key and data.response_key go together"]),
    "longer than the context": (["data.max_length=600"], ["data.max_length=600", "512"]),
    "no such logger": (["trainer.logger=tensorbord"], ["trainer.logger=tensorbord", "Did you mean tensorboard?"]),
}


@pytest.mark.parametrize(("overrides", "parts"), BAD_SFT_KEYS.values(), ids=BAD_SFT_KEYS)
def test_sft_keys(refuses, no_model, overrides, parts):
    assert_says(refuses("sft", *overrides), *parts)


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
