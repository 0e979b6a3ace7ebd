"""The failure policy, as examples and as properties."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.errors import RewardError
from burnish.rewards.contract import ScoreResult
from burnish.rewards.failures import SHOWN_CAUSES, FailureWatch, apply_policy, describe_causes, too_many

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
