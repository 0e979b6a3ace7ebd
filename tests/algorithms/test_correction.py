"""The gap between rollout and training: recorded results, any cut, observation tokens, and nothing left to weigh."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.algorithms.aggregate import LossCounts
from burnish.algorithms.correction import correct, in_the_loss, mismatch
from burnish.algorithms.losses.geo_mean import geo_mean
from burnish.algorithms.losses.gspo import gspo
from burnish.algorithms.losses.inputs import PolicyLossInputs
from burnish.algorithms.losses.reinforce import reinforce
from burnish.algorithms.losses.sapo import sapo
from burnish.algorithms.losses.vanilla import vanilla
from burnish.algorithms.tally import merge
from burnish.config.actor import AGGREGATIONS, ActorConfig
from burnish.config.algorithm import RolloutCorrectionConfig
from burnish.config.bounds import REJECTIONS
from tests.algorithms.helpers import assert_close, assert_same_in_parts, gradient, policy_batch, take
from tests.recorded import each, golden

BYPASS = golden("policy_losses", loss="bypass_mode")
CASES = golden("rollout_correction", function="rollout_correction")
CORRECTIONS = [case for case in CASES if "raises" not in case["expected"]]
EMPTY_ROWS = [case for case in CORRECTIONS if case["name"].startswith("zero_row")]
GAPS = golden("rollout_correction", function="offpolicy_metrics")
EVERYTHING = {
    "rollout_is": "token",
    "rollout_is_threshold": "0.8_1.3",
    "rollout_rs": ",".join(REJECTIONS),
    "rollout_rs_threshold": ",".join("0.5_2.0" if name.endswith("k1") else "0.2" for name in REJECTIONS),
}
PROBS = "training/rollout_probs_diff_"


def section(params):
    """The configuration of a recorded case; there a threshold of null switches the weights off."""
    keys = {field.name for field in dataclasses.fields(RolloutCorrectionConfig)}
    chosen = {name: value for name, value in params.items() if name in keys}
    if "rollout_is_threshold" in chosen and chosen["rollout_is_threshold"] is None:
        del chosen["rollout_is_threshold"], chosen["rollout_is"]
    return RolloutCorrectionConfig(**chosen)


def sides(inputs):
    return tuple(torch.tensor(inputs[name]) for name in ("old_log_prob", "rollout_log_prob", "response_mask"))


def both(log_probs, rollout_log_probs, mask, config):
    """What a step does: measure, then correct."""
    corrected = correct(log_probs, rollout_log_probs, mask, config)
    return corrected, merge([mismatch(log_probs, rollout_log_probs, mask)]) | corrected.metrics


def without_probs(metrics):
    """The recorded metrics have no differences of probabilities."""
    return {name: value for name, value in metrics.items() if not name.startswith(PROBS)}


@each([case for case in CORRECTIONS if case not in EMPTY_ROWS])
def test_corrections_golden(case):
    corrected, metrics = both(*sides(case["inputs"]), section(case["params"]))
    want = case["expected"]
    assert corrected.mask.tolist() == want["modified_response_mask"]
    assert (corrected.weights is None) == (want["rollout_is_weights"] is None)
    if corrected.weights is not None:
        assert_close(corrected.weights, want["rollout_is_weights"])
    assert_close(without_probs(metrics), want["metrics"])


@each(GAPS)
def test_gap_golden(case):
    if case["inputs"]["rollout_log_prob"] is None:
        trained, mask = (torch.tensor(case["inputs"][name]) for name in ("old_log_prob", "response_mask"))
        metrics = merge([mismatch(trained, None, mask)])
    else:
        metrics = without_probs(merge([mismatch(*sides(case["inputs"]))]))
    assert_close(metrics, {f"rollout_corr/{name}": value for name, value in case["expected"]["metrics"].items()})


def as_if_an_empty_row_counted(metrics, rows, level):
    """Our figures of `rows` sequences, and one more that weighs 0 and has perplexity 1: what the reference reports."""
    held = dict.fromkeys(["training_ppl", "rollout_ppl", "ppl_ratio", "rollout_is_seq_fraction_low"], 1)
    zero = "training_log_ppl rollout_log_ppl log_ppl_diff log_ppl_abs_diff chi2_seq rollout_is_seq_mean "
    zero += "rollout_is_seq_fraction_high rollout_rs_seq_masked_fraction"
    held |= dict.fromkeys(zero.split(), 0)
    if level == "sequence":
        held |= {"rollout_is_ratio_fraction_high": 0, "rollout_is_ratio_fraction_low": 0}
    theirs = dict(metrics)
    for name, value in held.items():
        theirs[f"rollout_corr/{name}"] = (rows * metrics[f"rollout_corr/{name}"] + value) / (rows + 1)
    mean, std = metrics["rollout_corr/rollout_is_seq_mean"], metrics["rollout_corr/rollout_is_seq_std"]
    theirs["rollout_corr/rollout_is_seq_std"] = math.sqrt(((rows - 1) * std**2 + mean**2 * rows / (rows + 1)) / rows)
    return theirs | {"rollout_corr/rollout_is_seq_min": 0.0, "rollout_corr/rollout_is_seq_max_deviation": 1.0}


@each(EMPTY_ROWS)
def test_rows_without_policy_tokens_count_nowhere(case):
    tensors, config = sides(case["inputs"]), section(case["params"])
    there = tensors[2].bool().any(-1)
    assert there.sum() == len(there) - 1
    corrected, metrics = both(*tensors, config)
    shorter, same = both(*(tensor[there] for tensor in tensors), config)
    assert metrics == pytest.approx(same, rel=1e-6)
    torch.testing.assert_close(corrected.weights[there], shorter.weights)
    assert not corrected.weights[~there].any() and not corrected.mask[~there].any()

    assert corrected.mask.tolist() == case["expected"]["modified_response_mask"]
    assert_close(corrected.weights, case["expected"]["rollout_is_weights"])
    theirs = as_if_an_empty_row_counted(without_probs(metrics), int(there.sum()), config.rollout_is)
    assert_close(theirs, case["expected"]["metrics"])


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_a_batch_without_policy_tokens_is_corrected_to_nothing(level):
    (case,) = [case for case in CASES if case["name"] == "all_masked_raises"]
    config = RolloutCorrectionConfig(**EVERYTHING | {"rollout_is": level, "rollout_is_batch_normalize": True})
    corrected, metrics = both(*sides(case["inputs"]), config)
    assert not corrected.weights.any() and not corrected.mask.any()
    assert set(metrics.values()) == {0.0}


def gap(*rows):
    """Log-probs of training and rollout whose log-ratios are given, and a full mask."""
    ratio = torch.tensor(rows, dtype=torch.float32)
    rollout = torch.full_like(ratio, -2.0)
    return rollout + ratio, rollout, torch.ones_like(ratio, dtype=torch.long)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_equal_policies_have_weight_one_and_policies_far_apart_weight_zero(level):
    keys = EVERYTHING | {"rollout_is": level, "rollout_is_batch_normalize": True}
    corrected, metrics = both(*gap([0.0, 0.0, 0.0], [0.0, 0.0, 0.0]), RolloutCorrectionConfig(**keys))
    assert (corrected.weights == 1).all() and corrected.mask.all()
    zero = "kl k3_kl chi2_token chi2_seq log_ppl_diff rollout_is_std rollout_rs_masked_fraction"
    assert not any(metrics[f"rollout_corr/{name}"] for name in zero.split())
    assert metrics["rollout_corr/rollout_is_eff_sample_size"] == metrics["rollout_corr/ppl_ratio"] == 1
    for normalised in (False, True):
        keys = {"rollout_is": level, "rollout_is_threshold": "0.9_1.1", "rollout_is_batch_normalize": normalised}
        config = RolloutCorrectionConfig(**keys)
        corrected, metrics = both(*gap([1.0, 2.0], [-1.0, -3.0]), config)
        assert torch.equal(corrected.weights, torch.zeros(2, 2)), "all 0, and the run does not end"
        assert metrics["rollout_corr/rollout_is_eff_sample_size"] == 0
        assert metrics["rollout_corr/rollout_is_oob_ratio"] == 1


@pytest.mark.parametrize(("bounds", "kept"), [("0.9_10", [1, 0]), ("0.1_1.1", [0, 1]), ("10", [1, 1]), ("4", [0, 0])])
def test_k1_bounds_the_ratio_of_rollout_to_training(bounds, kept):
    rollout_likelier, training_likelier = -math.log(5), math.log(5)  # log π_train - log π_rollout
    config = RolloutCorrectionConfig(rollout_rs="token_k1", rollout_rs_threshold=bounds)
    assert correct(*gap([rollout_likelier, training_likelier]), config).mask.tolist() == [kept]


@pytest.mark.parametrize("mask_type", [torch.long, torch.bool, torch.float32])
def test_a_token_stays_that_passes_every_mask_and_keeps_its_type(mask_type):
    log_probs, rollout, mask = gap([0.1, 1.0, 0.1], [0.3, 0.3, 0.3], [0.1, 0.1, 0.1])
    config = RolloutCorrectionConfig(rollout_rs="token_k2,seq_sum_k1", rollout_rs_threshold="0.2,0.5_5")
    kept = correct(log_probs, rollout, mask.to(mask_type), config).mask
    # e^-x: the first row is at 0.30 and the second at 0.41, both below 0.5; the third passes with 0.74
    assert kept.dtype == mask_type and kept.bool().tolist() == [[False] * 3, [False] * 3, [True] * 3]
    config = RolloutCorrectionConfig(rollout_rs="token_k2,seq_sum_k1", rollout_rs_threshold="0.2,0.2_5")
    kept = correct(log_probs, rollout, mask, config).mask
    assert kept.tolist() == [[1, 0, 1], [1, 1, 1], [1, 1, 1]]


def test_differences_of_probabilities():
    log_probs, rollout, mask = gap([0.5, -0.25, 0.0], [0.1, 0.7, 0.2])
    mask[1, 2] = 0
    inside = mask.bool()
    apart = (log_probs[inside].exp() - rollout[inside].exp()).abs()
    metrics = merge([mismatch(log_probs, rollout, mask)])
    assert metrics[f"{PROBS}mean"] == pytest.approx(apart.mean().item())
    assert metrics[f"{PROBS}max"] == pytest.approx(apart.max().item())
    assert metrics[f"{PROBS}std"] == pytest.approx(apart.std().item())
    assert merge([mismatch(*gap([0.5]))])[f"{PROBS}std"] == 0  # a single token


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("impossible", [-201.0, -2000.0, -math.inf])
@pytest.mark.parametrize("side", ["training", "rollout", "both, at different tokens"])
def test_a_token_that_one_side_finds_impossible_overflows_nothing(level, impossible, side):
    trained, sampled = torch.full((3, 2), -1.0), torch.full((3, 2), -1.0)
    if side != "rollout":
        trained[0, 0] = impossible
    if side != "training":
        sampled[1, 1] = impossible
    config = RolloutCorrectionConfig(**EVERYTHING | {"rollout_is": level})
    corrected, metrics = both(trained, sampled, torch.ones(3, 2), config)
    assert corrected.weights.isfinite().all()
    assert {name: value for name, value in metrics.items() if not math.isfinite(value)} == {}
    assert metrics["rollout_corr/k3_kl"] > 10  # far past any threshold
    assert corrected.mask[2].all() and not corrected.mask[0 if side != "rollout" else 1].any()


def test_what_both_find_impossible_is_no_gap_and_a_nan_is_kept():
    log_probs = torch.tensor([[-1.0, -math.inf], [-math.inf, -math.inf]])
    corrected, metrics = both(log_probs, log_probs, torch.ones(2, 2), RolloutCorrectionConfig(**EVERYTHING))
    assert (corrected.weights == 1).all() and corrected.mask.all()
    assert all(math.isfinite(value) for value in metrics.values())
    assert metrics["rollout_corr/k3_kl"] == metrics["rollout_corr/log_ppl_abs_diff"] == 0
    for broken in (0, 1):  # a NaN of one side is neither hidden nor spread to other tokens
        *sides_, mask = gap([0.1, 0.2], [0.3, 0.4])
        sides_[broken][0, 1] = math.nan
        corrected, metrics = both(*sides_, mask, RolloutCorrectionConfig(rollout_is="token"))
        assert corrected.weights.isnan().tolist() == [[False, True], [False, False]]
        assert math.isnan(metrics["rollout_corr/k3_kl"])


@given(x=st.floats(-30, 30, width=32) | st.floats(-(2**-10), 2**-10, width=32))
@settings(max_examples=200, deadline=None)
def test_k3_is_never_negative(x):
    metrics = merge([mismatch(torch.tensor([[x]]), torch.zeros(1, 1), torch.ones(1, 1))])
    assert metrics["rollout_corr/k3_kl"] >= 0


def corrected_by(config, loss):
    """The loss of a micro-batch under bypass mode, as the update computes it."""

    def total(inputs):
        corrected, metrics = in_the_loss(inputs, config)
        value, more = loss(corrected)
        return value, metrics | more

    return total


@pytest.mark.parametrize("loss", [vanilla, reinforce])
@pytest.mark.parametrize("level", ["token", "sequence"])
@given(seed=st.integers(0, 10**6), part_of_row=st.lists(st.integers(0, 2), min_size=6, max_size=6))
@settings(max_examples=15, deadline=None)
def test_any_cut_gives_the_same_gap_correction_and_loss(level, loss, seed, part_of_row):
    inputs, config = policy_batch(seed, torch.float64), RolloutCorrectionConfig(**EVERYTHING | {"rollout_is": level})
    parts = [[row for row in range(6) if part_of_row[row] == part] for part in range(3)]
    assert_same_in_parts(corrected_by(config, loss), inputs, "log_prob", parts)
    whole, _ = in_the_loss(inputs, config)
    for rows in parts:
        piece, _ = in_the_loss(take(inputs, rows), config)
        torch.testing.assert_close(piece.rollout_is_weights, whole.rollout_is_weights[rows])
        assert torch.equal(piece.response_mask, whole.response_mask[rows])


@pytest.mark.parametrize("replaced", [("log_prob", "old_log_prob"), ("log_prob",), ("old_log_prob",)])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_observation_tokens_change_nothing(level, replaced, junk):
    inputs, config = policy_batch(3), RolloutCorrectionConfig(**EVERYTHING | {"rollout_is": level})
    outside = inputs.response_mask == 0
    other = dataclasses.replace(inputs, **{name: getattr(inputs, name).masked_fill(outside, junk) for name in replaced})
    first, second = (both(batch.log_prob, batch.old_log_prob, batch.response_mask, config) for batch in (inputs, other))
    assert outside.any() and not first[0].weights[outside].any() and not first[0].mask[outside].any()
    assert torch.equal(first[0].weights, second[0].weights) and torch.equal(first[0].mask, second[0].mask)
    assert first[1] == second[1]
    assert merge([in_the_loss(inputs, config)[1]]) == merge([in_the_loss(other, config)[1]])


@each(BYPASS)
def test_bypass_golden(case):
    params, want = case["params"], case["expected"]
    around = params["policy_loss"]["rollout_correction"]
    is_clipped = around["loss_type"] == "ppo_clip"
    # A clipped ratio is a weight of its own: there the reference computes weights, reports them, and does not use
    # them. Here that is refused before the run, and so is a mean over the batch that a micro-batch cannot know.
    config = section({**around, "rollout_is": None if is_clipped else around["rollout_is"]})
    tensors = {name: torch.tensor(values) for name, values in case["inputs"].items()}
    mask = tensors["response_mask"]
    keys = ("clip_ratio_low", "clip_ratio_high", "clip_ratio_c", "loss_agg_mode")
    actor = ActorConfig(**{key: params[key] for key in keys})
    inputs = PolicyLossInputs(**tensors, config=actor, counts=LossCounts.of(mask), max_response_length=mask.shape[1])
    kept = in_the_loss(inputs, config)[0].response_mask
    inputs = dataclasses.replace(inputs, counts=LossCounts.of(kept))  # the reference does not count what it rejects
    loss, metrics, slope = gradient(corrected_by(config, vanilla if is_clipped else reinforce), inputs, "log_prob")

    recorded = dict(want["metrics"])
    factor = recorded.pop("rollout_corr/rollout_is_batch_norm_factor", 1.0)
    weights_apart = 1.0 if is_clipped else factor
    assert_close(loss / weights_apart, want["loss"])
    assert_close(slope / weights_apart, want["grad_log_prob"])
    if is_clipped:
        recorded = {name: value for name, value in recorded.items() if "rollout_is" not in name}
    elif factor != 1.0:
        assert metrics["rollout_corr/rollout_is_mean"].value == pytest.approx(factor)
    assert_close(without_probs(merge([metrics])), {"actor/pg_loss": loss.item(), **recorded})


def rejecting(loss, mode):
    """The gradient of a batch before and after some tokens are rejected, the tokens that stay and those that go."""
    inputs = policy_batch(1, loss_agg_mode=mode)
    config = RolloutCorrectionConfig(rollout_rs="token_k2", rollout_rs_threshold="0.15")
    _, _, before = gradient(corrected_by(RolloutCorrectionConfig(), loss), inputs, "log_prob")
    _, metrics, after = gradient(corrected_by(config, loss), inputs, "log_prob")
    kept = in_the_loss(inputs, config)[0].response_mask.bool()
    rejected = inputs.response_mask.bool() & ~kept
    assert rejected.any() and kept.any() and before[rejected].any() and not after[rejected].any()
    share = rejected.sum().item() / inputs.response_mask.sum().item()
    assert metrics["rollout_corr/rollout_rs_masked_fraction"].value == pytest.approx(share)
    return before, after, kept, rejected


@pytest.mark.parametrize("loss", [vanilla, reinforce])
@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_a_rejected_token_leaves_the_gradient_of_all_others_as_it_was(loss, mode):
    """A mean over a row is one over what is left of it."""
    before, after, kept, rejected = rejecting(loss, mode)
    if mode == "seq-mean-token-mean":
        before = before * (kept | rejected).sum(-1, keepdim=True) / kept.sum(-1, keepdim=True)
    torch.testing.assert_close(after[kept], before[kept])


@pytest.mark.parametrize("loss", [gspo, sapo, geo_mean])
def test_a_loss_with_a_mean_over_each_row_leaves_the_other_rows_as_they_were(loss):
    before, after, kept, rejected = rejecting(loss, "token-mean")
    whole = kept.any(-1) & ~rejected.any(-1)
    assert whole.any() and before[whole].any()
    torch.testing.assert_close(after[whole], before[whole])
    shortened = kept & rejected.any(-1, keepdim=True)
    assert not torch.allclose(after[shortened], before[shortened])


def test_weights_of_the_update_carry_no_gradient_and_replace_others():
    inputs = policy_batch(2)
    inputs = dataclasses.replace(inputs, log_prob=inputs.log_prob.clone().requires_grad_())
    corrected, metrics = in_the_loss(inputs, RolloutCorrectionConfig(rollout_is="token", rollout_is_threshold=10.0))
    inside = inputs.response_mask.bool()
    want = (inputs.log_prob - inputs.old_log_prob).exp().masked_fill(~inside, 0)
    torch.testing.assert_close(corrected.rollout_is_weights, want.detach().clamp(max=10))
    assert not corrected.rollout_is_weights.requires_grad and corrected.log_prob.requires_grad
    assert not any(part.requires_grad for tally in metrics.values() for part in tally.parts)
    untouched, _ = in_the_loss(inputs, RolloutCorrectionConfig())
    assert untouched.rollout_is_weights is None and torch.equal(untouched.response_mask, inputs.response_mask)
