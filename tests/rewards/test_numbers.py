"""Number scorers: gsm8k against the recorded scores, products and integers in any spelling, and countdown's puzzles."""

from fractions import Fraction

import pytest

from burnish.data.tasks.countdown import generate
from burnish.rewards.scores import arithmetic, multiply
from burnish.rewards.scores.countdown import MOST_NUMBERS, compute_score, reference, solve
from burnish.rewards.scores.gsm8k import WINDOW, extract_solution
from burnish.rewards.scores.gsm8k import compute_score as score_gsm8k
from burnish.rewards.scores.sums import parse, value_of
from tests.recorded import each, golden
from tests.rewards.conftest import cases, quick

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


@each(golden("reward_gsm8k"))
def test_golden(case):
    inputs, params = case["inputs"], case["params"]
    recorded = (case["expected"]["extracted"], case["expected"]["score"])
    extracted, score = CORRECTED.get(case["name"], recorded)
    assert ((extracted, score) != recorded) == (case["name"] in CORRECTED)
    assert extract_solution(inputs["solution_str"], params["method"]) == extracted
    options = {name: params[name] for name in ("method", "format_score", "score")}
    assert score_gsm8k(inputs["solution_str"], inputs["ground_truth"], **options) == score


WAYS = cases(r"""
    #### $18 ;; #### 18. ;; #### $18. ;; #### \$18 ;; #### 18, ;; #### 18.00 ;; #### $18.00 ;; #### 018
    #### **18** ;; #### **$18.00** ;; **#### 18** ;; #### *18* ;; #### 18,00
""")
ANYWHERE = ["18.00", "it costs $18.00.", "so it is **18**", "3, 18", "3,18", "so it is...18"]


@pytest.mark.parametrize(
    ("text", "method"), [(text, "strict") for text in WAYS] + [(text, "flexible") for text in ANYWHERE]
)
def test_ways_to_write_a_right_answer(text, method):
    assert score_gsm8k(f"x = 3\n{text}", "18", method) == 1.0


@pytest.mark.parametrize(
    ("text", "strict", "flexible"),
    [
        ("#### 1,8", "1", "8"),
        ("#### 1,234,567", "1234567", "1234567"),
        ("#### 12,34,567", "1234567", "34567"),
        ("#### 1,23,45,678.50", "12345678.50", "45678.50"),
        ("#### 12,34", "12", "34"),
        ("#### 1,2345", "1", "2345"),
        ("#### 1234,567", "1234", "567"),
        ("#### 1,234,56", "1", "56"),
        ("#### 1,234.50", "1234.50", "1234.50"),
        ("#### 1,234, 5", "1234", "5"),
    ],
)
def test_commas_belong_to_a_number_only_between_its_groups(text, strict, flexible):
    assert (extract_solution(text), extract_solution(text, "flexible")) == (strict, flexible)
    assert score_gsm8k("#### 12,34,567", "12,34,567") == score_gsm8k("#### 1234567", "12,34,567") == 1.0
    assert score_gsm8k("#### 1,8", "18") == score_gsm8k("#### 1,8", "18", "flexible") == 0.0


def test_values_are_exact_and_signs_read_in_any_order():
    assert score_gsm8k("#### 18.0000000000000000000000000000001", "18") == 0.0
    assert score_gsm8k("#### " + "9" * 290, "9" * 290) == 1.0
    assert score_gsm8k("#### " + "9" * 290, "9" * 289 + "8") == 0.0
    for text in ("#### -$1,018", "#### $-1,018", "#### -1018."):
        for ground_truth in ("-1,018", "-$1018", -1018, -1018.0, "-1018.00"):
            assert score_gsm8k(text, ground_truth) == 1.0, (text, ground_truth)


def test_a_number_cut_by_the_window_is_not_read_by_half():
    for method in ("strict", "flexible"):
        assert extract_solution("#### 1234" + "b" * (WINDOW - 2), method) is None
        assert extract_solution("#### 34" + "b" * (WINDOW - 7), method) == "34"


def test_format_score_is_for_a_wrong_number_only():
    assert [score_gsm8k(text, "8", format_score=0.1) for text in ("#### 7", "seven", "#### 8")] == [0.1, 0.0, 1.0]


def product(answer: str, truth: object = "1234567", **options: float) -> dict:
    return multiply.compute_score(f"so <answer>{answer}</answer>", truth, **options)


PRODUCTS = cases("""
    1234567 ;; 1,234,567 ;; 1 234 567 ;; +1234567 ;; 001234567 ;; 1234567. ;; **1234567** ;; **1,234,567**.
    **1234567.** ;; 1234567.0 ;; 1,234,567.00 ;; **+1234567.0**
""")
NO_INTEGERS = cases("""
    12,34567 ;; 1,234567 ;; 1234567.5 ;; **1234567 ;; 1234567** ;; 1234567 apples ;; 1e6 ;; x ;; - ;; 1234 567
    ١ ;; --5 ;; 5 * 5 = 25
""")


@pytest.mark.parametrize(
    ("answers", "score", "acc", "format_"),
    [
        ([*PRODUCTS, " 1234567 ", "1\u202f234\u202f567"], 1.0, 1.0, 1.0),
        (["1234568", "-1234567", "0", "9" * 100_000], 0.1, 0.0, 1.0),  # another integer
        ([*NO_INTEGERS, ""], 0.0, 0.0, 0.0),
    ],
)
def test_products(answers, score, acc, format_):
    for answer in answers:
        result = product(answer, format_score=0.1)
        pred = "1234567" if acc else answer if format_ else ""
        assert result == {"score": score, "acc": acc, "format": format_, "pred": pred}, answer[:40]


def test_the_last_product_counts():
    assert product("-0", 0)["score"] == 1.0
    assert multiply.compute_score("1234567", "1234567", format_score=0.1)["score"] == 0.0
    assert product("1234567</answer><answer>7")["score"] == 0.0


@pytest.mark.parametrize(
    ("text", "truth", "pred"),
    [
        *((text, "933", "933") for text in ("answer: 933", "7+6+0=3,1\n=0933\nanswer: 933", "Answer:933.")),
        *[("answer: 1\nanswer: 933", "933", "933"), ("answer: 0933", "933", "933")],
        *[("answer: 932", "933", "932"), ("answer: 933\nanswer: 1", "933", "1"), ("answer: -933", "933", "-933")],
        *[("answer: 93", "933", "93"), ("answer: -0", 0, "0"), ("answer: 000", 0, "0"), ("answer: -007", -7, "-7")],
        *((text, "933", "") for text in ("", "933", "answer: ", "answer: 933.5", "answer: 93,3", "answer: nine")),
        *[("answer: 0" + "9" * 100_000, "9", "9" * 100_000)],  # more digits than Python makes a number of
    ],
)
def test_the_last_integer_answer_counts_in_arithmetic(text, truth, pred):
    right = float(pred == str(truth))
    result = arithmetic.compute_score(text, truth)
    assert result == {"score": right, "acc": right, "format": float(bool(pred)), "pred": pred}


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
