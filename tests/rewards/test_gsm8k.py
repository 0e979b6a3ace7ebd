"""gsm8k against the recorded scores, and where those are wrong."""

import pytest

from burnish.rewards.scores.gsm8k import WINDOW, compute_score, extract_solution
from tests.recorded import each, golden
from tests.rewards.conftest import cases

GOLDEN = golden("reward_gsm8k")

# Where the recorded scorer refuses a right answer or rewards none: what is right instead, as (extracted, score).
CORRECTED = {
    "gsm8k/flexible/1": ("1234", 1.0),  # commas
    **dict.fromkeys(("gsm8k/flexible/21", "gsm8k/flexible/22"), ("1000000", 1.0)),
    **dict.fromkeys(("gsm8k/strict/2", "gsm8k/flexible/2"), ("1234.50", 1.0)),  # dollar sign
    **dict.fromkeys(("gsm8k/strict/6", "gsm8k/flexible/6"), ("12", 1.0)),  # full stop
    **dict.fromkeys(("gsm8k/flexible/18", "gsm8k/flexible/19"), ("42", 1.0)),
    **dict.fromkeys(("gsm8k/flexible/34", "gsm8k/flexible/46"), ("5", 1.0)),
    "gsm8k/flexible/50": ("12", 1.0),  # an ellipsis does not hide the number before it
    # no digit is no number
    **dict.fromkeys((f"gsm8k/{case}" for case in ("strict/35", "strict/36", "strict_format_score/36")), (None, 0.0)),
    **dict.fromkeys((f"gsm8k/flexible/{number}" for number in (35, 36, 37)), (None, 0.0)),
    # numbers are compared by value
    **dict.fromkeys(("gsm8k/strict/7", "gsm8k/flexible/7"), ("12.0", 1.0)),
    **dict.fromkeys(("gsm8k/strict/9", "gsm8k/flexible/9"), (".5", 1.0)),
    **dict.fromkeys(("gsm8k/strict/41", "gsm8k/flexible/41"), ("007", 1.0)),
}


@each(GOLDEN)
def test_golden(case):
    inputs, params = case["inputs"], case["params"]
    recorded = (case["expected"]["extracted"], case["expected"]["score"])
    extracted, score = CORRECTED.get(case["name"], recorded)
    assert extract_solution(inputs["solution_str"], params["method"]) == extracted
    options = {name: params[name] for name in ("method", "format_score", "score")}
    assert compute_score(inputs["solution_str"], inputs["ground_truth"], **options) == score


def test_every_correction_is_one():
    recorded = {case["name"]: (case["expected"]["extracted"], case["expected"]["score"]) for case in GOLDEN}
    assert not [name for name, right in CORRECTED.items() if recorded[name] == right]


WAYS = cases(r"""
    #### $18 ;; #### 18. ;; #### $18. ;; #### \$18 ;; #### 18, ;; #### 18.00 ;; #### $18.00 ;; #### 018
    #### **18** ;; #### **$18.00** ;; **#### 18** ;; #### *18* ;; #### 18,00
""")
ANYWHERE = ["18.00", "it costs $18.00.", "so it is **18**", "3, 18", "3,18", "so it is...18"]


@pytest.mark.parametrize(
    ("text", "method"), [(text, "strict") for text in WAYS] + [(text, "flexible") for text in ANYWHERE]
)
def test_ways_to_write_a_right_answer(text, method):
    assert compute_score(f"x = 3\n{text}", "18", method) == 1.0


@pytest.mark.parametrize(
    ("text", "strict", "flexible"),
    [
        ("#### 1,8", "1", "8"),
        ("#### 1,234,567", "1234567", "1234567"),
        ("#### 12,34", "12", "34"),
        ("#### 1,2345", "1", "2345"),
        ("#### 1234,567", "1234", "567"),
        ("#### 1,234,56", "1", "56"),
        ("#### 1,234.50", "1234.50", "1234.50"),
        ("#### 1,234, 5", "1234", "5"),
    ],
)
def test_commas_belong_to_a_number_only_between_groups_of_three(text, strict, flexible):
    assert (extract_solution(text), extract_solution(text, "flexible")) == (strict, flexible)
    assert compute_score("#### 1,8", "18") == compute_score("#### 1,8", "18", "flexible") == 0.0


def test_values_are_exact_and_signs_read_in_any_order():
    assert compute_score("#### 18.0000000000000000000000000000001", "18") == 0.0
    assert compute_score("#### " + "9" * 290, "9" * 290) == 1.0
    assert compute_score("#### " + "9" * 290, "9" * 289 + "8") == 0.0
    for text in ("#### -$1,018", "#### $-1,018", "#### -1018."):
        for ground_truth in ("-1,018", "-$1018", -1018, -1018.0, "-1018.00"):
            assert compute_score(text, ground_truth) == 1.0, (text, ground_truth)


def test_a_number_cut_by_the_window_is_not_read_by_half():
    for method in ("strict", "flexible"):
        assert extract_solution("#### 1234" + "b" * (WINDOW - 2), method) is None
        assert extract_solution("#### 34" + "b" * (WINDOW - 7), method) == "34"


def test_format_score_is_for_a_wrong_number_only():
    assert [compute_score(text, "8", format_score=0.1) for text in ("#### 7", "seven", "#### 8")] == [0.1, 0.0, 1.0]
