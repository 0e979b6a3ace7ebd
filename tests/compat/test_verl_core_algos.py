"""verl's algorithms: users' estimators and losses in burnish's trainer, and burnish's with verl's signatures."""

import dataclasses
import importlib

import pytest
import torch
from verl.trainer.ppo import core_algos

from burnish.algorithms import advantages, losses
from burnish.algorithms.aggregate import LossCounts
from burnish.algorithms.tally import merge
from burnish.config.actor import AGGREGATIONS, ActorConfig
from burnish.errors import ConfigError
from burnish.workers.objectives import checked
from tests.algorithms.helpers import assert_close, make_advantage_inputs, policy_batch, take
from tests.compat.training import trained
from tests.recorded import each, golden

USER_FILES = ["tests.compat.user_files.algorithms", "tests.compat.user_files.algorithms_0_7"]
MODES = pytest.mark.parametrize("mode", AGGREGATIONS)
REWARDS = [[0.0, 1.0, 0.0], [0.0, 0.0, 3.0], [0.5, 0.0, 0.0], [0.0, -1.0, 0.0], [2.0, 0.0, 0.0]]
MASK = [[1, 1, 0], [1, 1, 1], [1, 0, 0], [0, 1, 1], [1, 1, 1]]
UIDS = [0, 0, 1, 1, 2]


@pytest.fixture(autouse=True)
def _registered():
    for name in USER_FILES:
        importlib.import_module(name)


def results(loss, inputs, parts=1):
    """The loss of a mini-batch in so many micro-batches, its metrics and its gradient."""
    log_prob = inputs.log_prob.detach().requires_grad_()
    rows = torch.arange(len(log_prob)).tensor_split(parts)
    pieces = [loss(take(dataclasses.replace(inputs, log_prob=log_prob), part)) for part in rows]
    total = torch.stack([piece[0] for piece in pieces]).sum()
    total.backward()
    return total.item(), merge(piece[1] for piece in pieces), log_prob.grad


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("name", ["older_ppo", "newer_ppo", "annotated_ppo"])
@pytest.mark.filterwarnings("ignore:annotated_ppo is deprecated; use verl:FutureWarning")
@MODES
def test_a_users_loss_equals_the_built_in_one_however_it_is_cut(mode, name, parts):
    inputs = policy_batch(loss_agg_mode=mode, clip_ratio_low=0.2, clip_ratio_high=0.3)
    if name == "older_ppo":  # it takes no weights
        inputs = dataclasses.replace(inputs, rollout_is_weights=None)
    loss, metrics, gradient = results(losses.policy_loss(name), inputs, parts)
    wanted, wanted_metrics, wanted_gradient = results(losses.policy_loss("vanilla"), inputs)
    assert_close(loss, wanted)
    assert_close(gradient, wanted_gradient)
    assert_close(metrics, {key: value for key, value in wanted_metrics.items() if key in metrics})
    assert len(metrics) == 3


@pytest.mark.parametrize("by_std", [True, False])
@pytest.mark.parametrize("name", ["loop_grpo", "vectorised_grpo"])
def test_a_users_estimator_equals_the_built_in_one(name, by_std):
    inputs = make_advantage_inputs(REWARDS, MASK, UIDS, norm_adv_by_std_in_grpo=by_std)
    own, built_in = (advantages.estimator(name)(inputs)[0] for name in (name, "grpo"))
    assert_close(own, built_in)
    assert advantages.needs_of(name).groups


@pytest.mark.parametrize("name", sorted(set(core_algos.AdvantageEstimator) & set(core_algos.ADV_ESTIMATOR_REGISTRY)))
def test_estimators_have_verls_signature_and_burnishs_results(name):
    values, baselines = torch.full((5, 3), 0.5), torch.arange(5.0)
    inputs = make_advantage_inputs(REWARDS, MASK, UIDS, values=values, gamma=0.9, lam=0.8)
    inputs = dataclasses.replace(inputs, reward_baselines=baselines)
    given = {
        "gae": {"values": values, "gamma": 0.9, "lam": 0.8},
        "remax": {"reward_baselines": baselines},
        "reinforce_plus_plus": {"config": {"gamma": 0.9}},
    }.get(name, {"index": inputs.uids})
    tensors = {"token_level_rewards": inputs.token_level_rewards, "response_mask": inputs.response_mask}
    found = core_algos.get_adv_estimator_fn(core_algos.AdvantageEstimator(name))(**tensors, **given)
    for got, wanted in zip(found, advantages.estimator(name)(inputs), strict=True):
        assert torch.equal(got, wanted)


