"""Settings of the train/rollout correction that switch one another on, do nothing, or count twice."""

import json
import math
from pathlib import Path

import pytest

from burnish.algorithms.needs import needs_of
from burnish.config import Needs
from burnish.config.bounds import WeightBounds, rejections, weight_bounds
from burnish.config.rules.correction import correction
from burnish.config.rules.given import Given
from burnish.errors import ConfigError

SECTION = "algorithm.rollout_correction"
LOSS_MODE = "actor_rollout_ref.actor.policy_loss.loss_mode"
LOG_PROBS = "actor_rollout_ref.rollout.calculate_log_probs"
RATIO, PLAIN = Needs(ratio=True), Needs()
BYPASS = {"bypass_mode": True}
REJECT = {"rollout_rs": "token_k1", "rollout_rs_threshold": 1.5}
RECORDED = [
    case
    for case in json.loads((Path(__file__).parents[1] / "golden" / "rollout_correction.json").read_text())
    if "raises" in case["expected"]
]


@pytest.fixture
def settle(make):
    """Build from keys (those of the section by their last name), apply the rule; configuration and notices."""

    def run(keys=None, needs=RATIO):
        built = make({name if "." in name else f"{SECTION}.{name}": value for name, value in (keys or {}).items()})
        given = Given(built.explicit, needs)
        correction(built.config, given)
        return built.config, given.notices

    return run


def refused(settle, keys, *parts, needs=RATIO):
    with pytest.raises(ConfigError) as error:
        settle(keys, needs)
    for part in parts:
        assert part in str(error.value)


@pytest.mark.parametrize(
    "case", [case for case in RECORDED if case["name"] != "all_masked_raises"], ids=lambda case: case["name"]
)
def test_what_the_reference_refuses_in_a_step_is_refused_before_the_run(settle, case):
    keys = {name: value for name, value in case["params"].items() if name != "function"}
    refused(settle, keys, f"{SECTION}.")


def test_without_any_key_the_gap_is_measured_silently(settle):
    config, notices = settle()
    assert config.algorithm.rollout_correction.mode == "measure" and notices == []


# Switching on


@pytest.mark.parametrize(
    ("keys", "asked"), [({"rollout_is": "sequence"}, "rollout_is=sequence"), (REJECT, "rollout_rs=token_k1")]
)
def test_a_correction_that_was_chosen_switches_itself_on(settle, keys, asked):
    config, notices = settle(keys)
    assert config.algorithm.rollout_correction.mode == "on"
    assert notices == [f"{SECTION}.mode=on, because {SECTION}.{asked} is set"]
    assert settle(keys | {"mode": "on"})[1] == []
    config, notices = settle(keys | {"mode": "auto"})
    assert config.algorithm.rollout_correction.mode == "auto" and notices == []
    for mode in ("measure", "off"):
        said = f"{SECTION}.{asked} with {SECTION}.mode={mode}: the correction would do nothing; drop one of the two"
        refused(settle, keys | {"mode": mode}, said)


@pytest.mark.parametrize("mode", ["on", "auto"])
def test_a_mode_without_a_correction_weighs_tokens(settle, mode):
    config, notices = settle({"mode": mode})
    assert config.algorithm.rollout_correction.rollout_is == "token"
    assert notices == [f"{SECTION}.rollout_is=token, because {SECTION}.mode={mode} and no correction was chosen"]
    config, notices = settle({"mode": mode, **REJECT})
    assert config.algorithm.rollout_correction.rollout_is is None and notices == []


@pytest.mark.parametrize(
    ("written", "mode"), [("on", "on"), ("off", "off"), ("'on'", "on"), ("true", "on"), ("auto", "auto")]
)
def test_on_and_off_are_modes_in_a_recipe_too(load, tmp_path, monkeypatch, written, mode):
    (tmp_path / "mine.yaml").write_text(f"algorithm:\n  rollout_correction:\n    mode: {written}\n")
    monkeypatch.chdir(tmp_path)
    loaded = load("--config-path=.", "--config-name=mine")
    correction(loaded.config, Given(loaded.explicit, RATIO))
    assert loaded.config.algorithm.rollout_correction.mode == mode


@pytest.mark.parametrize(("typed", "mode"), [("on", "on"), ("off", "off"), ("True", "on"), ("measure", "measure")])
def test_on_and_off_are_modes_on_the_command_line(load, typed, mode):
    loaded = load(f"{SECTION}.mode={typed}")
    correction(loaded.config, Given(loaded.explicit, RATIO))
    assert loaded.config.algorithm.rollout_correction.mode == mode


