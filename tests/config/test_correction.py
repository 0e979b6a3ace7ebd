"""The train/rollout correction: its bounds, settings that switch one another on, do nothing or count twice, and
generation that runs ahead."""

import json
import math
import re
from pathlib import Path

import pytest

from burnish.algorithms.needs import needs_of
from burnish.config import Needs
from burnish.config.algorithm import RolloutCorrectionConfig
from burnish.config.bounds import REJECTIONS, Rejection, WeightBounds, rejections, weight_bounds
from burnish.config.rules import Given
from burnish.config.rules.correction import correction
from burnish.errors import ConfigError, NotAvailable
from tests.config.conftest import refused, told

SECTION = S = "algorithm.rollout_correction"
HALF, TWO = math.log(0.5), math.log(2)


@pytest.mark.parametrize(
    ("written", "bounds"),
    [
        (2.0, WeightBounds(None, 2.0)),
        ("1", WeightBounds(None, 1.0)),
        ("0.5_2.0", WeightBounds(0.5, 2.0)),
        (" 1e-1_5 ", WeightBounds(0.1, 5.0)),
    ],
)
def test_a_number_caps_weights_and_two_are_a_band(written, bounds):
    assert weight_bounds(RolloutCorrectionConfig(rollout_is_threshold=written)) == bounds


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (-1.0, "bounds are finite and more than 0"),
        ("nan", "bounds are finite and more than 0"),
        ("inf", "bounds are finite and more than 0"),
        ("0_2", "bounds are finite and more than 0"),
        ("3_2", "the lower bound 3 is not below the upper bound 2; write lower_upper"),
        ("2_2", "the lower bound 2 is not below the upper bound 2"),
        ("0.2_0.5", "0.2 to 0.5 leaves out 1, where both policies agree"),
        ("1.5_2.5", "1.5 to 2.5 leaves out 1"),
        (0.52, "a cap below 1 would cut the weight of tokens both policies agree on; for a band write lower_upper"),
        ("two", "'two' is neither a number nor lower_upper, as in 0.5_2.0"),
        ("1_2_3", "'1_2_3' is neither a number nor lower_upper"),
        ("", "'' is neither a number nor lower_upper"),
        (True, "'true' is neither a number nor lower_upper"),
        (None, "'null' is neither a number nor lower_upper"),
    ],
)
def test_weight_bounds_that_cannot_be_are_named(written, said):
    shown = {True: "true", None: "null"}.get(written, written)
    words = f"^{re.escape(f'{SECTION}.rollout_is_threshold={shown}: ')}.*{re.escape(said)}"
    refused(words, weight_bounds, RolloutCorrectionConfig(rollout_is_threshold=written))


def both(rollout_rs, threshold):
    return rejections(RolloutCorrectionConfig(rollout_rs=rollout_rs, rollout_rs_threshold=threshold))


def mask(name, lower, upper):
    return Rejection(name, *name.rsplit("_", 1), lower, upper)


BAND, SMALL = mask("token_k1", HALF, TWO), mask("token_k2", 0.0, 0.25)


@pytest.mark.parametrize(
    ("rollout_rs", "threshold", "want"),
    [
        (None, None, ()),
        (None, "1.5", ()),
        ("token_k1", "0.5_2.0", (BAND,)),
        ("token_k1", 2.0, (BAND,)),
        ("seq_max_k3", 0.1, (mask("seq_max_k3", 0.0, 0.1),)),
        (
            "seq_sum_k1, seq_mean_k2 ,token_k3",
            "0.5_2.0, 0.3,0.08 ",
            (mask("seq_sum_k1", HALF, TWO), mask("seq_mean_k2", 0.0, 0.3), mask("token_k3", 0.0, 0.08)),
        ),
        (["token_k1", "token_k2"], ["0.5_2.0", 0.25], (BAND, SMALL)),
        ("token_k2,token_k3", "0.25", (SMALL, mask("token_k3", 0.0, 0.25))),
        ("token_k1,token_k1", "0.5_2.0,2", (BAND,)),
    ],
)
def test_masks_get_their_bounds(rollout_rs, threshold, want):
    assert both(rollout_rs, threshold) == want


