import pytest

from burnish.rewards.scores.arithmetic import check, compute_score


@pytest.mark.parametrize(
    "text",
    ["answer: 933", "7+6+0=3,1\n=0933\nanswer: 933", "answer: 1\nanswer: 933", "Answer:933.", "answer: 0933"],
)
def test_right(text):
    assert compute_score(text, "933") == {"score": 1.0, "acc": 1.0, "format": 1.0, "pred": "933"}


@pytest.mark.parametrize("text", ["answer: 932", "answer: 933\nanswer: 1", "answer: -933", "answer: 93"])
def test_wrong_number(text):
    result = compute_score(text, "933")
    assert (result["score"], result["acc"], result["format"]) == (0.0, 0.0, 1.0)
    assert result["pred"] == text.split()[-1]


@pytest.mark.parametrize("text", ["", "933", "answer: ", "answer: 933.5", "answer: 93,3", "answer: nine"])
def test_no_integer_answer(text):
    assert compute_score(text, "933") == {"score": 0.0, "acc": 0.0, "format": 0.0, "pred": ""}


def test_more_digits_than_python_makes_a_number_of():
    nines = "9" * 100_000
    assert compute_score(f"answer: 0{nines}", "9")["pred"] == nines
    assert compute_score(f"answer: {nines}", "9")["score"] == 0.0


@pytest.mark.parametrize(("text", "pred"), [("answer: -0", "0"), ("answer: 000", "0"), ("answer: -007", "-7")])
def test_an_integer_is_written_in_one_way(text, pred):
    assert compute_score(text, int(pred)) == {"score": 1.0, "acc": 1.0, "format": 1.0, "pred": pred}


@pytest.mark.parametrize("ground_truth", ["x", "", None, 12.5, True, [1], {"target": 1}])
def test_such_rows_are_refused_before_anything_is_scored(ground_truth):
    for call in (lambda: check(ground_truth, {}), lambda: compute_score("answer: 1", ground_truth)):
        with pytest.raises(ValueError, match="reward_model.ground_truth=.*: arithmetic needs an integer"):
            call()


@pytest.mark.parametrize("ground_truth", ["12", " 12 ", 12, 12.0])
def test_ways_to_give_the_ground_truth(ground_truth):
    check(ground_truth, {})
    assert compute_score("answer: 12", ground_truth)["score"] == 1.0
    assert compute_score("answer: -5", -5)["score"] == 1.0
