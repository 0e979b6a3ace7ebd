"""Validation statistics: the recorded results, the names they are tracked under, and gaps in the data."""

from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.algorithms import validation
from tests.algorithms.helpers import assert_close
from tests.recorded import each, golden


@each(golden("validation_metrics", function="process_validation_metrics"))
def test_statistics_golden(case):
    inputs = case["inputs"]
    got = validation.process_validation_metrics(
        inputs["data_sources"], inputs["sample_uids"], inputs["infos_dict"], case["params"]["seed"]
    )
    assert_close(got, case["expected"]["metrics"])


@each(golden("validation_metrics", function="bootstrap_metric"))
def test_bootstrap_golden(case):
    data, params = np.array(case["inputs"]["data"]), case["params"]
    drawn = validation.positions(len(data), params["subset_size"], params["seed"], params["n_bootstrap"])
    of_draws = {
        "max": validation.over_slots(np.maximum, data, drawn),
        "min": validation.over_slots(np.minimum, data, drawn),
        "mean": data[drawn].mean(-1),
    }
    got = [(of_draws[name].mean(), of_draws[name].std()) for name in params["reduce_fns"]]
    assert_close(got, case["expected"]["mean_std"])


def winner(answers, drawn):
    """The positions that a majority picks, for a single question."""
    codes = np.array([sorted(set(answers)).index(answer) for answer in answers])
    return validation.majority(codes[None], np.array(drawn))[0].tolist()


@each(golden("validation_metrics", function="calc_maj_val"))
def test_majority_golden(case):
    data = case["inputs"]["data"]
    (first,) = winner([sample["pred"] for sample in data], [range(len(data))])
    assert data[first]["val"] == case["expected"]["value"]


