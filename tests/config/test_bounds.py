"""The bounds of the train/rollout correction: what can be written, and what the complaint says."""

import math

import pytest

from burnish.config.algorithm import RolloutCorrectionConfig
from burnish.config.bounds import REJECTIONS, Rejection, WeightBounds, rejections, weight_bounds
from burnish.errors import ConfigError

SECTION = "algorithm.rollout_correction"
HALF, TWO = math.log(0.5), math.log(2)


@pytest.mark.parametrize(
    ("written", "bounds"),
    [
        (2.0, WeightBounds(None, 2.0)),
        (3, WeightBounds(None, 3.0)),
        ("3", WeightBounds(None, 3.0)),
        ("1", WeightBounds(None, 1.0)),
        ("0.5_2.0", WeightBounds(0.5, 2.0)),
        ("0.5_2", WeightBounds(0.5, 2.0)),
        (" 1e-1_5 ", WeightBounds(0.1, 5.0)),
    ],
)
def test_a_number_caps_weights_and_two_are_a_band(written, bounds):
    assert weight_bounds(RolloutCorrectionConfig(rollout_is_threshold=written)) == bounds


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (-1.0, "bounds are finite and more than 0"),
        (0, "bounds are finite and more than 0"),
        ("nan", "bounds are finite and more than 0"),
        ("inf", "bounds are finite and more than 0"),
        ("0_2", "bounds are finite and more than 0"),
        ("3_2", "the lower bound 3 is not below the upper bound 2; write lower_upper"),
        ("2_2", "the lower bound 2 is not below the upper bound 2"),
        ("0.2_0.5", "0.2 to 0.5 leaves out 1, where both policies agree"),
        ("1.5_2.5", "1.5 to 2.5 leaves out 1"),
        (0.52, "a cap below 1 would cut the weight of tokens both policies agree on; for a band write lower_upper"),
        ("two", "'two' is neither a number nor lower_upper, as in 0.5_2.0"),
        ("0.5-2.0", "'0.5-2.0' is neither a number nor lower_upper"),
        ("1_2_3", "'1_2_3' is neither a number nor lower_upper"),
        ("2,3", "'2,3' is neither a number nor lower_upper"),
        ("", "'' is neither a number nor lower_upper"),
        (True, "'true' is neither a number nor lower_upper"),
        (None, "'null' is neither a number nor lower_upper"),
    ],
)
def test_weight_bounds_that_cannot_be_are_named(written, said):
    with pytest.raises(ConfigError) as error:
        weight_bounds(RolloutCorrectionConfig(rollout_is_threshold=written))
    shown = {True: "true", None: "null"}.get(written, written)
    assert str(error.value).startswith(f"{SECTION}.rollout_is_threshold={shown}: ")
    assert said in str(error.value)


def both(rollout_rs, threshold):
    return rejections(RolloutCorrectionConfig(rollout_rs=rollout_rs, rollout_rs_threshold=threshold))


@pytest.mark.parametrize(
    ("rollout_rs", "threshold", "want"),
    [
        (None, None, ()),
        (None, "1.5", ()),
        ("token_k1", "0.5_2.0", (Rejection("token_k1", "token", "k1", HALF, TWO),)),
        ("token_k1", 2.0, (Rejection("token_k1", "token", "k1", HALF, TWO),)),
        ("seq_max_k3", 0.1, (Rejection("seq_max_k3", "seq_max", "k3", 0.0, 0.1),)),
        (
            "seq_sum_k1, seq_mean_k2 ,token_k3",
            "0.5_2.0, 0.3,0.08 ",
            (
                Rejection("seq_sum_k1", "seq_sum", "k1", HALF, TWO),
                Rejection("seq_mean_k2", "seq_mean", "k2", 0.0, 0.3),
                Rejection("token_k3", "token", "k3", 0.0, 0.08),
            ),
        ),
        (
            ["token_k1", "token_k2"],
            ["0.5_2.0", 0.25],
            (Rejection("token_k1", "token", "k1", HALF, TWO), Rejection("token_k2", "token", "k2", 0.0, 0.25)),
        ),
        (
            "token_k2,token_k3",
            "0.25",
            (Rejection("token_k2", "token", "k2", 0.0, 0.25), Rejection("token_k3", "token", "k3", 0.0, 0.25)),
        ),
        ("token_k1,token_k1", "0.5_2.0", (Rejection("token_k1", "token", "k1", HALF, TWO),)),
        ("token_k1,token_k1", "0.5_2.0,2", (Rejection("token_k1", "token", "k1", HALF, TWO),)),
    ],
)
def test_masks_get_their_bounds(rollout_rs, threshold, want):
    assert both(rollout_rs, threshold) == want


def test_every_mask_there_is_can_be_chosen_at_once():
    bounds = [1.5 if name.endswith("k1") else 0.1 for name in REJECTIONS]
    made = both(list(REJECTIONS), bounds)
    assert len(made) == 11
    assert [f"{one.level}_{one.kind}" for one in made] == [one.name for one in made] == list(REJECTIONS)


@pytest.mark.parametrize(
    ("rollout_rs", "threshold", "key", "said"),
    [
        (
            "token_k4",
            "1",
            "rollout_rs=token_k4",
            "there is no 'token_k4'; did you mean 'token_k1'? There is token_k1, ",
        ),
        ("seq_max_k1", "2", "rollout_rs=seq_max_k1", "there is no 'seq_max_k1'; did you mean 'seq_max_k2'?"),
        ("geometric", "2", "rollout_rs=geometric", "there is no 'geometric'; There is token_k1"),
        ("token_k1,", "2", "rollout_rs=token_k1,", "there is no ''; There is"),
        ("token_k1", None, "rollout_rs=token_k1", f"set {SECTION}.rollout_rs_threshold with it"),
        ("token_k2", "0.1_0.2", "rollout_rs_threshold=0.1_0.2", "token_k2 is never negative and takes one upper bound"),
        ("token_k1", "2_0.5", "rollout_rs_threshold=2_0.5", "the lower bound 2 is not below the upper bound 0.5"),
        ("token_k1", "1.1_2", "rollout_rs_threshold=1.1_2", "leaves out 1, where both policies agree"),
        (
            "token_k1",
            0.52,
            "rollout_rs_threshold=0.52",
            "a single bound u of token_k1 means 1/u..u and must be greater",
        ),
        ("token_k1", 1, "rollout_rs_threshold=1", "must be greater than 1; or write lower_upper"),
        ("token_k3", "-0.1", "rollout_rs_threshold=-0.1", "bounds are finite and more than 0"),
        ("token_k3", "high", "rollout_rs_threshold=high", "'high' is neither a number nor lower_upper"),
        ("token_k3", True, "rollout_rs_threshold=true", "'true' is neither a number nor lower_upper"),
        (
            "token_k1,token_k2,token_k3",
            "1.1,0.2",
            "rollout_rs_threshold=1.1,0.2",
            "2 bounds for the 3 masks of rollout_rs; give one for all or one each",
        ),
        (["token_k1"], ["2", "3"], "rollout_rs_threshold=[2,3]", "2 bounds for the 1 masks"),
        ("token_k2,token_k2", "0.1,0.2", "rollout_rs_threshold=0.1,0.2", "two bounds for token_k2; keep one"),
    ],
)
def test_masks_that_cannot_be_are_named(rollout_rs, threshold, key, said):
    with pytest.raises(ConfigError) as error:
        both(rollout_rs, threshold)
    assert str(error.value).startswith(f"{SECTION}.{key}: ")
    assert said in str(error.value)
