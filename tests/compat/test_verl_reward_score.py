"""verl's scorers: names, return types, and scores equal to those of burnish."""

import asyncio

import pytest
from verl.utils import reward_score
from verl.utils.reward_score import (
    countdown,
    geo3k,
    gsm8k,
    math,
    math_dapo,
    math_reward,
    math_verify,
    multiply,
    prime_math,
    qa_em,
    qa_em_format,
    search_r1_like_qa_em,
)
from verl.utils.reward_score.prime_code.utils import check_correctness
from verl.utils.reward_score.prime_math.grader import math_equal

from burnish.errors import ConfigError
from burnish.rewards.routing import default_compute_score as of_burnish

HALF = r"<think>\n</think> so \boxed{\frac{1}{2}}"
TARGET = {"target": ["Paris"]}


@pytest.mark.parametrize(
    "function, arguments, expected",
    [
        (gsm8k.compute_score, ("#### 1,234", "1234"), 1.0),
        (gsm8k.compute_score, ("it is 12", "12", "flexible"), 1.0),
        (gsm8k.extract_solution, ("#### 1,234",), "1234"),
        (math_reward.compute_score, (HALF, "0.5"), 1.0),
        (math_reward.compute_score, ("no box", "0.5"), 0.0),
        (math_reward.is_equiv, ("0.5", r"\frac12"), True),
        (math_reward.is_equiv, (None, None), True),
        (math_reward.is_equiv, (None, "1"), False),
        (math_verify.compute_score, ("The answer is $x$: $2$. The answer is 3", "3"), 1.0),
        (math_dapo.compute_score, ("Answer: 7", "7"), {"score": 1.0, "acc": True, "pred": "7"}),
        (math_dapo.compute_score, ("none", "7"), {"score": -1.0, "acc": False, "pred": "[INVALID]"}),
        (math_dapo.verify, ("Answer: 7", "7"), (True, "7")),
        (math_dapo.normalize_final_answer, (r"n = \boxed{1,000}\text{ cm}",), "1000"),
        (math_dapo.normalize_final_answer, (r"$a+b=\dfrac12$.",), r"\frac{1}{2}"),
        (math_dapo.normalize_final_answer, ("1/2",), "1/2"),
        (math_dapo.is_correct_minerva, ("Answer: 6/4\nAnswer: $7$ points", r"\boxed{7}", True), (True, "7")),
        (math_dapo.is_correct_minerva, ("none", "7"), (False, "[INVALID]")),
        (math.strip_string, ("1/2",), r"\frac{1}{2}"),
        (math.strip_string, ("x = .5",), r"\frac{1}{2}"),
        (math.strip_string, (r"\left(3,\ \sqrt2\right)",), r"(3,\sqrt{2})"),
        (math.strip_string, (r"10\%",), "10"),
        (math.strip_string, (r"\text{East}",), "East"),
        (math.strip_string, ("",), ""),
        (math_equal, ("50%", 0.5), True),
        (math_equal, (r"\frac{6}{4}", "1.5"), True),
        (math_equal, ("3", "2"), False),
        (prime_math.compute_score, (r"\boxed{6/4}", "3/2"), (True, True, "6/4")),
        (prime_math.grade_answer, ("6/4", "3/2"), True),
        (prime_math.grade_answer, (None, "3/2"), False),
        (geo3k.compute_score, (HALF, "0.5"), 1.0),
        (geo3k.acc_reward, (HALF, "0.5"), 1.0),
        (geo3k.format_reward, ("2",), 0.0),
        (search_r1_like_qa_em.compute_score, ("<answer>The Paris.</answer>", TARGET), 1.0),
        (search_r1_like_qa_em.compute_score, ("<answer>Rome</answer>", TARGET, "strict", 0.1), 0.1),
        (qa_em.compute_score_em, ("<answer>Paris</answer>", TARGET), 1.0),
        (qa_em_format.compute_score_em, ("<answer>Rome</answer>", TARGET, "strict", 0.2, 0.1), 0.1),
        (qa_em.compute_score_subem, ("<answer>in Paris, France</answer>", TARGET), 1.0),
        (qa_em.extract_solution, ("<answer> x </answer>",), "x"),
        (qa_em.em_check, ("the Paris", ["Rome", "Paris"]), 1),
        (qa_em.subem_check, ("in Paris", "Paris"), 1),
        (search_r1_like_qa_em.normalize_answer, ("The  Café!",), "café"),
        (search_r1_like_qa_em.count_answer_tags, ("<answer>a</answer><answer>",), (2, 1)),
        (countdown.compute_score, ("<answer>3 * 8</answer>", {"target": 24, "numbers": [3, 8]}), 1.0),
        (multiply.compute_score, ("<answer>13</answer>", "12"), 0.1),
    ],
)
def test_functions_return_what_users_expect(function, arguments, expected):
    found = function(*arguments)
    assert found == expected and type(found) is type(expected)


@pytest.mark.parametrize(
    "text, box, content",
    [
        (r"a \boxed{1} and \boxed{\frac{1}{2}}.", r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\fbox{9}", r"\fbox{9}", "9"),
        (r"so \boxed 5$ it is", r"\boxed 5", "5"),
    ],
)
def test_boxes_are_found_and_opened(text, box, content):
    assert math_reward.last_boxed_only_string(text) == box
    assert math_reward.remove_boxed(box) == content


@pytest.mark.parametrize("text", ["no box", r"\boxed{never closed"])
def test_text_without_a_box_has_none(text):
    assert math_reward.last_boxed_only_string(text) is None
    with pytest.raises(AssertionError):
        math_reward.remove_boxed(text)


@pytest.mark.parametrize(
    "source, response, truth",
    [
        ("openai/gsm8k", "#### 5", "5"),
        ("lighteval/MATH", HALF, r"\frac{2}{4}"),
        ("numina_olympiads", r"\boxed{7}", "7"),
        ("hiyouga/geometry3k", r"\boxed{7}", "7"),
        ("searchR1_nq", "<answer>Paris</answer>", TARGET),
        ("mbpp", "```python\ndef one():\n    return 1\n```", ["assert one() == 1"]),
    ],
)
def test_default_score_is_a_number_equal_to_burnish(source, response, truth):
    try:
        score = reward_score.default_compute_score(source, response, truth, {})
    except ConfigError as error:  # this machine cannot isolate programs
        pytest.skip(str(error))
    given = of_burnish(source, response, truth)
    given = asyncio.run(given) if asyncio.iscoroutine(given) else given
    assert type(score) is float and score == (given["score"] if isinstance(given, dict) else given)


def test_programs_are_checked_test_by_test():
    tests = {"inputs": ["1\n", "2\n"], "outputs": ["2", "4"]}
    try:
        passed, happened = check_correctness(tests, "print(int(input()) + 1)")
    except ConfigError as error:  # this machine cannot isolate programs
        pytest.skip(str(error))
    assert passed == [True, False] and "wrote '3" in happened[1]["why"]


def test_default_score_refuses_unknown_sources():
    with pytest.raises(NotImplementedError, match="no built-in scorer"):
        reward_score.default_compute_score("nothing", "a", "b")