@pytest.mark.parametrize("name", sorted(set(core_algos.POLICY_LOSS_REGISTRY) & set(losses.TABLE.entries)))
def test_losses_have_verls_signature_and_burnishs_results(name):
    inputs = policy_batch(clip_ratio_low=0.2, clip_ratio_high=0.2, loss_agg_mode="seq-mean-token-mean")
    counts = LossCounts.of(inputs.response_mask)
    inputs = dataclasses.replace(inputs, rollout_is_weights=None, counts=counts)
    loss, metrics = core_algos.get_policy_loss_fn(name)(
        old_log_prob=inputs.old_log_prob,
        log_prob=inputs.log_prob,
        advantages=inputs.advantages,
        response_mask=inputs.response_mask,
        loss_agg_mode="seq-mean-token-mean",
        config={"clip_ratio": 0.2},
    )
    wanted, tallies = losses.policy_loss(name)(inputs)
    assert loss.item() == wanted.item()
    assert metrics == {key: value for key, value in merge([tallies]).items() if key != "actor/pg_loss"}


def test_older_ppo_loss_gives_four_values():
    inputs = policy_batch()
    batch = inputs.old_log_prob, inputs.log_prob, inputs.advantages, inputs.response_mask
    loss, clipfrac, kl, lower = core_algos.compute_policy_loss(*batch, cliprange=0.1, cliprange_high=0.3)
    config = ActorConfig(clip_ratio=0.1, clip_ratio_high=0.3)
    wanted, metrics = core_algos.compute_policy_loss_vanilla(*batch, config=config)
    assert loss.item() == wanted.item()
    assert [clipfrac, kl, lower] == [
        metrics[f"actor/{name}"] for name in ("pg_clipfrac", "ppo_kl", "pg_clipfrac_lower")
    ]


@each(
    [c for c in golden("agg_loss") if "masked" not in c["name"] and "nan" not in c["name"] and "loss" in c["expected"]]
)
def test_agg_loss_golden(case):
    values = torch.tensor([[float(x) for x in row] for row in case["inputs"]["loss_mat"]])
    names = ("dp_size", "batch_num_tokens", "global_batch_size", "loss_scale_factor")
    given = {key: value for key, value in case["params"].items() if key in names}
    loss = core_algos.agg_loss(
        values, torch.tensor(case["inputs"]["loss_mask"]), case["params"]["loss_agg_mode"], **given
    )
    assert_close(loss.item(), float(case["expected"]["loss"]))


@each([case for case in golden("value_loss") if "raises" not in case["expected"]][:3])
def test_value_loss_golden(case):
    tensors = {name: torch.tensor(values) for name, values in case["inputs"].items()}
    options = {key: case["params"][key] for key in ("cliprange_value", "loss_agg_mode")}
    loss, clipfrac = core_algos.compute_value_loss(**tensors, **options)
    assert_close([loss.item(), clipfrac], [case["expected"]["vf_loss"], case["expected"]["vf_clipfrac"]])


def test_kl_controllers_and_penalty():
    adaptive = core_algos.AdaptiveKLController(init_kl_coef=0.1, target_kl=1.0, horizon=100)
    adaptive.update(current_kl=2.0, n_steps=50)
    assert adaptive.value == pytest.approx(0.11)
    fixed = core_algos.get_kl_controller({"type": "fixed", "kl_coef": 0.3})
    fixed.update(current_kl=2.0, n_steps=50)
    assert fixed.value == 0.3
    assert core_algos.kl_penalty(torch.tensor([1.0]), torch.tensor([3.0]), kl_penalty="mse").item() == 2.0


def test_a_loss_may_return_a_scalar_alone_and_metrics_must_be_numbers():
    @core_algos.register_policy_loss("bare")
    def bare(log_prob, advantages, response_mask):
        return core_algos.agg_loss(-log_prob * advantages, response_mask, "token-mean")

    @core_algos.register_policy_loss("worded")
    def worded(**given):
        return bare(given["log_prob"], given["advantages"], given["response_mask"]), {"actor/words": "many"}

    assert results(losses.policy_loss("bare"), policy_batch())[1] == {}
    inputs = dataclasses.replace(policy_batch(), log_prob=policy_batch().log_prob.requires_grad_())
    with pytest.raises(ConfigError, match="returned a str as metric 'actor/words'"):
        checked(losses.policy_loss("worded")(inputs), "worded")


def test_an_unknown_name_lists_those_there_are():
    with pytest.raises(ValueError, match="'nothing' is no policy loss .* cispo, "):
        core_algos.get_policy_loss_fn("nothing")


def test_training_with_a_users_estimator_and_loss_gives_the_metrics_of_the_built_in_ones(tmp_path):
    built_in, own = tmp_path / "built_in", tmp_path / "own"
    for folder in (built_in, own):
        folder.mkdir()
    wanted = trained(built_in)
    found = trained(own, "algorithm.adv_estimator=loop_grpo", "actor_rollout_ref.actor.policy_loss.loss_mode=newer_ppo")
    assert wanted[0]["actor/grad_norm"] > 0
    for got, want in zip(found, wanted, strict=True):
        del got["actor/skipped_tokens_ratio"], want["actor/skipped_tokens_ratio"]  # only ours says that it may skip
        assert got == pytest.approx(want, rel=1e-4, abs=1e-5)
