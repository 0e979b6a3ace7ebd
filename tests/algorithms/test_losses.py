"""The value loss, and entropy and KL terms of the policy loss: recorded results, any cut, holes in the mask."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.algorithms.aggregate import LossCounts
from burnish.algorithms.losses.inputs import PolicyLossInputs, ValueLossInputs
from burnish.algorithms.losses.regularise import entropy_and_kl
from burnish.algorithms.losses.value import value_loss
from burnish.algorithms.losses.vanilla import vanilla
from burnish.algorithms.tally import merge
from burnish.config.actor import AGGREGATIONS, KL_KINDS, ActorConfig, CriticConfig
from burnish.engine.forward import OUTPUTS
from burnish.errors import BurnishError
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