@pytest.mark.parametrize("mode", ["always", 1])
def test_unknown_mode_is_refused_with_the_choices(make, mode):
    with pytest.raises(ConfigError, match=rf"mode={mode}: must be one of measure, auto, on, off"):
        make({f"{SECTION}.mode": mode})


# Bounds


@pytest.mark.parametrize("keys", ["rollout_is: token, rollout_is", "rollout_rs: token_k1, rollout_rs"])
def test_a_band_below_1_that_yaml_takes_for_a_number_is_noticed(load, tmp_path, monkeypatch, keys):
    (tmp_path / "mine.yaml").write_text(f"algorithm: {{rollout_correction: {{{keys}_threshold: 0.5_2}}}}\n")
    monkeypatch.chdir(tmp_path)
    loaded = load("--config-path=.", "--config-name=mine")
    with pytest.raises(ConfigError, match=r"_threshold=0.52: .*write lower_upper as in 0.5_2.0 \(in a recipe with quo"):
        correction(loaded.config, Given(loaded.explicit, RATIO))


@pytest.mark.parametrize(
    ("typed", "lower", "upper"),
    [("1_2.0", 1, 2), ("1_2", 1, 2), ("0.5_2", 0.5, 2), ("0.5_2.0", 0.5, 2), (".5_2.", 0.5, 2), ("1e-1_5", 0.1, 5)],
)
def test_a_band_typed_in_any_way_stays_a_band(load, typed, lower, upper):
    weights = load(f"{SECTION}.rollout_is=token", f"{SECTION}.rollout_is_threshold={typed}")
    assert weight_bounds(weights.config.algorithm.rollout_correction) == WeightBounds(lower, upper)
    masks = load(f"{SECTION}.rollout_rs=[token_k1,token_k2]", f"{SECTION}.rollout_rs_threshold=[{typed}, 0.1]")
    (mask, _) = rejections(masks.config.algorithm.rollout_correction)
    assert (mask.lower, mask.upper) == (math.log(lower), math.log(upper))


def test_masks_are_a_list_on_the_command_line(load):
    loaded = load(f"{SECTION}.rollout_rs=[token_k1,seq_mean_k3]", f"{SECTION}.rollout_rs_threshold=[0.5_2.0,0.01]")
    given = Given(loaded.explicit, RATIO)
    correction(loaded.config, given)
    assert given.notices == [f"{SECTION}.mode=on, because {SECTION}.rollout_rs=[token_k1,seq_mean_k3] is set"]


def test_bounds_without_their_correction_are_reported(settle):
    keys = {"rollout_is_threshold": 3.0, "rollout_is_batch_normalize": True, "rollout_rs_threshold": 1.5}
    assert settle(keys)[1] == [
        f"unused: {SECTION}.rollout_is_threshold, {SECTION}.rollout_is_batch_normalize "
        f"({SECTION}.rollout_is is not set)",
        f"unused: {SECTION}.rollout_rs_threshold ({SECTION}.rollout_rs is not set)",
    ]
    assert settle({"mode": "on", "rollout_is_threshold": 3.0, "rollout_is_batch_normalize": True})[1] == [
        f"{SECTION}.rollout_is=token, because {SECTION}.mode=on and no correction was chosen"
    ]


@pytest.mark.parametrize(
    ("keys", "reader"),
    [
        ({"mode": "on"}, "mode=on"),
        ({"mode": "auto"}, "mode=auto"),
        ({"rollout_is": "token"}, "mode=on"),
        (BYPASS, "bypass_mode=true"),
    ],
)
def test_what_reads_the_log_probs_of_the_rollout_needs_them(settle, keys, reader):
    refused(settle, keys | {LOG_PROBS: False}, f"{LOG_PROBS}=false: {SECTION}.{reader} reads", "leave it out")
    settle({LOG_PROBS: False})  # without them nothing is measured, and nothing asked for it


# Bypass mode


@pytest.mark.parametrize("keys", [{}, {"mode": "measure"}, {"mode": "off"}, {"loss_type": "ppo_clip"}])
def test_bypass_alone_changes_nothing_else(settle, keys):
    config, notices = settle(BYPASS | keys)
    assert config.actor_rollout_ref.actor.policy_loss.loss_mode == "vanilla" and notices == []
    assert config.algorithm.rollout_correction.rollout_is is None


@pytest.mark.parametrize(
    "mode", ["on", "measure", None], ids=["with a correction", "without one", "with the mode left out"]
)
def test_reinforce_is_a_loss(settle, mode):
    keys = BYPASS | {"loss_type": "reinforce"} | ({} if mode is None else {"mode": mode})
    config, notices = settle(keys)
    assert config.actor_rollout_ref.actor.policy_loss.loss_mode == "reinforce"
    assert notices[0] == f"{LOSS_MODE}=reinforce, because {SECTION}.loss_type=reinforce is set"
    assert config.algorithm.rollout_correction.rollout_is == ("token" if mode == "on" else None)
    assert settle(keys | {LOSS_MODE: "reinforce"})[0].actor_rollout_ref.actor.policy_loss.loss_mode == "reinforce"


