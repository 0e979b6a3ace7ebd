r"""prime_math against the recorded scores, and where they err."""

import pytest

from burnish.rewards.scores.prime_math import compute_score
from tests.recorded import each, golden

GOLDEN = golden("reward_prime_math")

EMPTY = 39  # an empty ground truth is an error of the row
RIGHT = {  # recorded as wrong
    **dict.fromkeys((54, 55, 57, 69), "the same value, written in another way"),
    **dict.fromkeys((67, 68), "a list in another order, or with a word between"),
    53: "− is a minus sign",
    36: "\\boxed 5$ ends at the dollar sign",
}
PRED = {  # recorded with other text
    **{22: "x = 5", 23: "xyz = 5", 70: "a_n = 2n"},  # the left side is kept
    **{35: "5", 36: "5", 42: "12", 43: "12"},  # without \boxed, dollar signs and full stop
    **{38: "", 62: ""},  # no answer, not the whole text
}
# An answer in a form that is read, whether right or not; recorded is whether it was found right at once.
FORM_WITHOUT_SUCCESS = {10, 14, 36, 48, 50, 53, 54, 55, 57, 65, 67, 68, 69}


NO_TROUBLE = {"timed_out": 0.0, "unreadable_truth": 0.0}
pytestmark = pytest.mark.usefixtures("no_algebra_process_left")


def test_every_case_is_read():
    assert len(GOLDEN) == 75
    assert (len(RIGHT), len(PRED), len(FORM_WITHOUT_SUCCESS)) == (8, 9, 13)


@each(GOLDEN)
def test_golden(case):
    inputs, recorded, number = case["inputs"], case["expected"], int(case["name"].rpartition("/")[2])
    if number == EMPTY:
        with pytest.raises(ValueError, match="it is empty"):
            compute_score(inputs["solution_str"], inputs["ground_truth"])
        return
    assert not (recorded["is_correct"] and number in RIGHT), "listed, but as recorded"
    assert not (recorded["format_correct"] and number in FORM_WITHOUT_SUCCESS), "listed, but as recorded"
    right = float(recorded["is_correct"] or number in RIGHT)
    formed = float(recorded["format_correct"] or number in FORM_WITHOUT_SUCCESS)
    pred = PRED.get(number, recorded["extracted"])
    result = compute_score(inputs["solution_str"], inputs["ground_truth"])
    assert result == {"score": right, "acc": right, "format": formed, "pred": pred} | NO_TROUBLE


@pytest.mark.parametrize(
    ("answer", "truth", "score"),
    [
        ("(B) 12", "B", 1.0),
        ("5, because 2+3.", "5", 1.0),
        ("1.5708", r"\frac{\pi}{2}", 1.0),  # decimals are close enough for irrational truths only
        ("1.414", r"\sqrt2", 0.0),
        ("100.001", "100", 0.0),
    ],
)
def test_stated_answers(answer, truth, score):
    assert compute_score(f"The answer is {answer}", truth)["score"] == score
