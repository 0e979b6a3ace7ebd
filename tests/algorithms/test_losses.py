"""The value loss, entropy and KL terms; KL estimates, controllers, and the KL penalty in the reward."""

import dataclasses
import json
import operator
from itertools import accumulate, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.algorithms.aggregate import LossCounts
from burnish.algorithms.kl import KLController, apply_kl_penalty, kl_controller, kl_penalty
from burnish.algorithms.losses.inputs import PolicyLossInputs, ValueLossInputs
from burnish.algorithms.losses.regularise import entropy_and_kl
from burnish.algorithms.losses.value import value_loss
from burnish.algorithms.losses.vanilla import vanilla
from burnish.algorithms.tally import merge
from burnish.config.actor import AGGREGATIONS, KL_KINDS, ActorConfig, CriticConfig
from burnish.config.algorithm import KLControlConfig
from burnish.engine.forward import OUTPUTS
from burnish.errors import BurnishError, CheckpointError, ConfigError
from tests.algorithms.helpers import (
    assert_close,
    assert_not_read,
    assert_same_in_parts,
    counts_of,
    gradient,
    policy_batch,
    value_batch,
)
from tests.recorded import each, golden

VALUE, ENTROPY = golden("value_loss"), golden("entropy_loss", function="entropy_loss")
assert (len(VALUE), len(ENTROPY)) == (25, 10)
MODES = pytest.mark.parametrize("mode", AGGREGATIONS)
EVERY_KIND = pytest.mark.parametrize("kind", [*KL_KINDS, *(kind + "+" for kind in KL_KINDS)])


@each(VALUE)
def test_value_loss_golden(case):
    params, tensors = case["params"], {name: torch.tensor(values) for name, values in case["inputs"].items()}
    config = CriticConfig(cliprange_value=params["cliprange_value"], loss_agg_mode=params["loss_agg_mode"])
    mask = tensors["response_mask"]
    length = params.get("loss_scale_factor") or mask.shape[1]
    inputs = ValueLossInputs(**tensors, config=config, counts=counts_of(params, mask), max_response_length=length)
    loss, metrics, slope = gradient(value_loss, inputs, "vpreds")
    devices = params.get("dp_size", 1)
    assert_close(loss * devices, case["expected"]["vf_loss"])
    assert_close(slope * devices, case["expected"]["grad_vpreds"])
    assert_close(merge([metrics])["critic/vf_clipfrac"], case["expected"]["vf_clipfrac"])
    assert_close(merge([metrics])["critic/vpred_mean"], tensors["vpreds"][mask.bool()].mean())


@each(ENTROPY)
def test_entropy_term_golden(case):
    logits = torch.tensor(case["inputs"]["logits"], requires_grad=True)
    mask = torch.tensor(case["inputs"]["response_mask"])
    entropy = OUTPUTS["entropy"](logits.log_softmax(-1), mask)
    assert_close(entropy.detach(), case["expected"]["token_entropy"])
    zero = torch.zeros(mask.shape)
    config = ActorConfig(
        clip_ratio_low=0.2, clip_ratio_high=0.2, entropy_coeff=0.5, loss_agg_mode=case["params"]["loss_agg_mode"]
    )
    inputs = PolicyLossInputs(zero, zero, zero, mask, config, LossCounts.of(mask), mask.shape[1], entropy=entropy)
    loss, metrics = entropy_and_kl(inputs)
    loss.backward()
    assert_close(merge([metrics])["actor/entropy_loss"], case["expected"]["entropy_loss"])
    slope = logits.grad / -config.entropy_coeff  # a bonus: entropy lowers the loss
    assert_close(slope, case["expected"]["grad_logits"])


def everything(inputs):
    """All terms of the actor's loss at once."""
    (loss, metrics), (more, more_metrics) = vanilla(inputs), entropy_and_kl(inputs)
    return loss + more, metrics | more_metrics


cuts = st.lists(st.integers(0, 2), min_size=6, max_size=6)


@MODES
@given(seed=st.integers(0, 10**6), cut_of_row=cuts)
@settings(max_examples=15, deadline=None)
def test_any_cut_gives_the_same_loss_gradient_and_metrics(mode, seed, cut_of_row):
    actor = policy_batch(seed, torch.float64, loss_agg_mode=mode, entropy_coeff=0.1, use_kl_loss=True)
    critic = value_batch(seed, torch.float64, loss_agg_mode=mode)
    parts = [[row for row, of in enumerate(cut_of_row) if of == part] for part in range(3)]
    assert_same_in_parts(everything, actor, "log_prob", parts)
    assert_same_in_parts(value_loss, critic, "vpreds", parts)


