"""Validation statistics: the recorded figures, the names they are tracked under, and gaps in the data."""

import json
from pathlib import Path

import numpy as np
import pytest

from burnish.algorithms.validation import (
    bootstrap,
    majority,
    process_validation_metrics,
    question_statistics,
    subset_sizes,
    validation_metrics,
)

CASES = json.loads((Path(__file__).parents[1] / "golden" / "validation_metrics.json").read_text())


def cases(function):
    chosen = [case for case in CASES if case["params"]["function"] == function]
    return pytest.mark.parametrize("case", chosen, ids=[case["name"] for case in chosen])


@cases("process_validation_metrics")
def test_statistics_golden(case, assert_close):
    inputs = case["inputs"]
    got = process_validation_metrics(
        inputs["data_sources"], inputs["sample_uids"], inputs["infos_dict"], case["params"]["seed"]
    )
    assert_close(got, case["expected"]["metrics"])


@cases("bootstrap_metric")
def test_bootstrap_golden(case, assert_close):
    data, params = np.array(case["inputs"]["data"]), case["params"]
    got = [
        bootstrap(
            len(data),
            params["subset_size"],
            lambda drawn, reduce=reduce: getattr(data[drawn], reduce)(-1),
            params["seed"],
            params["n_bootstrap"],
        )
        for reduce in params["reduce_fns"]
    ]
    assert_close(got, case["expected"]["mean_std"])


@cases("calc_maj_val")
def test_majority_golden(case, assert_close):
    data = case["inputs"]["data"]
    values = np.array([sample["val"] for sample in data])
    everything = np.arange(len(data))[None]
    assert_close(majority(values, [sample["pred"] for sample in data], everything), [case["expected"]["value"]])


def test_majority_goes_by_the_draw_and_ties_to_the_first_seen():
    values = np.array([10.0, 20.0, 30.0])
    drawn = np.array([[0, 1, 2], [2, 0, 2], [1, 0, 1]])
    assert majority(values, ["a", "b", "b"], drawn).tolist() == [20.0, 30.0, 20.0]
    assert majority(values, ["a", "b", "c"], drawn[:1]).tolist() == [10.0]


def test_predictions_that_cannot_be_hashed_go_by_how_they_print():
    values, drawn = np.array([10.0, 20.0, 30.0]), np.array([[0, 1, 2]])
    assert majority(values, [[1], {"a": 2}, {"a": 2}], drawn).tolist() == [20.0]
    got = validation_metrics(["s"] * 3, [1] * 3, {"reward": [1.0, 0.0, 0.0], "pred": [["a"], ["b"], ["b"]]})
    assert got["val-core/s/reward/maj@3/mean"] < got["val-core/s/reward/best@3/mean"]


def test_sizes_are_powers_of_two_and_all():
    assert [subset_sizes(n) for n in (2, 3, 4, 8, 9)] == [[2], [2, 3], [2, 4], [2, 4, 8], [2, 4, 8, 9]]


def test_core_is_accuracy_of_all_samples_else_the_reward():
    sources, uids = ["gsm8k"] * 4 + ["toy"], [1, 1, 2, 2, 3]
    infos = {"reward": [1.0, 0.0, 0.0, 0.0, 0.5], "acc": [True, False, False, False, None], "text": list("abcde")}
    got = validation_metrics(sources, uids, infos)
    core = {name: value for name, value in got.items() if name.startswith("val-core/")}
    assert set(core) == {"val-core/gsm8k/acc/mean@2", "val-core/gsm8k/acc/best@2/mean", "val-core/toy/reward/mean@1"}
    assert core["val-core/gsm8k/acc/mean@2"] == 0.25 and core["val-core/toy/reward/mean@1"] == 0.5
    assert got["val-aux/gsm8k/reward/mean@2"] == 0.25
    assert "val-aux/gsm8k/acc/worst@2/mean" in got and "val-aux/gsm8k/acc/best@2/std" in got
    assert not [name for name in got if "text" in name]


def test_only_the_full_size_is_core():
    got = validation_metrics(["s"] * 4, [1] * 4, {"reward": [0.0, 1.0, 1.0, 0.0], "pred": list("abba")})
    core = sorted(name for name in got if name.startswith("val-core/"))
    assert core == ["val-core/s/reward/best@4/mean", "val-core/s/reward/maj@4/mean", "val-core/s/reward/mean@4"]
    assert "val-aux/s/reward/best@2/mean" in got


def test_a_missing_value_is_not_a_zero():
    got = process_validation_metrics(["s"] * 3, [1, 1, 1], {"acc": [1.0, None, 1.0], "pred": ["a", "b", "a"]})
    assert got["s"]["acc"]["mean@2"] == 1.0 and got["s"]["acc"]["maj@2/mean"] == 1.0
    assert question_statistics([], None, seed=0) == {}


def test_the_programs_random_state_is_left_alone():
    np.random.seed(7)
    expected = np.random.RandomState(7).rand()
    process_validation_metrics(["s"] * 4, [1] * 4, {"acc": [0.0, 1.0, 0.0, 1.0]})
    assert np.random.rand() == expected


def test_unequal_columns_are_refused():
    with pytest.raises(ValueError, match="zip"):
        process_validation_metrics(["s"], [1, 2], {"acc": [1.0, 0.0]})


def test_a_source_without_predictions_has_no_majority():
    infos = {"reward": [1.0, 0.0, 1.0, 0.0], "pred": ["a", "b", None, None]}
    got = validation_metrics(["s", "s", "t", "t"], [0, 0, 1, 1], infos)
    assert "val-core/s/reward/maj@2/mean" in got
    assert not any(name.startswith(("val-core/t/reward/maj", "val-aux/t/reward/maj")) for name in got)
