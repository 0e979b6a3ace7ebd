"""countdown: what counts as a right expression, what is never run, and the puzzles that rows hold."""

from fractions import Fraction

import pytest

from burnish.data.tasks.countdown import generate
from burnish.rewards.scores.countdown import MOST_NUMBERS, compute_score, reference, solve
from burnish.rewards.scores.sums import parse, value_of
from tests.rewards.conftest import cases, quick

TRUTH = {"target": 24, "numbers": [3, 8, 1, 1]}


def score(answer: str, truth: object = TRUTH, **options: float) -> dict:
    return compute_score(f"<think>3 * 8</think><answer>{answer}</answer>", truth, **options)


RIGHT = cases("""
    3 * 8 * 1 * 1 ;; (3*8)/1/1 ;; 3 × 8 ÷ 1 × 1 ;; 8*3 + 1 − 1 ;; -1 + 1 + 3 * 8 ;; 3 * -(1 - 8 - 1)
    1 / (1 / (3 * 8)) ;; 3*8*1*1 = 24 ;; 3 x 8 x 1 x 1 ;; 3x8X1·1 ;; 3 ⋅ 8 · 1 * 1. ;; 24 = 3*8*1*1
    3*8*1*1 = 24.0 ;; 24.00 = 3*8*1*1. ;; 3*8*1*1 = 24.
""")


@pytest.mark.parametrize("answer", [*RIGHT, " \n3*8\n*1*1 =24 "])
def test_right_answers(answer):
    assert score(answer) | {"pred": ""} == {"score": 1.0, "acc": 1.0, "format": 1.0, "pred": ""}


# A number is missing, one is there too often, a division by zero, digits put together, another value said, 0 times 3.
WRONG = cases("""
    3 * 8 ;; 3 * 8 * 1 * 1 * 1 ;; 24 ;; 3 * 8 + 1 + 1 ;; 3 * 8 / (1 - 1) ;; 31 - 8 + 1 ;; 3*8*1*1 = 25
    25 = 3*8*1*1 ;; 0x3
""")


@pytest.mark.parametrize("answer", WRONG)
def test_well_formed_but_wrong(answer):
    assert score(answer, format_score=0.1) == {"score": 0.1, "acc": 0.0, "format": 1.0, "pred": answer}


NOT_SUMS = cases("""
    twenty-four ;; 3 * 8 * 1 * 1 is it ;; 3 ** 8 ;; 3 // 8 ;; 3(8) ;; 3 * 8 * 1 * 1 = 24 = 24 ;; (3 * 8 ;; --3 ;; +3
    3.0 * 8 ;; 03 * 8 ;; 3 x * 8 ;; 3 xx 8 ;; 3*8*1*1 = 24.5 ;; 24 = 3*8*1*1 = 24 ;; 24 = ;; 1_1 ;; 1e3 ;; ٣ * 8
    [3, 8] ;; __import__('os').getcwd() ;; 9**9**9**9
""")
LONG = ["(" * 5000 + "3" + ")" * 5000, "-" * 5000 + "3", "3" * 5000, "1+" * 5000 + "1", "= " * 20000]


@pytest.mark.parametrize("answer", ["", *NOT_SUMS, *LONG])
def test_no_expression(answer):
    with quick():
        result = score(answer, format_score=0.1)
        assert (result["score"], result["format"]) == (0.0, 0.0)


def test_the_bound_is_met_without_harm():
    for text in ("(" * 499 + "1" + ")" * 499, "-" * 999 + "1", "1-" * 499 + "1"):
        assert parse(text) is None
    assert value_of(parse("9" * 400 + "*" + "9" * 400)) == (10**400 - 1) ** 2


def test_values_are_exact_and_only_the_last_answer_counts():
    assert score("24 = 24", {"target": 24, "numbers": [24]})["score"] == 1.0
    assert score("2 - 9 = −7", {"target": -7, "numbers": [2, 9]})["score"] == 1.0
    assert compute_score("<answer>3*8*1*1</answer> or <answer>3</answer>", TRUTH)["score"] == 0.0
    assert compute_score("3*8*1*1", TRUTH)["score"] == 0.0
    assert value_of(parse("1/3*3")) == 1
    assert value_of(parse("1/3 - 2")) == Fraction(-5, 3)
    near = {"target": 1, "numbers": [10**17, 10**17 + 1]}
    assert score(f"{10**17 + 1} / {10**17}", near)["score"] == 0.0


def test_searched_answers_of_generated_puzzles_are_right():
    for row in generate("train", 200, 1, {"numbers": "2,3,4"}):
        truth = row["reward_model"]["ground_truth"]
        assert compute_score(reference(truth, {}), truth)["score"] == 1.0


@pytest.mark.parametrize(
    ("numbers", "target"), [([7], 7), ([0, 5], 0), ([0, 0, 3], 0), ([1, 3, 4, 6], 24), ([2, 9], -7)]
)
def test_the_solver_finds_odd_ones(numbers, target):
    """Among them 6 / (1 - 3 / 4) = 24, which needs fractions."""
    assert score(solve(numbers, target), {"target": target, "numbers": numbers})["score"] == 1.0


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ([1, 1, 1], "the numbers cannot make the target"),
        ([1] * 6, f"more than {MOST_NUMBERS} numbers .*extra_info.answer"),
    ],
)
def test_puzzles_without_a_reference_answer(numbers, message):
    with pytest.raises(ValueError, match=message):
        reference({"target": 24, "numbers": numbers}, {})
