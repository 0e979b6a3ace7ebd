"""Everything that is registered trains: two real steps on the embedded model with each estimator, loss, KL and mode.

A name in a table that crashed, did nothing, or reported nothing would fail here. The reward is one that the model
earns sometimes, so that there is something to learn.
"""

import math
from pathlib import Path

import pytest
from safetensors.torch import load_file

from burnish.algorithms import advantages, losses
from burnish.cli.quickstart import NANO
from burnish.config.actor import AGGREGATIONS, KL_KINDS, LOSSES
from burnish.config.algorithm import ESTIMATORS
from tests.trainer.conftest import same, state_of

ACTOR = "actor_rollout_ref.actor"
REWARD = """
def compute_score(solution_str, ground_truth):
    right = float(solution_str.strip().endswith(str(ground_truth)))
    return {"score": right + 0.01 * (len(solution_str) % 7), "acc": right, "brevity": float(len(solution_str) < 12)}
"""
KINDS = [*KL_KINDS, *(f"{kind}+" for kind in KL_KINDS)]
REPORTED = (
    "critic/score/mean", "critic/advantages/mean", "critic/returns/mean", "actor/pg_loss", "actor/grad_norm",
    "actor/lr", "actor/entropy", "actor/ppo_kl", "actor/skipped_tokens_ratio", "response_length/mean",
    "rollout_corr/kl", "rollout_corr/k3_kl", "training/rollout_probs_diff_mean", "accuracy",
)  # fmt: skip


@pytest.fixture
def two_steps(train, metrics_of):
    """Train the embedded model for two steps; returns the metrics of both. The actor's weights have moved."""
    Path("reward.py").write_text(REWARD)
    model = [f"actor_rollout_ref.model.path={NANO}", "data.max_response_length=24", f"{ACTOR}.optim.lr=1e-4"]

    def run(*overrides: str) -> list[dict[str, float]]:
        train(*model, "data.val_files=null", "trainer.total_training_steps=2", *overrides)
        lines = metrics_of("run")
        assert [line["step"] for line in lines] == [1, 2]
        for line in lines:
            assert all(math.isfinite(value) for value in line.values()), line
        after = load_file("run/global_step_2/actor/model.safetensors")
        assert not same(load_file(NANO / "model.safetensors"), after)
        return lines

    return run


def test_the_configuration_knows_every_name():
    for table, names in ((advantages.TABLE, ESTIMATORS), (losses.TABLE, LOSSES)):
        built_in = [name for name, entry in table.entries.items() if isinstance(entry.function, str)]
        assert tuple(built_in) == names  # a user's, such as those of other tests, is a function


@pytest.mark.parametrize("name", advantages.TABLE.entries)
def test_every_estimator_trains(two_steps, name):
    lines = two_steps(f"algorithm.adv_estimator={name}")
    for line in lines:
        assert not set(REPORTED) - set(line)
        assert line["critic/advantages/max"] > line["critic/advantages/min"], "there is something to learn"
        assert line["actor/grad_norm"] > 0
    needs = advantages.needs_of(name)
    assert ("critic/vf_loss" in lines[0]) == needs.critic
    assert ("process_reward/loss" in lines[0]) == needs.process_reward
    assert ("critic/greedy_baseline/mean" in lines[0]) == needs.greedy_baseline
    assert ("variance_proxy/expected_w" in lines[0]) == ("sum_pi_squared" in needs.outputs)


@pytest.mark.parametrize("name", losses.TABLE.entries)
def test_every_loss_trains(two_steps, name):
    lines = two_steps("algorithm.adv_estimator=grpo", f"{ACTOR}.policy_loss.loss_mode={name}", f"{ACTOR}.ppo_epochs=2")
    for line in lines:
        assert not set(REPORTED) - set(line)
        assert line["actor/grad_norm"] > 0


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_every_aggregation_trains(two_steps, mode):
    sums = [f"{ACTOR}.loss_agg_mode={mode}", "critic.cliprange_value=0.2"]
    assert {"actor/pg_loss", "critic/vf_loss"} <= set(two_steps("algorithm.adv_estimator=gae", *sums)[1])


@pytest.mark.parametrize("kind", KINDS)
def test_every_kl_kind_trains_in_the_loss(two_steps, kind):
    lines = two_steps("algorithm.adv_estimator=grpo", f"{ACTOR}.use_kl_loss=true", f"{ACTOR}.kl_loss_coef=0.1",
                      f"{ACTOR}.kl_loss_type={kind}")  # fmt: skip
    assert all(line["actor/kl_loss"] != 0 and line["actor/kl_coef"] == 0.1 for line in lines)


@pytest.mark.parametrize(("kind", "controller"), [*((kind, "fixed") for kind in KL_KINDS), ("kl", "adaptive")])
def test_every_kl_kind_trains_in_the_reward(two_steps, kind, controller):
    lines = two_steps("algorithm.adv_estimator=rloo", "algorithm.use_kl_in_reward=true", f"algorithm.kl_penalty={kind}",
                      f"algorithm.kl_ctrl.type={controller}", "algorithm.kl_ctrl.horizon=100")  # fmt: skip
    assert lines[1]["actor/reward_kl_penalty"] != 0
    changed = lines[0]["actor/reward_kl_penalty_coeff"] != lines[1]["actor/reward_kl_penalty_coeff"]
    assert changed == (controller == "adaptive")
    assert state_of(2)["kl"].keys() == ({"kl_coef"} if controller == "adaptive" else set())


@pytest.mark.parametrize("method", ["pow", "max_min", "max_random"])
def test_every_resampling_trains(two_steps, method):
    pf_ppo = ["algorithm.pf_ppo.enable=true", f"algorithm.pf_ppo.reweight_method={method}"]
    lines = two_steps("algorithm.adv_estimator=gae", "actor_rollout_ref.rollout.n=2", *pf_ppo)
    assert all(0 < line["pf_ppo/distinct_ratio"] <= 1 for line in lines)


CORRECTIONS = {
    "token": ["rollout_is=token"],
    "sequence": ["rollout_is=sequence", "rollout_is_batch_normalize=true"],
    "icepop": ["rollout_is=token", "rollout_is_threshold=0.5_2.0"],
    "rejection": ["rollout_rs='token_k1,seq_mean_k3'", "rollout_rs_threshold='0.5_2.0,0.1'"],
    "both": ["rollout_is=token", "rollout_rs=seq_max_k2", "rollout_rs_threshold=0.5"],
    "bypass": ["bypass_mode=true"],
    "bypass-rejection": ["bypass_mode=true", "rollout_rs=token_k3", "rollout_rs_threshold=0.5"],
    "bypass-reinforce": ["bypass_mode=true", "loss_type=reinforce", "rollout_is=sequence"],
}


@pytest.mark.parametrize("correction", CORRECTIONS.values(), ids=CORRECTIONS)
def test_every_correction_trains(two_steps, correction):
    lines = two_steps("algorithm.adv_estimator=grpo", *(f"algorithm.rollout_correction.{key}" for key in correction))
    assert all("rollout_corr/k3_kl" in line for line in lines), "measured whatever is corrected"
