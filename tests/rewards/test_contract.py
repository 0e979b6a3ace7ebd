"""What a scoring function may return, and the policy for samples that fail."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from burnish.errors import RewardError
from burnish.rewards.contract import (
    SHOWN_RESPONSE,
    BadResult,
    ScoreRequest,
    ScoreResult,
    checked_result,
    checked_results,
    plain,
    shortened,
)
from burnish.rewards.failures import SHOWN_CAUSES, FailureWatch, apply_policy, describe_causes, too_many
from burnish.rewards.function import result_of


@pytest.mark.parametrize(
    ("value", "score"),
    [
        *[(1, 1.0), (0.5, 0.5), (True, 1.0), (np.float32(0.5), 0.5), (np.int64(2), 2.0), (np.bool_(True), 1.0)],
        *[(np.array(0.25), 0.25), (torch.tensor(0.25), 0.25), (Fraction(1, 4), 0.25)],
    ],
)
def test_numbers(value, score):
    result = checked_result(value)
    assert result == {"score": score, "info": {}} and type(result["score"]) is float
    assert checked_result({"score": value}) == result


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "my_score returned None; return a finite number"),
        ("1.0", "my_score returned '1.0' (str); return a finite number"),
        (float("nan"), "my_score returned nan; return a finite number"),
        (np.float32("nan"), "my_score returned nan;"),
        (-math.inf, "my_score returned -inf;"),
        (10**400, "my_score returned inf;"),
        ([1.0], "my_score returned [1.0] (list);"),
        ((1.0, {}), "my_score returned (1.0, {}) (tuple);"),
        (torch.tensor([1.0]), "my_score returned tensor([1.]) (Tensor);"),
        ({"reward": 1.0, "acc": 1}, "my_score returned a dict without \"score\" (keys: ['acc', 'reward']);"),
        ({"score": None}, 'my_score returned "score": None;'),
        ({"score": float("nan")}, 'my_score returned "score": nan;'),
        ({"score": "high"}, "my_score returned \"score\": 'high' (str);"),
    ],
)
def test_what_is_no_score_says_what_came_and_what_is_needed(value, said):
    with pytest.raises(BadResult) as error:
        checked_result(value, "my_score")
    assert str(error.value).startswith(said)
    assert str(error.value).endswith('return a finite number, or a dict with one under "score"')


def test_other_keys_become_info():
    parts = {"acc": np.float64(0.5), "pred": "7", "parts": (1, np.arange(2)), "who": Fraction(1, 2), 3: None}
    info = {"acc": 0.5, "pred": "7", "parts": [1, [0, 1]], "who": "1/2", "3": None}
    assert checked_result({"score": 1, **parts}) == {"score": 1.0, "info": info}
    assert plain({"a": {1}, "b": b"x", "c": {("k",): 1}}) == {"a": [1], "b": "b'x'", "c": {"('k',)": 1}}
    numbers = {"n": "a whole number of 16610 bits", "m": 10**400, "l": ["a whole number of 20001 bits"]}
    assert plain({"n": 10**5000, "m": 10**400, "l": [-(2**20_000)]}) == numbers, "those that cannot be written"


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor])
def test_results_of_a_batch(kind):
    assert checked_results(kind([0.5, 1.0]), 2, "it") == [{"score": score, "info": {}} for score in (0.5, 1.0)]


def test_one_bad_result_of_a_batch_is_its_own():
    good, more, bad, text = checked_results([1, {"score": 0, "acc": 1}, float("nan"), "x"], 4, "it")
    assert good == {"score": 1.0, "info": {}} and more == {"score": 0.0, "info": {"acc": 1}}
    assert bad["error"].startswith("it, for sample 2, returned nan;")
    assert text["error"].startswith("it, for sample 3, returned 'x' (str);")


@pytest.mark.parametrize(
    ("value", "count", "said"),
    [
        ([1.0], 2, "it returned 1 results for 2 samples; return a list with a result for each"),
        ([], 1, "it returned 0 results for 1 sample;"),
        (None, 2, "it returned None for 2 samples;"),
        (1.0, 2, "it returned 1.0 (float) for 2 samples;"),
        ("ab", 2, "it returned 'ab' (str) for 2 samples;"),
        ({"score": [1, 1]}, 2, "it returned {'score': [1, 1]} (dict) for 2 samples;"),
        (np.array(1.0), 1, "it returned array(1.) (ndarray) for 1 sample;"),
    ],
)
def test_a_result_that_is_not_a_list_is_refused(value, count, said):
    with pytest.raises(BadResult) as error:
        checked_results(value, count, "it")
    assert str(error.value).startswith(said)


def test_results_remember_their_request_where_it_failed():
    request = ScoreRequest("src", "a\x1b[2Jb\n" + "x" * 500, None, {}, index=7)
    good = result_of(request, {"score": 0.5, "info": {"acc": 1, "new_prompts": [{"prompt": "q"}]}}, 2.0)
    assert (good.score, good.info, good.new_prompts, good.seconds) == (0.5, {"acc": 1}, [{"prompt": "q"}], 2.0)
    assert (good.data_source, good.index, good.response) == ("src", None, "")
    bad = ScoreResult.failure(request, "why", 1.0)
    assert (bad.score, bad.error, bad.data_source, bad.index) == (None, "why", "src", 7)
    assert bad.response.startswith("a\\x1b[2Jb\\nxxx") and bad.response.endswith("x…")
    assert shortened("grüße 漢字 😀") == "grüße 漢字 😀"
    assert shortened("a\tb\r\u202e\ud800") == r"a\tb\r\u202e\ud800"
    assert shortened("y" * SHOWN_RESPONSE) == "y" * SHOWN_RESPONSE
    assert shortened("y" * 201) == "y" * 200 + "…"


GOOD = ScoreResult(1.0, data_source="gsm8k")


def bad(error: str = "Traceback\n  File x\nValueError: 7", source: str = "gsm8k", **fields) -> ScoreResult:
    return ScoreResult(None, error=error, data_source=source, **fields)


def step(pattern: str) -> tuple[list[ScoreResult], list[int]]:
    """`ab.c` style: a letter per good sample of that group, its capital for a failed one."""
    return [bad() if letter.isupper() else GOOD for letter in pattern], [ord(letter.lower()) for letter in pattern]


@pytest.mark.parametrize(
    ("pattern", "needs_groups", "kept", "groups_lost"),
    [
        ("aaabbb", True, "aaabbb", 0),
        ("aAabbb", True, "aabbb", 0),  # two remain: the group stays
        ("aAAbbb", True, "bbb", 1),  # one remains: nothing to compare it with
        ("AAAbbb", True, "bbb", 1),
        ("aAAbbb", False, "abbb", 0),
        ("AbcD", False, "bc", 0),
        ("ab", True, "ab", 0),  # single samples that did not fail are not the policy's business
    ],
)
def test_policy_keeps_scored_samples(pattern, needs_groups, kept, groups_lost):
    results, uids = step(pattern)
    keep, report = apply_policy(results, uids, needs_groups, max_failure_ratio=1.0)
    assert "".join(chr(uid) for uid, k in zip(uids, keep, strict=True) if k) == kept
    failed = sum(letter.isupper() for letter in pattern)
    assert report.metrics() == {
        "failures/reward": failed,
        "failures/dropped_samples": len(pattern) - len(kept),
        "failures/dropped_groups": groups_lost,
    }


def test_zero_is_given_only_where_asked_for_and_still_counts():
    results, uids = step("aAAbbb")
    keep, report = apply_policy(results, uids, True, max_failure_ratio=0.5, on_error="zero")
    assert keep.all() and report.failed == 2 and report.dropped_samples == 0
    assert [r.score for r in report.results] == [1.0, 0.0, 0.0, 1.0, 1.0, 1.0]
    assert report.results[1].error == results[1].error
    with pytest.raises(RewardError):
        apply_policy(results, uids, True, max_failure_ratio=0.3, on_error="zero")


def test_too_many_failures_stop_the_run_with_their_causes():
    results = [GOOD] * 90 + [bad(f"Traceback\n  File x\nKeyError: {i}") for i in range(8)]
    results += [bad("timed out: no score within reward.timeout=5 s", "math")] * 2
    with pytest.raises(RewardError) as error:
        apply_policy(results, range(100), False, max_failure_ratio=0.05)
    message = str(error.value)
    assert message.startswith("10 of 100 samples could not be scored, more than reward.max_failure_ratio=0.05")
    assert "8 times (data_source gsm8k; first uid 90):\n    Traceback\n      File x\n    KeyError: 0" in message
    assert "2 times (data_source math; first uid 98):\n    timed out" in message
    assert "KeyError: 1" not in message  # one text per cause is enough


def test_the_edges_of_a_step():
    results = [bad()] * 5 + [GOOD] * 95
    keep, _ = apply_policy(results, range(100), False, max_failure_ratio=0.05)
    assert keep.sum() == 95, "exactly the ratio is allowed"
    assert too_many(6, 100, 0.05) and not too_many(5, 100, 0.05)
    assert not too_many(7, 70, 0.1)  # 0.1 * 70 is 7.000000000000001
    with pytest.raises(RewardError, match="none of the 4 samples of the step could be used"):
        apply_policy(*step("aAbB"), True, max_failure_ratio=1.0)
    keep, report = apply_policy([], [], True, max_failure_ratio=0.0)
    assert keep.shape == (0,) and report.failed == 0
    with pytest.raises(ValueError, match="1 results for 2 uids"):
        apply_policy([GOOD], [1, 2], True, max_failure_ratio=0.0)


def test_a_watch_stops_at_the_first_failure_too_many():
    watch = FailureWatch(total=40, max_failure_ratio=0.05)
    for result, uid in zip(*step("aaAbbBcc"), strict=True):
        watch.add(uid, result)
    assert len(watch.failed) == 2  # what succeeded is not kept
    with pytest.raises(RewardError, match=r"stopped after scoring 9 of 40 samples: 3 failed, more") as error:
        watch.add(100, bad())
    assert "3 times (data_source gsm8k; first uid 97)" in str(error.value)
    last = FailureWatch(total=2, max_failure_ratio=0.0)
    last.add("a", GOOD)
    with pytest.raises(RewardError, match="^1 of 2 samples could not be scored, more than"):
        last.add("b", bad())


def test_a_cause_shows_the_row_and_the_response_of_its_first_sample():
    results = [bad("no score", index=12, response=r"I think\n\x1b[2J"), bad("no score", index=13, response="no")]
    text = describe_causes(results, ["a", "b"])
    assert text == (
        "  2 times (data_source gsm8k; first uid a, row index 12):\n    no score\n    response: I think\\n\\x1b[2J"
    )
    _, report = apply_policy([*results, GOOD], ["a", "b", "c"], False, max_failure_ratio=1.0)
    assert report.causes == text
    text = describe_causes([bad("e", index="a\nb"), GOOD], [0, 1])
    assert "row index a\\nb)" in text and describe_causes([GOOD], [0]) == ""
    many = [bad(f"Traceback\n  File x, line {i}\nValueError") for i in range(SHOWN_CAUSES + 2)]
    text = describe_causes(many, range(len(many)))
    assert text.count("once (") == SHOWN_CAUSES and text.endswith("and 2 other causes")


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4)), min_size=1), st.booleans())
def test_properties(samples, needs_groups):
    failed = np.array([f for f, _ in samples])
    uids = np.array([uid for _, uid in samples], dtype=object)
    results = [bad() if f else GOOD for f in failed]
    try:
        keep, report = apply_policy(results, uids, needs_groups, max_failure_ratio=1.0)
    except RewardError:
        keep, report = np.zeros(len(samples), dtype=bool), None
    assert not (keep & failed).any()
    if not failed.any():
        assert keep.all()
    for uid in set(uids):
        group = uids == uid
        good = int((group & ~failed).sum())
        hit = bool((group & failed).any())
        whole = good if good >= 2 or not hit or not needs_groups else 0
        if report is not None:
            assert int((group & keep).sum()) == whole
        else:
            assert whole == 0
