"""multiply: the product in <answer>, and the ways a number may be written."""

import pytest

from burnish.rewards.scores.multiply import compute_score
from tests.rewards.conftest import cases


def score(answer: str, truth: object = "1234567", **options: float) -> dict:
    return compute_score(f"so <answer>{answer}</answer>", truth, **options)


RIGHT = cases("""
    1234567 ;; 1,234,567 ;; 1 234 567 ;; +1234567 ;; 001234567 ;; 1234567. ;; **1234567** ;; **1,234,567**.
    **1234567.** ;; 1234567.0 ;; 1,234,567.00 ;; **+1234567.0**
""")


@pytest.mark.parametrize("answer", [*RIGHT, " 1234567 ", "1\u202f234\u202f567"])
def test_right_answers(answer):
    assert score(answer) == {"score": 1.0, "acc": 1.0, "format": 1.0, "pred": "1234567"}


@pytest.mark.parametrize("answer", ["1234568", "-1234567", "0", "9" * 100_000])
def test_another_integer_earns_the_format_score(answer):
    result = score(answer, format_score=0.1)
    assert (result["score"], result["acc"], result["format"]) == (0.1, 0.0, 1.0)


NO_INTEGERS = cases("""
    12,34567 ;; 1,234567 ;; 1234567.5 ;; **1234567 ;; 1234567** ;; 1234567 apples ;; 1e6 ;; x ;; - ;; 1234 567
    ١ ;; --5 ;; 5 * 5 = 25
""")


@pytest.mark.parametrize("answer", [*NO_INTEGERS, ""])
def test_no_integer(answer):
    assert score(answer, format_score=0.1) == {"score": 0.0, "acc": 0.0, "format": 0.0, "pred": ""}


def test_the_last_answer_counts():
    assert score("-0", 0)["score"] == 1.0
    assert compute_score("1234567", "1234567", format_score=0.1)["score"] == 0.0
    assert compute_score("<answer>1234567</answer><answer>7</answer>", "1234567")["score"] == 0.0, "the last counts"
