"""Generation that runs ahead: what is switched on with it, and what it is refused with."""

import pytest

from burnish.config import Needs
from burnish.errors import ConfigError, NotAvailable

ENABLE, STALENESS = "trainer.async_rollout.enable", "trainer.async_rollout.staleness"
AHEAD = {ENABLE: True, STALENESS: 2}
MODE, BYPASS = "algorithm.rollout_correction.mode", "algorithm.rollout_correction.bypass_mode"
FREES = "actor_rollout_ref.rollout.free_cache_engine"


def test_staleness_sets_defaults(finish):
    config, notices = finish(AHEAD)
    assert config.staleness == 2
    assert (config.algorithm.rollout_correction.mode, config.algorithm.rollout_correction.rollout_is) == ("on", "token")
    assert config.actor_rollout_ref.rollout.free_cache_engine is False
    said = "\n".join(notices)
    assert f"{MODE}=on, because {STALENESS}=2" in said and FREES not in said
    assert f"{FREES}=false" in "\n".join(finish(AHEAD | {FREES: True})[1])


@pytest.mark.parametrize("keys", [{}, {STALENESS: 2}, {ENABLE: True}], ids=["nothing", "a number", "the switch"])
def test_run_ahead_is_off_without_both_keys(finish, keys):
    config, notices = finish(keys)
    assert config.staleness == 0 and config.algorithm.rollout_correction.mode == "measure"
    assert config.actor_rollout_ref.rollout.free_cache_engine is True
    assert any("async_rollout" in notice for notice in notices) == bool(keys)


def test_a_mode_that_was_chosen_stays_with_a_warning(finish):
    config, notices = finish(AHEAD | {MODE: "off"})
    assert config.algorithm.rollout_correction.mode == "off"
    assert any(notice.startswith("warning: ") and f"{MODE}=off" in notice for notice in notices)


def test_with_the_rollouts_log_probs_as_the_old_ones(finish):
    config, notices = finish(AHEAD | {BYPASS: True}, Needs(ratio=True))
    assert config.algorithm.rollout_correction.mode == "measure", "the loss's own ratio corrects it"
    assert not any(notice.startswith("warning: ") for notice in notices)
    config, _ = finish(AHEAD | {BYPASS: True})
    assert config.algorithm.rollout_correction.rollout_is == "token", "a loss without a ratio corrects nothing"


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        ({"actor_rollout_ref.rollout.name": "hf"}, ConfigError, "cannot take new weights while it generates"),
        ({"data.augment.enable": True}, NotAvailable, "data.augment.enable=true with .*staleness=2"),
        ({"actor_rollout_ref.rollout.calculate_log_probs": False}, ConfigError, "calculate_log_probs=false"),
        ({"actor_rollout_ref.actor.state_masking": False}, ConfigError, "calculate_log_probs=false"),
        ({STALENESS: -1}, ConfigError, "staleness"),
        ({"trainer.deterministic": True}, ConfigError, "no two runs are the same"),
    ],
)
def test_run_ahead_refuses(finish, keys, error, message):
    with pytest.raises(error, match=message):
        finish(AHEAD | keys)