@MODES
def test_observation_tokens_change_nothing(mode, junk):
    actor = policy_batch(3, loss_agg_mode=mode, entropy_coeff=0.1, use_kl_loss=True, kl_loss_type="k2")
    read = ["log_prob", "old_log_prob", "advantages", "rollout_is_weights", "entropy", "ref_log_prob"]
    assert_not_read(everything, actor, read, junk)
    assert_not_read(value_loss, value_batch(3, loss_agg_mode=mode), ["vpreds", "values", "returns"], junk)


@EVERY_KIND
def test_observation_tokens_change_no_kl_term(kind, junk):
    inputs = policy_batch(3, use_kl_loss=True, kl_loss_type=kind)
    assert_not_read(entropy_and_kl, inputs, ["log_prob", "ref_log_prob"], junk)


@EVERY_KIND
def test_kl_term_pulls_towards_the_reference_and_coefficients_weigh(kind):
    inputs = policy_batch(use_kl_loss=True, kl_loss_coef=1.0, kl_loss_type=kind)
    flat = dataclasses.replace(inputs, advantages=torch.zeros_like(inputs.advantages))
    loss, metrics, slope = gradient(everything, flat, "log_prob")
    assert merge([metrics])["actor/kl_loss"] == pytest.approx(loss.item())
    assert merge([metrics, metrics])["actor/kl_coef"] == 1.0
    if kind not in ("kl", "k1"):  # k1's own gradient is 1 everywhere: it says nothing about direction
        inside = inputs.response_mask.bool()
        assert torch.equal(slope[inside].sign(), (inputs.log_prob - inputs.ref_log_prob)[inside].sign())
    loss, metrics = everything(policy_batch(entropy_coeff=0.5, use_kl_loss=True, kl_loss_coef=0.25, kl_loss_type=kind))
    value = merge([metrics])
    want = value["actor/pg_loss"] - 0.5 * value["actor/entropy_loss"] + 0.25 * value["actor/kl_loss"]
    assert loss.item() == pytest.approx(want)


@pytest.mark.parametrize(
    ("config", "field", "message"),
    [
        ({"entropy_coeff": 0.1}, "entropy", "entropy_coeff is not 0, but the log-prob pass returned no entropy"),
        ({"use_kl_loss": True}, "ref_log_prob", "use_kl_loss is on, but there are no log-probs of the reference"),
    ],
)
def test_a_missing_tensor_is_named_and_terms_that_are_off_are_not_there(config, field, message):
    with pytest.raises(BurnishError, match=message):
        everything(dataclasses.replace(policy_batch(**config), **{field: None}))
    for inputs in (policy_batch(), dataclasses.replace(policy_batch(), entropy=None, ref_log_prob=None)):
        loss, metrics = everything(inputs)
        assert loss.item() == vanilla(inputs)[0].item()
        assert set(metrics) == {"actor/pg_loss", "actor/pg_clipfrac", "actor/pg_clipfrac_lower", "actor/ppo_kl"}


PENALTIES = golden("kl_penalty", function="kl_penalty")
REWARDS = golden("kl_penalty", function="compute_rewards")
CONTROLLERS = golden("kl_controllers")
assert (len(PENALTIES), len(REWARDS), len(golden("kl_penalty")), len(CONTROLLERS)) == (48, 4, 52, 20)


@each(PENALTIES)
def test_penalty_golden(case):
    log_prob = torch.tensor(case["inputs"]["logprob"], requires_grad=True)
    reference, kind = torch.tensor(case["inputs"]["ref_logprob"]), case["params"]["kind"]
    if "raises" in case["expected"]:
        with pytest.raises(ConfigError, match=f"'{kind}'"):
            kl_penalty(log_prob, reference, kind)
        with pytest.raises(ConfigError, match="'full' needs every token's whole vocabulary; low_var_kl"):
            kl_penalty(log_prob, reference, "full")
        with pytest.raises(ConfigError, match=r"'low_var_k' is unknown: did you mean 'low_var_kl'\?"):
            kl_penalty(log_prob, reference, "low_var_k")
        return
    kl = kl_penalty(log_prob, reference, kind)
    kl.sum().backward()
    assert_close(kl.detach(), case["expected"]["kl"])
    assert_close(log_prob.grad, case["expected"]["grad_logprob"])


@pytest.mark.parametrize("scale", [1e-2, 1e-3, 1e-4, 1e-6])
def test_k3_keeps_its_digits_where_the_policies_are_close(scale):
    d = scale * torch.randn(100_000, generator=torch.Generator().manual_seed(0))
    k3 = kl_penalty(d, torch.zeros_like(d), "k3")
    assert (k3 >= 0).all()
    exact = d.double().neg().expm1() + d.double()
    assert k3.double().mean().item() == pytest.approx(exact.mean().item(), rel=1e-2)


