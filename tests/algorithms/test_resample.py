"""PF-PPO's resampling: how often each row is drawn, and that a run draws the same again."""

import numpy as np
import pytest

from burnish.algorithms.resample import resample
from burnish.config.algorithm import PFPPOConfig
from burnish.errors import ConfigError


def counts(scores, times=2000, **config):
    """How often each row is drawn on average, of as many draws as there are rows."""
    random, scores = np.random.default_rng(0), np.array(scores)
    drawn = [resample(scores, PFPPOConfig(enable=True, **config), random) for _ in range(times)]
    return np.bincount(np.concatenate(drawn), minlength=len(scores)) / times


def test_pow_draws_by_the_power_of_the_score():
    got = counts([1.0, -2.0, 0.0, 3.0], reweight_method="pow", weight_pow=2.0)
    assert got == pytest.approx([4 / 14, 16 / 14, 0, 36 / 14], abs=0.06)
    assert counts([1.0, 3.0], weight_pow=1.0) == pytest.approx([0.5, 1.5], abs=0.06)
    for scale in (1e-200, 1.0, 1e200):  # it goes by shares of the largest score, and overflows nowhere
        got = counts(np.array([50.0, -100.0, 100.0]) * scale, weight_pow=200.0)
        assert got == pytest.approx([0, 1.5, 1.5], abs=0.06)


def test_max_min_draws_the_best_and_the_worst_only_and_max_random_the_best_more_often():
    assert counts([0.5, 1.0, -1.0, 1.0], reweight_method="max_min") == pytest.approx([0, 4 / 3, 4 / 3, 4 / 3], abs=0.06)
    assert counts([0.5, 1.0, 0.0], reweight_method="max_random") == pytest.approx([2 / 3, 5 / 3, 2 / 3], abs=0.06)


def test_the_same_generator_draws_the_same_rows_in_order():
    config, scores = PFPPOConfig(enable=True), np.arange(20.0)
    one, other = (resample(scores, config, np.random.default_rng([1, 7])) for _ in range(2))
    assert np.array_equal(one, other) and np.array_equal(one, np.sort(one)) and len(one) == 20
    assert resample(np.zeros(3), config, np.random.default_rng(0)).tolist() == [0, 1, 2], "without any weight"
    with pytest.raises(ConfigError, match=r"reweight_method=best is unknown: choose pow, max_min or max_random"):
        resample(np.ones(2), PFPPOConfig(reweight_method="best"), np.random.default_rng(0))