def test_every_mask_there_is_can_be_chosen_at_once():
    made = both(list(REJECTIONS), [1.5 if name.endswith("k1") else 0.1 for name in REJECTIONS])
    assert len(made) == 11
    assert [f"{one.level}_{one.kind}" for one in made] == [one.name for one in made] == list(REJECTIONS)


@pytest.mark.parametrize(
    ("rollout_rs", "threshold", "key", "said"),
    [
        ("token_k4", "1", "=token_k4", "there is no 'token_k4'; did you mean 'token_k1'? There is token_k1,"),
        ("seq_max_k1", "2", "=seq_max_k1", "there is no 'seq_max_k1'; did you mean 'seq_max_k2'?"),
        ("geometric", "2", "=geometric", "there is no 'geometric'; There is token_k1"),
        ("token_k1,", "2", "=token_k1,", "there is no ''; There is"),
        ("token_k1", None, "=token_k1", f"set {SECTION}.rollout_rs_threshold with it"),
        ("token_k2", "0.1_0.2", "_threshold=0.1_0.2", "token_k2 is never negative and takes one upper bound"),
        ("token_k1", "2_0.5", "_threshold=2_0.5", "the lower bound 2 is not below the upper bound 0.5"),
        ("token_k1", "1.1_2", "_threshold=1.1_2", "leaves out 1, where both policies agree"),
        ("token_k1", 0.52, "_threshold=0.52", "a single bound u of token_k1 means 1/u..u and must be greater than 1"),
        ("token_k1", 1, "_threshold=1", "must be greater than 1; or write lower_upper"),
        ("token_k3", "-0.1", "_threshold=-0.1", "bounds are finite and more than 0"),
        ("token_k3", "high", "_threshold=high", "'high' is neither a number nor lower_upper"),
        ("token_k1,token_k2,token_k3", "1.1,0.2", "_threshold=1.1,0.2", "2 bounds for the 3 masks of rollout_rs; give"),
        (["token_k1"], ["2", "3"], "_threshold=[2,3]", "for the 1 masks of rollout_rs; give one for all or one each"),
        ("token_k2,token_k2", "0.1,0.2", "_threshold=0.1,0.2", "two bounds for token_k2; keep one"),
    ],
)
def test_masks_that_cannot_be_are_named(rollout_rs, threshold, key, said):
    words = f"^{re.escape(f'{SECTION}.rollout_rs{key}: ')}.*{re.escape(said)}"
    refused(words, both, rollout_rs, threshold)


LOSS_MODE = "actor_rollout_ref.actor.policy_loss.loss_mode"
LOG_PROBS = "actor_rollout_ref.rollout.calculate_log_probs"
RATIO, PLAIN = Needs(ratio=True), Needs()
BYPASS = {"bypass_mode": True}
REJECT = {"rollout_rs": "token_k1", "rollout_rs_threshold": 1.5}
GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "rollout_correction.json").read_text())
RECORDED = [case for case in GOLDEN if "raises" in case["expected"] and case["name"] != "all_masked_raises"]


@pytest.fixture
def settle(make):
    """Build from keys (those of the section by their last name), apply the rule; configuration and notices."""

    def run(keys=None, needs=RATIO):
        built = make({name if "." in name else f"{SECTION}.{name}": value for name, value in (keys or {}).items()})
        given = Given(built.explicit, needs)
        correction(built.config, given)
        return built.config, given.notices

    return run


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: case["name"])
def test_what_the_reference_refuses_in_a_step_is_refused_before_the_run(settle, case):
    keys = {name: value for name, value in case["params"].items() if name != "function"}
    refused(f"{SECTION}.", settle, keys)


ON, AUTO, OFF, MEASURE = ({"mode": mode} for mode in ("on", "auto", "off", "measure"))
TOKEN, SEQUENCE = {"rollout_is": "token"}, {"rollout_is": "sequence"}
GAP, SILENT = {"gap_threshold": 0.5}, {LOG_PROBS: False}
REINFORCE, CLIP = BYPASS | {"loss_type": "reinforce"}, BYPASS | {"loss_type": "ppo_clip"}
BOUNDS = {"rollout_is_threshold": 3.0, "rollout_is_batch_normalize": True}
CHOSEN = ("rollout_is=sequence", "rollout_is=token", "rollout_rs=token_k1")
SWITCHED = {name: f"{S}.mode=on, because {S}.{name} is set" for name in CHOSEN}
WEIGHED = {m: f"{S}.rollout_is=token, because {S}.mode={m} and no correction was chosen" for m in ("on", "auto")}
THRESHOLD = {m: f"unused: {S}.gap_threshold ({S}.mode={m} compares the gap with nothing)" for m in ("on", "off")}
LOSS = f"{LOSS_MODE}=reinforce, because {S}.loss_type=reinforce is set"
NO_GAP = f"({LOG_PROBS}=false: there is no gap to measure)"