@EVERY_KIND
def test_far_from_the_reference_estimate_and_gradient_are_finite(kind):
    log_prob = torch.tensor([200.0, -200.0], requires_grad=True)
    kl = kl_penalty(log_prob, torch.zeros(2), kind)
    kl.sum().backward()
    assert kl.isfinite().all() and log_prob.grad.isfinite().all()
    if kind in ("k3", "low_var_kl"):
        assert kl.tolist() == [10, 10] and not log_prob.grad.any()


@each(REWARDS)
def test_reward_golden(case):
    scores, old, reference = (torch.tensor(values) for values in case["inputs"].values())
    rewards, _ = apply_kl_penalty(
        scores, old, reference, torch.ones_like(scores), "kl", KLController(case["params"]["kl_ratio"])
    )
    assert_close(rewards, case["expected"]["token_level_rewards"])


@EVERY_KIND
def test_reward_does_not_read_observation_tokens(kind, junk):
    random = torch.Generator().manual_seed(0)
    scores, old, reference = torch.randn(3, 4, 6, generator=random)
    mask = torch.rand(4, 6, generator=random) < 0.6
    clean, clean_metrics = apply_kl_penalty(scores, old, reference, mask, kind, KLController(0.1))
    dirty = (tensor.masked_fill(~mask, junk) for tensor in (scores, old, reference))
    rewards, metrics = apply_kl_penalty(*dirty, mask, kind, KLController(0.1))
    assert torch.equal(rewards, clean) and metrics == clean_metrics
    assert not rewards[~mask].any()


def test_reward_metrics_and_the_step_of_the_controller():
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 0, 0]])  # the last row has no policy tokens: it is no sample
    old, reference = torch.tensor([[0.0, -1.0, 9.0], [-2.0, 9.0, 9.0], [9.0, 9.0, 9.0]]), torch.full((3, 3), -3.0)
    controller = KLController(0.5, target=1.0, horizon=4)
    rewards, metrics = apply_kl_penalty(torch.zeros(3, 3), old, reference, mask, "kl", controller)
    assert rewards.tolist() == [[-1.5, -1.0, 0.0], [-0.5, 0.0, 0.0], [0.0, 0.0, 0.0]]
    assert metrics == {"actor/reward_kl_penalty": 1.75, "actor/reward_kl_penalty_coeff": 0.5}  # (2.5 + 1) / 2
    assert controller.value == pytest.approx(0.5 * (1 + 0.2 * 2 / 4))  # too far away: the next step costs more
    controller = KLController(0.1, target=0.1, horizon=100)
    controller.update(0.0, n_steps=10_000)
    assert controller.value == pytest.approx(0.01), "one step divides it by ten at most"
    controller.update(5.0, n_steps=500)
    assert controller.value == pytest.approx(0.02)  # it did not stick at 0


@each(CONTROLLERS)
def test_controller_golden(case):
    params = {name: value for name, value in case["params"].items() if name != "function"}
    if "raises" in case["expected"]:
        with pytest.raises((ConfigError, ZeroDivisionError), match=r"type=cosine is unknown|by zero"):
            kl_controller(KLControlConfig(**params)).update(0.1, 1)
        return
    controller, values = kl_controller(KLControlConfig(**params)), []
    for kl, n_steps in zip(case["inputs"]["current_kl"], case["inputs"]["n_steps"], strict=True):
        values.append(controller.value)
        controller.update(kl, n_steps)
    values.append(controller.value)
    wanted = case["expected"]["values"]
    factors = [max(after / before, KLController.MIN_FACTOR) for before, after in pairwise(wanted)]  # theirs go below 0
    assert_close([after / before for before, after in pairwise(values)], factors)
    assert_close(values, [*accumulate(factors, operator.mul, initial=wanted[0])])
    assert min(values) > 0


def test_the_adaptive_coefficient_survives_a_checkpoint():
    """Where fixed and adaptive are switched on resume, it starts from the configuration."""

    def adaptive(value=0.1):
        return KLController(value, target=0.1, horizon=100)

    controller, resumed, fixed = adaptive(), adaptive(), KLController(0.2)
    controller.update(0.05, n_steps=64)
    resumed.load_state_dict(json.loads(json.dumps(controller.state_dict())))  # checkpoints hold it as JSON
    assert resumed.value == controller.value != 0.1
    switched = adaptive(0.3)
    switched.load_state_dict(fixed.state_dict())
    fixed.load_state_dict(adaptive(0.7).state_dict())
    assert (switched.value, fixed.value) == (0.3, 0.2)
    for value in (-0.1, float("nan"), float("inf")):
        with pytest.raises(CheckpointError, match=f"coefficient is {value}, not a number of at least 0"):
            adaptive().load_state_dict({"kl_coef": value})
