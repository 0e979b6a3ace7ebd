import pytest

from burnish.data.tasks.math import INSTRUCTION, last_boxed, row
from burnish.data.tasks.task import LeftOut
from burnish.errors import DataError

OPTIONS = {"data_source": "lighteval/MATH"}


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        (r"so $\boxed{42}$.", "42"),
        (r"$\boxed{1}$, no, $\boxed{\frac{1}{2}}$", r"\frac{1}{2}"),
        (r"$\boxed{\{1, 2\}}$", r"\{1, 2\}"),
        (r"$\boxed{\left\{ x \right.}$", r"\left\{ x \right."),
        (r"$\fbox{C}$", "C"),
        (r"$\boxed 7$ apples", "7"),
        (r"$\boxed {8}$", "8"),
        (r"$\boxed{}$", None),
        (r"$\boxed{1", None),
        ("42", None),
    ],
)
def test_the_last_box(solution, answer):
    assert last_boxed(solution) == answer


def test_a_solution_with_a_box():
    record = {"problem": "1+1?", "solution": r"It is $\boxed{2}$.", "level": "Level 1", "type": "Algebra"}
    made = row(record, OPTIONS)
    assert made["prompt"] == [{"role": "user", "content": f"1+1?\n\n{INSTRUCTION}"}]
    assert made["reward_model"]["ground_truth"] == "2"
    assert made["extra_info"] == {
        "question": "1+1?",
        "answer": r"It is $\boxed{2}$.",
        "level": "Level 1",
        "type": "Algebra",
    }
    assert made["data_source"] == "lighteval/MATH"


def test_an_answer_of_its_own_wins_and_a_file_may_have_no_solutions():
    assert (
        row({"problem": "p", "answer": "x^2", "solution": r"\boxed{1}"}, OPTIONS)["reward_model"]["ground_truth"]
        == "x^2"
    )
    made = row({"problem": "p", "answer": "5", "difficulty": 3.0}, OPTIONS)
    assert made["extra_info"] == {"question": "p", "difficulty": 3.0}


@pytest.mark.parametrize(("answer", "truth"), [(0, "0"), (2.0, "2"), (0.5, "0.5")])
def test_numbers_are_taken_as_they_are_written(answer, truth):
    assert row({"problem": "p", "answer": answer}, OPTIONS)["reward_model"]["ground_truth"] == truth


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"problem": "p", "answer": ""}, "'answer' is empty"),
        ({"problem": "p", "answer": None}, "'answer' is empty"),
        ({"problem": "p", "answer": "", "solution": "I do not know"}, r"'solution' has no .boxed\{\}"),
        ({"problem": None, "answer": "1"}, "'problem' is empty"),
    ],
)
def test_records_that_are_left_out(record, reason):
    with pytest.raises(LeftOut, match=reason):
        row(record, OPTIONS)


def test_an_answer_that_is_neither_text_nor_number():
    with pytest.raises(DataError, match=r"column 'answer' holds \['1'\] \(list\); every row needs text or a number"):
        row({"problem": "p", "answer": ["1"]}, OPTIONS)