@pytest.mark.parametrize(
    ("keys", "decided", "notices"),  # mode, rollout_is and loss; what is said
    [
        ({}, "measure None vanilla", []),
        (SEQUENCE, "on sequence vanilla", [SWITCHED["rollout_is=sequence"]]),
        (SEQUENCE | AUTO, "auto sequence vanilla", []),
        (REJECT, "on None vanilla", [SWITCHED["rollout_rs=token_k1"]]),
        (REJECT | ON, "on None vanilla", []),
        (REJECT | AUTO, "auto None vanilla", []),
        (ON | BOUNDS, "on token vanilla", [WEIGHED["on"]]),
        (
            BOUNDS | {"rollout_rs_threshold": 1.5},
            "measure None vanilla",
            [
                f"unused: {S}.rollout_is_threshold, {S}.rollout_is_batch_normalize ({S}.rollout_is is not set)",
                f"unused: {S}.rollout_rs_threshold ({S}.rollout_rs is not set)",
            ],
        ),
        (ON | GAP, "on token vanilla", [WEIGHED["on"], THRESHOLD["on"]]),
        (OFF | GAP, "off None vanilla", [THRESHOLD["off"]]),
        (TOKEN | GAP, "on token vanilla", [SWITCHED["rollout_is=token"], THRESHOLD["on"]]),
        (MEASURE | GAP, "measure None vanilla", []),
        (AUTO | GAP, "auto token vanilla", [WEIGHED["auto"]]),
        # without log-probs nothing is measured, and nothing asked for it
        (SILENT, "measure None vanilla", []),
        (SILENT | OFF, "off None vanilla", []),
        (SILENT | MEASURE, "measure None vanilla", [f"unused: {S}.mode {NO_GAP}"]),
        (SILENT | GAP, "measure None vanilla", [f"unused: {S}.gap_threshold {NO_GAP}"]),
        (BYPASS | MEASURE, "measure None vanilla", []),
        (BYPASS | OFF, "off None vanilla", []),
        (BYPASS | REJECT, "on None vanilla", [SWITCHED["rollout_rs=token_k1"]]),
        (CLIP, "measure None vanilla", []),
        (REINFORCE | MEASURE, "measure None reinforce", [LOSS]),
        (REINFORCE | ON, "on token reinforce", [LOSS, WEIGHED["on"]]),
        (REINFORCE | TOKEN, "on token reinforce", [LOSS, SWITCHED["rollout_is=token"]]),
        (REINFORCE | {LOSS_MODE: "reinforce"}, "measure None reinforce", []),
        (BYPASS | TOKEN | {LOSS_MODE: "gpg"}, "on token gpg", [SWITCHED["rollout_is=token"]]),
        (BYPASS | ON | {LOSS_MODE: "gpg"}, "on token gpg", [WEIGHED["on"]]),
    ],
)
def test_what_is_switched_on_and_what_is_said(settle, keys, decided, notices):
    config, said = settle(keys, PLAIN if keys.get(LOSS_MODE) == "gpg" else RATIO)
    section, loss = config.algorithm.rollout_correction, config.actor_rollout_ref.actor.policy_loss.loss_mode
    assert f"{section.mode} {section.rollout_is} {loss}" == decided and said == notices


