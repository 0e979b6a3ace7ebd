import pytest

from burnish.rewards.scores.arithmetic import compute_score


@pytest.mark.parametrize(
    ("text", "truth", "pred"),
    [
        *((text, "933", "933") for text in ("answer: 933", "7+6+0=3,1\n=0933\nanswer: 933", "Answer:933.")),
        *[("answer: 1\nanswer: 933", "933", "933"), ("answer: 0933", "933", "933")],
        *[("answer: 932", "933", "932"), ("answer: 933\nanswer: 1", "933", "1"), ("answer: -933", "933", "-933")],
        *[("answer: 93", "933", "93"), ("answer: -0", 0, "0"), ("answer: 000", 0, "0"), ("answer: -007", -7, "-7")],
        *((text, "933", "") for text in ("", "933", "answer: ", "answer: 933.5", "answer: 93,3", "answer: nine")),
    ],
)
def test_the_last_integer_answer_counts(text, truth, pred):
    right = float(pred == str(truth))
    assert compute_score(text, truth) == {"score": right, "acc": right, "format": float(bool(pred)), "pred": pred}


def test_more_digits_than_python_makes_a_number_of():
    nines = "9" * 100_000
    assert compute_score(f"answer: 0{nines}", "9")["pred"] == nines
    assert compute_score(f"answer: {nines}", "9")["score"] == 0.0
