"""Every policy loss of the table: recorded results, any cut, holes in the mask, skipped rows, far ratios, keys."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.algorithms import losses
from burnish.algorithms.aggregate import LossCounts
from burnish.algorithms.losses.covariance import covariance
from burnish.algorithms.losses.inputs import PolicyLossInputs
from burnish.algorithms.tally import merge
from burnish.config.actor import AGGREGATIONS, OWN_AGGREGATION, USED_BY_LOSS, ActorConfig, PolicyLossConfig
from burnish.errors import BurnishError, ConfigError
from tests.algorithms.helpers import (
    assert_close,
    assert_same_in_parts,
    counts_of,
    gradient,
    policy_batch,
    take,
    with_junk,
)
from tests.recorded import each, golden

RECORDED = golden("policy_losses")
CASES = [case for case in RECORDED if case["params"].get("loss") != "bypass_mode"]  # that: test_correction.py
READ = ("log_prob", "old_log_prob", "advantages", "rollout_is_weights")
NAMES = tuple(losses.TABLE.entries)
CHOOSING = ("clip_cov", "kl_cov")
assert {case["params"].get("loss", "reinforce") for case in CASES} == set(NAMES)
assert (len(CASES), len(RECORDED)) == (324, 338)
EVERY = pytest.mark.parametrize("name", NAMES)
MODES = pytest.mark.parametrize("mode", AGGREGATIONS)


def of_tokens(**policy_loss):
    """Numbers with which both losses that choose tokens choose several of a small batch."""
    return PolicyLossConfig(**{"clip_cov_ratio": 0.3, "clip_cov_lb": -0.5, "kl_cov_ratio": 0.2, **policy_loss})


def with_choice(name, inputs, seed=0):
    """The inputs of a mini-batch, with what the loss chooses from it."""
    choose = losses.token_choice(name)
    random = torch.Generator().manual_seed(seed)
    return inputs if choose is None else dataclasses.replace(inputs, chosen=choose(inputs, random))


def batch(name, seed=0, dtype=torch.float64, stretch=1.0, empty=(), **config):
    """A mini-batch for a loss, complete; `stretch` multiplies the log-ratios, `empty` rows have no policy token."""
    inputs = policy_batch(seed, dtype, **{"policy_loss": of_tokens(), **config})
    mask = inputs.response_mask.clone()
    mask[list(empty)] = 0
    log_prob = inputs.old_log_prob + stretch * (inputs.log_prob - inputs.old_log_prob)
    inputs = dataclasses.replace(inputs, response_mask=mask, counts=LossCounts.of(mask), log_prob=log_prob)
    return with_choice(name, inputs)


def recorded(case):
    """A recorded case as (name of the loss, its inputs, number of devices its loss was multiplied by)."""
    params, around = case["params"], case["params"]["global_batch_info"]
    name = params.get("loss", "reinforce")
    tensors = {key: torch.tensor(values) for key, values in case["inputs"].items()}
    if "rollout_log_prob" in tensors:
        tensors["old_log_prob"] = tensors.pop("rollout_log_prob")
    clip, mask = params.get("clip_ratio", 0.2), tensors["response_mask"]
    own = {key: value for key, value in params.get("policy_loss", {}).items() if value is not None}
    own |= {key: params[key] for key in ("tau_pos", "tau_neg") if key in params}
    own = {"dro_beta": 0.0, **own}  # the reference has no default
    config = ActorConfig(
        clip_ratio_low=clip if params.get("clip_ratio_low") is None else params["clip_ratio_low"],  # as finalise does
        clip_ratio_high=clip if params.get("clip_ratio_high") is None else params["clip_ratio_high"],
        clip_ratio_c=params.get("clip_ratio_c", 3.0),
        loss_agg_mode=params["loss_agg_mode"],
        loss_scale_factor=around.get("loss_scale_factor"),
        policy_loss=PolicyLossConfig(**own),
    )
    counts, devices = counts_of(around, mask), around.get("dp_size", 1)  # the reference undoes averaging over devices
    if name == "geo_mean":  # the reference counts rows without tokens, and neither the mini-batch nor devices
        counts, devices = LossCounts(counts.tokens, len(mask)), 1
    inputs = PolicyLossInputs(**tensors, config=config, counts=counts, max_response_length=mask.shape[1])
    return name, with_choice(name, inputs, params.get("torch_seed", 0)), devices


@each(CASES)
def test_golden(case):
    name, inputs, devices = recorded(case)
    loss_function, expected = losses.policy_loss(name), case["expected"]
    if "raises" in expected:
        with pytest.raises(ConfigError, match=r"clip_ratio_c=1.0 must be above 1|dro_beta=0.0 must be above 0"):
            loss_function(inputs)
        return
    loss, metrics, slope = gradient(loss_function, inputs, "log_prob")
    assert_close(loss * devices, expected["loss"])
    assert_close(slope * devices, expected["grad_log_prob"])
    want = {"actor/pg_loss": loss.item(), **expected["metrics"]}
    if name == "gpg":  # the reference reports nothing
        moved = (inputs.old_log_prob - inputs.log_prob)[inputs.response_mask.bool()].mean()
        want["actor/ppo_kl"] = moved.item()
    assert_close(merge([metrics]), want)


ROWS = range(6)
cuts = st.permutations(ROWS).flatmap(
    lambda rows: st.lists(st.integers(0, 6), min_size=2, max_size=2).map(
        lambda at: [rows[: min(at)], rows[min(at) : max(at)], rows[max(at) :]]
    )
)
batches = {
    "seed": st.integers(0, 10**6),
    "stretch": st.sampled_from([1.0, 40.0]),  # 40: beyond every bound on a log-ratio
    "empty": st.sets(st.sampled_from(ROWS), max_size=6),
}


@EVERY
@MODES
@given(parts=cuts, **batches)
@settings(max_examples=15, deadline=None)
def test_any_cut_gives_the_same_loss_gradient_and_metrics(name, mode, parts, seed, stretch, empty):
    inputs = batch(name, seed, stretch=stretch, empty=empty, loss_agg_mode=mode)
    assert_same_in_parts(losses.policy_loss(name), inputs, "log_prob", parts)


junk = st.one_of(st.sampled_from([math.nan, math.inf, -math.inf, 1e30, -1e30, 0.0]), st.floats(-50, 50))
everywhere = st.tuples(junk, junk, junk, junk).map(lambda values: dict(zip(READ, values, strict=True)))
alone = st.tuples(st.sampled_from(READ), junk).map(lambda pair: dict([pair]))


@EVERY
@MODES
@given(seed=st.integers(0, 10**6), replaced=st.one_of(alone, everywhere), picked=st.booleans())
@settings(max_examples=20, deadline=None)
def test_observation_tokens_change_nothing(name, mode, seed, replaced, picked):
    inputs = batch(name, seed, torch.float32, loss_agg_mode=mode)
    changed = with_choice(name, with_junk(inputs, replaced))
    if name in CHOOSING:
        assert torch.equal(covariance(changed), covariance(inputs)) and torch.equal(changed.chosen, inputs.chosen)
        assert not inputs.chosen[inputs.response_mask == 0].any()
        changed = with_junk(changed, {"chosen": picked})
    loss, metrics, slope = gradient(losses.policy_loss(name), inputs, "log_prob")
    loss_after, metrics_after, slope_after = gradient(losses.policy_loss(name), changed, "log_prob")
    assert torch.equal(loss_after, loss) and torch.equal(slope_after, slope)
    assert merge([metrics_after]) == merge([metrics])
    assert slope.any() and not slope[inputs.response_mask == 0].any()


def without_advantage(inputs, row):
    advantages = inputs.advantages.clone()
    advantages[row] = torch.where(inputs.response_mask[row].bool(), 0.0, advantages[row])
    return dataclasses.replace(inputs, advantages=advantages)


@pytest.mark.parametrize("name", [name for name in NAMES if losses.needs_of(name).skips_zero_advantage])
@MODES
@given(row=st.sampled_from(ROWS), **batches)
@settings(max_examples=10, deadline=None)
def test_a_row_without_advantage_can_be_skipped(name, mode, row, seed, stretch, empty):
    inputs = without_advantage(batch(name, seed, stretch=stretch, empty=empty, loss_agg_mode=mode), row)
    loss, _, slope = gradient(losses.policy_loss(name), inputs, "log_prob")
    assert not slope[row].any()
    rest = [other for other in ROWS if other != row]
    loss_of_rest, _, slope_of_rest = gradient(losses.policy_loss(name), take(inputs, rest), "log_prob")
    torch.testing.assert_close(loss_of_rest, loss)
    torch.testing.assert_close(slope_of_rest, slope[rest])


def test_the_other_losses_need_the_rows_without_advantage():
    assert [name for name in NAMES if not losses.needs_of(name).skips_zero_advantage] == ["clip_cov", "kl_cov", "dro"]
    inputs, row, rest = without_advantage(batch("dro"), 0), 0, [1, 2, 3, 4, 5]
    assert gradient(losses.policy_loss("dro"), inputs, "log_prob")[2][row].any()  # drawn back to the old policy
    penalised = dataclasses.replace(inputs, chosen=torch.ones_like(inputs.response_mask, dtype=torch.bool))
    assert gradient(losses.policy_loss("kl_cov"), penalised, "log_prob")[2][row].any()
    for name in CHOOSING:  # the row takes part in the comparison, whatever its own gradient is
        assert not torch.equal(with_choice(name, take(inputs, rest)).chosen, with_choice(name, inputs).chosen[rest])


@EVERY
@pytest.mark.parametrize("distance", [200.0, -200.0])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_far_from_the_old_policy_everything_stays_finite(name, distance, sign):
    inputs = policy_batch(policy_loss=of_tokens())
    far = {"log_prob": inputs.old_log_prob + distance, "advantages": sign * inputs.advantages.abs()}
    inputs = with_choice(name, dataclasses.replace(inputs, **far))
    loss, metrics, slope = gradient(losses.policy_loss(name), inputs, "log_prob")
    assert loss.isfinite() and slope.isfinite().all()
    assert name != "vanilla" or not slope.any(), "it stops beyond ±20 and at the second clip"
    assert all(math.isfinite(value) for value in merge([metrics]).values())


BOUND = {"vanilla": 20, "gspo": 10, "geo_mean": 30, "cispo": 20, "dppo_tv": 20, "dppo_kl": 20, "clip_cov": 20,
         "kl_cov": 20}  # fmt: skip
REPORTED = {"vanilla": 20, "cispo": 20, "sapo": 20, "dppo_tv": 20, "dppo_kl": 20}  # by the others: as it is


@EVERY
@pytest.mark.parametrize("distance", [50.0, -50.0])
def test_log_ratios_are_held_at_their_bound(name, distance):
    """With A = -1 and no clip the loss of each token is its ratio, times log π = -1 where that is a factor."""
    inputs = policy_batch(dtype=torch.float64, clip_ratio_high=1e12, clip_ratio_c=1e12)
    near = torch.full_like(inputs.log_prob, -1)
    given = {"log_prob": near, "old_log_prob": near - distance, "advantages": near}
    none = torch.zeros_like(inputs.response_mask, dtype=torch.bool)
    inputs = dataclasses.replace(inputs, **given, rollout_is_weights=None, chosen=none)
    loss, metrics, _ = gradient(losses.policy_loss(name), inputs, "log_prob")
    assert abs(merge([metrics])["actor/ppo_kl"]) == pytest.approx(REPORTED.get(name, 50))
    if name in BOUND and distance > 0:
        sign = -1 if name in ("cispo", "dppo_tv", "dppo_kl") else 1
        assert loss.item() == pytest.approx(sign * math.exp(BOUND[name]))


@pytest.mark.parametrize("name", ["dro", "kl_cov"])
def test_a_penalty_draws_back_from_any_distance(name):
    inputs = policy_batch(policy_loss=of_tokens(kl_cov_ratio=1.0))
    far = {"log_prob": inputs.old_log_prob + 200, "advantages": torch.zeros_like(inputs.advantages)}
    inputs = with_choice(name, dataclasses.replace(inputs, **far))
    slope = gradient(losses.policy_loss(name), inputs, "log_prob")[2]
    assert (slope[inputs.response_mask.bool()] > 0).all()


@EVERY
def test_importance_weights_multiply_the_loss_which_is_aggregated_as_configured(name):
    inputs = batch(name)
    plain = dataclasses.replace(inputs, rollout_is_weights=None)
    double = dataclasses.replace(inputs, rollout_is_weights=torch.full_like(inputs.log_prob, 2.0))
    loss, metrics, slope = gradient(losses.policy_loss(name), plain, "log_prob")
    weighted_loss, weighted_metrics, weighted_slope = gradient(losses.policy_loss(name), double, "log_prob")
    torch.testing.assert_close(weighted_loss, 2 * loss)
    torch.testing.assert_close(weighted_slope, 2 * slope)
    assert merge([weighted_metrics]) == pytest.approx({**merge([metrics]), "actor/pg_loss": 2 * loss.item()})
    # The aggregation is the configured one unless the loss has its own.
    found = {losses.policy_loss(name)(batch(name, loss_agg_mode=mode))[0].item() for mode in AGGREGATIONS}
    assert len(found) == (1 if name in OWN_AGGREGATION else len(AGGREGATIONS))


@EVERY
@pytest.mark.parametrize("key", [key for key in USED_BY_LOSS if key != "clip_ratio"])  # which finalise resolves
def test_a_loss_reads_its_declared_keys(name, key):
    def result(value):
        section, _, own = key.rpartition(".")
        config = {section: of_tokens(**{own: value})} if section else {key: value}
        return losses.policy_loss(name)(batch(name, stretch=4.0, **config))[0].item()

    one, other = (1.1, 4.0) if key == "clip_ratio_c" else (0.1, 0.9)
    assert (result(one) != result(other)) == (name in USED_BY_LOSS[key])


def test_gspo_is_the_papers_loss_where_a_response_has_one_advantage():
    inputs = batch("gspo", empty=[2], clip_ratio_low=0.1, clip_ratio_high=0.1)
    inputs = dataclasses.replace(
        inputs, advantages=inputs.advantages[:, :1].expand_as(inputs.advantages), rollout_is_weights=None
    )

    def of_responses(inputs):
        gained = []
        for row in (row for row in ROWS if inputs.response_mask[row].any()):
            inside, advantage = inputs.response_mask[row].bool(), inputs.advantages[row, 0]
            ratio = (inputs.log_prob[row][inside] - inputs.old_log_prob[row][inside]).mean().exp()
            gained.append(torch.minimum(advantage * ratio, advantage * ratio.clamp(0.9, 1.1)))
        return -torch.stack(gained).mean(), {}

    loss, metrics, slope = gradient(losses.policy_loss("gspo"), inputs, "log_prob")
    want, _, slope_wanted = gradient(of_responses, inputs, "log_prob")
    torch.testing.assert_close(loss, want)
    torch.testing.assert_close(slope, slope_wanted)
    assert 0 < merge([metrics])["actor/pg_clipfrac"] < 1


@EVERY
def test_rows_without_policy_tokens_do_not_count(name):
    inputs = batch(name, empty=[0, 4])
    kept = take(inputs, [1, 2, 3, 5])
    loss, metrics = losses.policy_loss(name)(dataclasses.replace(kept, counts=LossCounts.of(kept.response_mask)))
    with_empty, metrics_with_empty = losses.policy_loss(name)(inputs)
    torch.testing.assert_close(with_empty, loss)
    assert merge([metrics_with_empty]) == pytest.approx(merge([metrics]))
    nothing = batch(name, empty=ROWS)
    assert nothing.chosen is None or not nothing.chosen.any()
    loss, metrics, slope = gradient(losses.policy_loss(name), nothing, "log_prob")
    assert loss == 0 and not slope.any() and set(merge([metrics]).values()) == {0.0}


def test_a_token_of_weight_zero_is_not_in_the_geometric_mean():
    """The same loss and gradient as without the token; nothing from a response that has no other."""
    inputs, geo_mean = batch("geo_mean", clip_ratio_low=0.4, clip_ratio_high=0.4), losses.policy_loss("geo_mean")
    inside = inputs.response_mask.bool()
    rejected = inside & (inside.cumsum(-1) == 1)  # the first policy token of each row
    rejected[2] = inside[2]
    assert (inside & ~rejected).any(-1).sum() == len(ROWS) - 1
    weights = inputs.rollout_is_weights.masked_fill(rejected, 0)
    loss, _, slope = gradient(geo_mean, dataclasses.replace(inputs, rollout_is_weights=weights), "log_prob")
    without = dataclasses.replace(inputs, response_mask=(inside & ~rejected).long())  # the counts stay
    wanted, _, slope_wanted = gradient(geo_mean, without, "log_prob")
    torch.testing.assert_close(loss, wanted)
    torch.testing.assert_close(slope, slope_wanted)
    assert not slope[rejected].any() and slope[inside & ~rejected].any()


@pytest.mark.parametrize(("bound", "outside"), [(8.1, 0), (7.9, 1)])
def test_dppo_distinguishes_probabilities_close_to_one(bound, outside):
    """From p = ½ to 1 - 2e-8, which float32 rounds to 1: ½ log(½ / 1) + ½ log(½ / (2e-8 + 1e-8)) = 7.97."""
    inputs = policy_batch(clip_ratio_high=bound)
    near = {
        "log_prob": torch.full_like(inputs.log_prob, -2e-8),
        "old_log_prob": torch.full_like(inputs.log_prob, math.log(0.5)),
        "advantages": torch.ones_like(inputs.advantages),
    }
    _, metrics = losses.policy_loss("dppo_kl")(dataclasses.replace(inputs, **near))
    assert merge([metrics])["actor/pg_clipfrac"] == outside
    certain = {"old_log_prob": torch.zeros_like(inputs.log_prob), "log_prob": torch.full_like(inputs.log_prob, 1e-7)}
    for name in ("dppo_tv", "dppo_kl"):  # a log-prob that rounding left above 0 is trusted
        _, metrics = losses.policy_loss(name)(dataclasses.replace(policy_batch(), **certain))
        assert merge([metrics])["actor/pg_clipfrac"] == 0


@pytest.mark.parametrize("name", CHOOSING)
def test_a_missing_choice_is_named_and_a_draw_goes_by_its_seed(name):
    inputs = batch(name, policy_loss=of_tokens(clip_cov_ratio=0.1))
    drawn = {tuple(with_choice(name, inputs, seed).chosen.flatten().tolist()) for seed in range(5)}
    assert (len(drawn) > 1) == (name == "clip_cov")
    with pytest.raises(BurnishError, match=rf"{name} needs its choice of tokens.*token_choice\('{name}'\)"):
        losses.policy_loss(name)(dataclasses.replace(batch(name), chosen=None))


@given(seed=st.integers(0, 10**6), draw=st.integers(0, 10**6), ratio=st.sampled_from([0.0, 0.1, 0.5, 1.0]))
@settings(max_examples=30, deadline=None)
def test_clip_cov_draws_from_unclipped_tokens_between_the_bounds(seed, draw, ratio):
    config = of_tokens(clip_cov_ratio=ratio, clip_cov_lb=0.1, clip_cov_ub=0.8)
    inputs = with_choice("clip_cov", batch("clip_cov", seed, policy_loss=config), draw)
    inside, cov = inputs.response_mask.bool(), covariance(inputs)
    ratios, up = (inputs.log_prob - inputs.old_log_prob).exp(), inputs.advantages > 0
    clipped = torch.where(up, ratios > 1.2, ratios < 0.8)
    candidates = inside & (cov > 0.1) & (cov < 0.8) & ~clipped
    assert not (inputs.chosen & ~candidates).any()
    assert inputs.chosen.sum() == min(candidates.sum(), max(1, int(ratio * inputs.counts.tokens)))
    again = with_choice("clip_cov", inputs, draw)
    assert torch.equal(again.chosen, inputs.chosen)


@pytest.mark.parametrize("key", ["log_prob", "advantages"])
def test_kl_cov_takes_the_first_of_equal_tokens(key):
    """Equal values are exactly their mean, also 0.3 in float32, whatever the other factor is."""
    inputs = batch("kl_cov", dtype=torch.float32)
    flat = {key: torch.full_like(inputs.log_prob, 0.3)}
    inputs = with_choice("kl_cov", dataclasses.replace(inputs, **flat))
    picked = inputs.chosen[inputs.response_mask.bool()]
    assert picked.any() and picked.tolist() == sorted(picked.tolist(), reverse=True)