NOTHING = "the correction would do nothing; drop one of the two"
TWICE = f"the ratio of {LOSS_MODE}=vanilla is the importance weight already, and would count twice"
KEEP_ONE = "and that is set to gspo; keep one"


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (SEQUENCE | OFF, f"{S}.rollout_is=sequence with {S}.mode=off: {NOTHING}"),
        (REJECT | OFF, f"{S}.rollout_rs=token_k1 with {S}.mode=off: {NOTHING}"),
        (SILENT | AUTO, f"{LOG_PROBS}=false: {S}.mode=auto reads the log-probs of the rollout; leave it out"),
        (SILENT | TOKEN, f"{LOG_PROBS}=false: {S}.mode=on reads the log-probs of the rollout; leave it out"),
        (SILENT | BYPASS, f"{LOG_PROBS}=false: {S}.bypass_mode=true reads the log-probs of the rollout; leave it out"),
        (BYPASS | TOKEN, f"{S}.rollout_is=token with {S}.bypass_mode=true: {TWICE}"),
        (BYPASS | ON, f"{S}.mode=on with {S}.bypass_mode=true: the ratio of {LOSS_MODE}=vanilla corrects the gap"),
        (BYPASS | ON, f"set {S}.rollout_rs, or leave the mode out"),
        (BYPASS | AUTO, f"the gap is measured in the update itself; use {S}.mode=on"),
        ({"loss_type": "reinforce"}, f"{S}.loss_type=reinforce says which loss {S}.bypass_mode has"),
        ({"loss_type": "ppo_clip"}, f"choose the loss with {LOSS_MODE}=vanilla"),
        (REINFORCE | {LOSS_MODE: "gspo"}, f"{S}.loss_type=reinforce means {LOSS_MODE}=reinforce, {KEEP_ONE}"),
        (CLIP | {LOSS_MODE: "gspo"}, f"{S}.loss_type=ppo_clip means {LOSS_MODE}=vanilla, {KEEP_ONE}"),
        (REINFORCE | TOKEN | BOUNDS, f"{S}.rollout_is_batch_normalize=true with {S}.bypass_mode=true: a micro-batch"),
    ],
)
def test_what_contradicts_or_counts_twice_is_refused(settle, keys, said):
    refused(re.escape(said), settle, keys)


@pytest.mark.parametrize(
    ("written", "mode"),
    [("on", "on"), ("off", "off"), ("'on'", "on"), ("true", "on"), ("auto", "auto")],
)
def test_on_and_off_are_modes_in_a_recipe_and_on_the_command_line(load, tmp_path, monkeypatch, written, mode):
    (tmp_path / "mine.yaml").write_text(f"algorithm:\n  rollout_correction:\n    mode: {written}\n")
    monkeypatch.chdir(tmp_path)
    for loaded in (load("--config-path=.", "--config-name=mine"), load(f"{SECTION}.mode={written}")):
        assert loaded.config.algorithm.rollout_correction.mode == mode
    refused("mode=1: must be one of measure, auto, on, off", load, f"{SECTION}.mode=1")


@pytest.mark.parametrize("keys", ["rollout_is: token, rollout_is", "rollout_rs: token_k1, rollout_rs"])
def test_a_band_below_1_that_yaml_takes_for_a_number_is_noticed(load, tmp_path, monkeypatch, keys):
    (tmp_path / "mine.yaml").write_text(f"algorithm: {{rollout_correction: {{{keys}_threshold: 0.5_2}}}}\n")
    monkeypatch.chdir(tmp_path)
    loaded = load("--config-path=.", "--config-name=mine")
    said = r"_threshold=0.52: .*write lower_upper as in 0.5_2.0 \(in a recipe with quo"
    refused(said, correction, loaded.config, Given(loaded.explicit, RATIO))


@pytest.mark.parametrize(
    ("typed", "lower", "upper"),
    [("1_2.0", 1, 2), ("0.5_2", 0.5, 2), (".5_2.", 0.5, 2), ("1e-1_5", 0.1, 5)],
)
def test_a_band_typed_in_any_way_stays_a_band(load, typed, lower, upper):
    weights = load(f"{SECTION}.rollout_is=token", f"{SECTION}.rollout_is_threshold={typed}")
    assert weight_bounds(weights.config.algorithm.rollout_correction) == WeightBounds(lower, upper)
    masks = load(f"{SECTION}.rollout_rs=[token_k1,token_k2]", f"{SECTION}.rollout_rs_threshold=[{typed}, 0.1]")
    (mask, _) = rejections(masks.config.algorithm.rollout_correction)
    assert (mask.lower, mask.upper) == (math.log(lower), math.log(upper))
    correction(masks.config, given := Given(masks.explicit, RATIO))
    assert given.notices == [f"{SECTION}.mode=on, because {SECTION}.rollout_rs=[token_k1,token_k2] is set"]