def test_weights_in_bypass_mode_are_for_a_loss_without_a_ratio(settle):
    weights = BYPASS | {"rollout_is": "token"}
    said = f"the ratio of {LOSS_MODE}=vanilla is the importance weight already, and would count twice"
    refused(settle, weights, f"{SECTION}.rollout_is=token with {SECTION}.bypass_mode=true: {said}")
    assert settle(weights | {"loss_type": "reinforce"})[0].algorithm.rollout_correction.mode == "on"
    settle(weights | {LOSS_MODE: "gpg"}, PLAIN)
    nothing = f"{SECTION}.mode=on with {SECTION}.bypass_mode=true: the ratio of {LOSS_MODE}=vanilla corrects the gap"
    refused(settle, BYPASS | {"mode": "on"}, nothing, f"set {SECTION}.rollout_rs, or leave the mode out")
    assert settle(BYPASS | {"mode": "on"}, PLAIN)[0].algorithm.rollout_correction.rollout_is == "token"
    assert settle(BYPASS | REJECT)[0].algorithm.rollout_correction.mode == "on"


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"loss_type": "reinforce"}, f"{SECTION}.loss_type=reinforce says which loss {SECTION}.bypass_mode has"),
        ({"loss_type": "ppo_clip"}, f"choose the loss with {LOSS_MODE}=vanilla"),
        (
            BYPASS | {"loss_type": "reinforce", LOSS_MODE: "gspo"},
            f"{SECTION}.loss_type=reinforce means {LOSS_MODE}=reinforce, and that is set to gspo; keep one",
        ),
        (
            BYPASS | {"loss_type": "ppo_clip", LOSS_MODE: "gspo"},
            f"{SECTION}.loss_type=ppo_clip means {LOSS_MODE}=vanilla, and that is set to gspo; keep one",
        ),
        (BYPASS | {"mode": "auto"}, f"the gap is measured in the update itself; use {SECTION}.mode=on"),
        (
            BYPASS | {"loss_type": "reinforce", "rollout_is": "token", "rollout_is_batch_normalize": True},
            f"{SECTION}.rollout_is_batch_normalize=true with {SECTION}.bypass_mode=true: a micro-batch does not know",
        ),
    ],
)
def test_bypass_mode_conflicts_are_refused(settle, keys, said):
    refused(settle, keys, said)


def test_estimator_that_reads_the_saved_pass_is_refused(settle):
    keys = BYPASS | {"algorithm.adv_estimator": "optimal_token_baseline"}
    said = (
        f"{SECTION}.bypass_mode=true saves the pass that gives sum_pi_squared, which "
        "algorithm.adv_estimator=optimal_token_baseline needs"
    )
    refused(settle, keys, said, needs=Needs(groups=True, outputs=("sum_pi_squared",)))


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
    refused(settle, BYPASS | keys, "adv_estimator=optimal_token_baseline needs", needs=needs_of(make(keys).config))


@pytest.mark.parametrize("keys", [{"mode": "on"}, {"mode": "off"}, {"rollout_is": "token"}])
def test_unused_threshold_is_reported(settle, keys):
    config, notices = settle(keys | {"gap_threshold": 0.5})
    mode = config.algorithm.rollout_correction.mode
    assert f"unused: {SECTION}.gap_threshold ({SECTION}.mode={mode} compares the gap with nothing)" in notices
    for mode in ("measure", "auto"):
        _, notices = settle({"mode": mode, "gap_threshold": 0.5})
        assert not [line for line in notices if line.startswith("unused")]


def test_measuring_without_log_probs_is_reported(settle):
    said = f"({LOG_PROBS}=false: there is no gap to measure)"
    off = {LOG_PROBS: False}
    assert settle(off | {"mode": "measure"})[1] == [f"unused: {SECTION}.mode {said}"]
    assert settle(off | {"gap_threshold": 0.5})[1] == [f"unused: {SECTION}.gap_threshold {said}"]
    assert settle(off)[1] == settle(off | {"mode": "off"})[1] == []


@pytest.mark.parametrize("keys", [{"mode": True}, REJECT, BYPASS | {"loss_type": "reinforce", "rollout_is": "token"}])
def test_settling_twice_changes_nothing(settle, make, keys):
    config, _ = settle(keys)
    before = repr(config)
    again = Given(frozenset(f"{SECTION}.{name}" for name in keys), PLAIN)
    correction(config, again)
    assert repr(config) == before and again.notices == []