def test_majority_goes_by_the_draw_and_ties_to_the_first_seen():
    assert winner(["a", "b", "b"], [[0, 1, 2], [2, 0, 2], [1, 0, 1]]) == [1, 2, 1]
    assert winner(["a", "b", "c"], [[0, 1, 2], [2, 1, 0]]) == [0, 2]
    assert winner(["a", "b", "b", "b"], [[0, 3, 0], [3, 0, 2]]) == [0, 3]  # what was not drawn has no vote
    for k in (2, 4000, 10_000):
        assert winner(["a", "b"], [[1, 0] * (k // 2), [0, 1] * (k // 2)]) == [1, 0]


def plain(data_sources, uids, infos, seed):
    """The same statistics, question by question and draw by draw."""
    collected = defaultdict(list)
    for variable in ("acc", "reward"):
        for source, uid in dict.fromkeys(zip(data_sources, uids, strict=True)):
            held = [
                sample
                for sample, value in enumerate(infos[variable])
                if (data_sources[sample], uids[sample]) == (source, uid) and value is not None
            ]
            values, answers = ([infos[name][sample] for sample in held] for name in (variable, "pred"))
            n = len(values)
            if not n:
                continue
            collected[source, variable, f"mean@{n}"].append(np.mean(values))
            if n == 1:
                continue
            collected[source, variable, f"std@{n}"].append(np.std(values))
            for k in validation.subset_sizes(n):
                kinds = {"best": [], "worst": [], "maj": []}
                for draw in np.random.RandomState(seed).choice(n, (validation.DRAWS, k), replace=True):
                    votes = Counter(answers[place] for place in draw)  # in the order they were drawn
                    place = next(place for place in draw if votes[answers[place]] == max(votes.values()))
                    kinds["best"].append(max(values[place] for place in draw))
                    kinds["worst"].append(min(values[place] for place in draw))
                    kinds["maj"].append(values[place])
                if all(answer is None for answer in answers):
                    del kinds["maj"]
                for kind, over_draws in kinds.items():
                    collected[source, variable, f"{kind}@{k}/mean"].append(np.mean(over_draws))
                    collected[source, variable, f"{kind}@{k}/std"].append(np.std(over_draws))
    figures = defaultdict(lambda: defaultdict(dict))
    for (source, variable, name), per_question in collected.items():
        figures[source][variable][name] = np.mean(per_question)
    return figures


SAMPLES = st.lists(
    st.tuples(
        st.sampled_from("st"),
        st.integers(0, 3),
        st.sampled_from([None, True, False]),
        st.none() | st.floats(-2, 2),
        st.sampled_from([None, "a", "b", "c"]),
    ),
    min_size=1,
    max_size=25,
)


@given(samples=SAMPLES, seed=st.integers(0, 9))
@settings(max_examples=25, deadline=None)
def test_questions_worked_out_together_give_the_statistics_of_each_alone(samples, seed):
    sources, uids, acc, reward, pred = zip(*samples, strict=True)
    infos = {"acc": acc, "reward": reward, "pred": pred}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(validation, "DRAWS", 40)
        patched.setattr(validation, "TOGETHER", 4)
        assert_close(
            validation.process_validation_metrics(sources, uids, infos, seed), plain(sources, uids, infos, seed)
        )


def test_predictions_that_cannot_be_hashed_go_by_how_they_print():
    for pred in ([[1], {"a": 2}, {"a": 2}], [["a"], ["b"], ["b"]]):
        got = validation.validation_metrics(["s"] * 3, [1] * 3, {"reward": [1.0, 0.0, 0.0], "pred": pred})
        assert got["val-core/s/reward/maj@3/mean"] < got["val-core/s/reward/best@3/mean"]


def test_core_is_accuracy_of_all_samples_else_the_reward():
    sources, uids = ["gsm8k"] * 4 + ["toy"], [1, 1, 2, 2, 3]
    infos = {"reward": [1.0, 0.0, 0.0, 0.0, 0.5], "acc": [True, False, False, False, None], "text": list("abcde")}
    got = validation.validation_metrics(sources, uids, infos)
    core = {name: value for name, value in got.items() if name.startswith("val-core/")}
    assert set(core) == {"val-core/gsm8k/acc/mean@2", "val-core/gsm8k/acc/best@2/mean", "val-core/toy/reward/mean@1"}
    assert core["val-core/gsm8k/acc/mean@2"] == 0.25 and core["val-core/toy/reward/mean@1"] == 0.5
    assert got["val-aux/gsm8k/reward/mean@2"] == 0.25
    assert "val-aux/gsm8k/acc/worst@2/mean" in got and "val-aux/gsm8k/acc/best@2/std" in got
    assert not [name for name in got if "text" in name]
    got = validation.validation_metrics(["s"] * 4, [1] * 4, {"reward": [0.0, 1.0, 1.0, 0.0], "pred": list("abba")})
    core = {name for name in got if name.startswith("val-core/")}
    assert core == {f"val-core/s/reward/{name}" for name in ("best@4/mean", "maj@4/mean", "mean@4")}
    assert "val-aux/s/reward/best@2/mean" in got
    infos = {"reward": [1.0, 0.0, 1.0, 0.0], "pred": ["a", "b", None, None]}  # t has no predictions
    got = validation.validation_metrics(["s", "s", "t", "t"], [0, 0, 1, 1], infos)
    assert "val-core/s/reward/maj@2/mean" in got
    assert not any(name.startswith(("val-core/t/reward/maj", "val-aux/t/reward/maj")) for name in got)
    assert [validation.subset_sizes(n) for n in (2, 3, 4, 8, 9)] == [[2], [2, 3], [2, 4], [2, 4, 8], [2, 4, 8, 9]]


def test_a_missing_value_is_not_a_zero_and_unequal_columns_are_refused():
    np.random.seed(7)
    expected = np.random.RandomState(7).rand()
    got = validation.process_validation_metrics(
        ["s"] * 3, [1, 1, 1], {"acc": [1.0, None, 1.0], "pred": ["a", "b", "a"]}
    )
    assert got["s"]["acc"]["mean@2"] == 1.0 and got["s"]["acc"]["maj@2/mean"] == 1.0
    assert np.random.rand() == expected, "the global random state is left alone"
    with pytest.raises(ValueError, match="zip"):
        validation.process_validation_metrics(["s"], [1, 2], {"acc": [1.0, 0.0]})
    nothing = validation.process_validation_metrics(["s", "t"], [1, 2], {"acc": [None, 1.0], "reward": [0.5, 0.5]})
    assert nothing == {"s": {"reward": {"mean@1": 0.5}}, "t": {"acc": {"mean@1": 1.0}, "reward": {"mean@1": 0.5}}}