def test_what_the_loss_reads_comes_from_the_update_itself(settle, make, tmp_path):
    (tmp_path / "my_loss.py").write_text(
        "from burnish.config import Needs\n"
        "def loss(inputs): ...\n"
        "loss.needs = Needs(outputs=('sum_pi_squared',), ratio=True)\n"
    )
    keys = {LOSS_MODE: f"{tmp_path}/my_loss.py:loss", "algorithm.adv_estimator": "grpo"}
    needs = needs_of(make(keys).config)
    assert needs.ratio and needs.groups
    settle(BYPASS | keys, needs)
    keys["algorithm.adv_estimator"] = "optimal_token_baseline"
    said = (
        "bypass_mode=true saves the pass that gives sum_pi_squared, which .*adv_estimator=optimal_token_baseline needs"
    )
    refused(said, settle, BYPASS | keys, needs_of(make(keys).config))


@pytest.mark.parametrize("keys", [{"mode": True}, REJECT, BYPASS | {"loss_type": "reinforce", "rollout_is": "token"}])
def test_settling_twice_changes_nothing(settle, make, keys):
    config, _ = settle(keys)
    before = repr(config)
    again = Given(frozenset(f"{SECTION}.{name}" for name in keys), PLAIN)
    correction(config, again)
    assert repr(config) == before and again.notices == []


ENABLE, STALENESS = "trainer.async_rollout.enable", "trainer.async_rollout.staleness"
AHEAD = {ENABLE: True, STALENESS: 2}
MODE = f"{SECTION}.mode"
FREES = "actor_rollout_ref.rollout.free_cache_engine"


def test_staleness_sets_defaults_and_run_ahead_is_off_without_both_keys(finish):
    config, notices = finish(AHEAD)
    assert config.staleness == 2
    assert (config.algorithm.rollout_correction.mode, config.algorithm.rollout_correction.rollout_is) == ("on", "token")
    assert config.actor_rollout_ref.rollout.free_cache_engine is False
    said = "\n".join(notices)
    assert f"{MODE}=on, because {STALENESS}=2" in said and FREES not in said
    assert f"{FREES}=false" in "\n".join(finish(AHEAD | {FREES: True})[1])
    for keys in ({}, {STALENESS: 2}, {ENABLE: True}):
        config, notices = finish(keys)
        assert config.staleness == 0 and config.algorithm.rollout_correction.mode == "measure"
        assert config.actor_rollout_ref.rollout.free_cache_engine is True
        assert bool(told(notices, "async_rollout")) == bool(keys)


def test_a_mode_that_was_chosen_stays_and_a_ratio_corrects_by_itself(finish):
    config, notices = finish(AHEAD | {MODE: "off"})
    assert config.algorithm.rollout_correction.mode == "off"
    assert told(notices, "warning: ", f"{MODE}=off")
    config, notices = finish(AHEAD | {f"{SECTION}.bypass_mode": True}, Needs(ratio=True))
    assert config.algorithm.rollout_correction.mode == "measure", "the loss's own ratio corrects it"
    assert not told(notices, "warning: ")
    config, _ = finish(AHEAD | {f"{SECTION}.bypass_mode": True})
    assert config.algorithm.rollout_correction.rollout_is == "token", "a loss without a ratio corrects nothing"


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        ({"actor_rollout_ref.rollout.name": "hf"}, ConfigError, "cannot take new weights while it generates"),
        ({"data.augment.enable": True}, NotAvailable, "data.augment.enable=true with .*staleness=2"),
        ({"actor_rollout_ref.rollout.calculate_log_probs": False}, ConfigError, "calculate_log_probs=false"),
        ({"actor_rollout_ref.actor.state_masking": False}, ConfigError, "calculate_log_probs=false"),
        ({"trainer.deterministic": True}, ConfigError, "no two runs are the same"),
    ],
)
def test_run_ahead_refuses(finish, keys, error, message):
    refused(message, finish, AHEAD | keys, error=error)
