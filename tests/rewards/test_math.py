r"""math against the recorded scores of two scorers (equality of rewritten text; math-verify), and where they err."""

import pytest

from burnish.rewards.equivalence import LONGEST, equivalent
from burnish.rewards.scores.answers import last_box, last_boxed, stated, truth_text
from burnish.rewards.scores.math import check, compute_score, reference
from burnish.rewards.scores.math_dapo import extract_answer
from tests.recorded import each, golden
from tests.rewards.conftest import quick

BOXED = golden("reward_math", function="math_reward")
REWRITTEN = golden("reward_math", function="math_reward_strip_string")
MATH_VERIFY = golden("reward_math_verify")

EMPTY = "an empty ground truth is an error of the row"
# Number of the case → why the recorded score is wrong. All but EMPTY score 1 here and 0 there.
CORRECTED = {
    **dict.fromkeys((6, 7, 12, 32, 33, 54, 55, 56, 57, 69, 74), "the same value, written in another way"),
    **dict.fromkeys((13, 14, 15), "thousands are set apart"),
    **dict.fromkeys((23, 70), "an equation that names the answer"),
    **dict.fromkeys((30, 71, 73), "a word or letter in \\text or \\mathrm, or with a capital"),
    **dict.fromkeys((67, 68), "a list in another order, or with a word between"),
    37: "\\fbox is a box",
    51: "3.0 is 3",
    53: "− is a minus sign",
    39: EMPTY,
}
# The same for math-verify, with the score that is right.
CORRECTED_MATH_VERIFY = {
    9: (1.0, "the last box counts, not all together"),
    21: (1.0, "a percent sign is a unit"),
    37: (1.0, "\\fbox is a box"),
    39: (None, EMPTY),
    62: (0.0, "a number somewhere in the text is no answer"),
    65: (0.0, "words around a number are not skipped"),
}
# Texts that are not what they were rewritten to.
WRONGLY_REWRITTEN = {
    "strip_string/18": "1 2 3 is not 123",
    "strip_string/22": "a line break is not a backslash",
    "strip_string/25": "two units raise an error",
}


pytestmark = pytest.mark.usefixtures("no_algebra_process_left")


def number(case) -> int:
    return int(case["name"].rpartition("/")[2])


def scored(case, **options) -> float | None:
    inputs = case["inputs"]
    try:
        return compute_score(inputs["solution_str"], inputs["ground_truth"], **options)["score"]
    except ValueError as error:
        assert "it is empty" in str(error)
        return None


def test_every_case_is_read():
    assert (len(golden("reward_math")), len(BOXED), len(REWRITTEN), len(MATH_VERIFY)) == (101, 75, 26, 75)
    assert len(CORRECTED) == 25 and len(CORRECTED_MATH_VERIFY) == 6


@each(BOXED)
def test_golden(case):
    expected = case["expected"]
    if reason := CORRECTED.get(number(case)):
        assert expected["score"] == (1.0 if reason is EMPTY else 0.0)
        assert scored(case) == (None if reason is EMPTY else 1.0), reason
    else:
        assert scored(case) == expected["score"]
    box, recorded = last_boxed(case["inputs"]["solution_str"]), expected["last_boxed"]
    assert box == (None if recorded is None else last_boxed(recorded))


@each(MATH_VERIFY)
def test_golden_of_math_verify(case):
    """It also reads answers without a box."""
    right, reason = CORRECTED_MATH_VERIFY.get(number(case), (case["expected"]["score"], "as recorded"))
    assert scored(case, require_box=False) == right, reason
    assert reason in ("as recorded", EMPTY) or right != case["expected"]["score"]


@each(REWRITTEN)
def test_what_is_rewritten_there_is_equal_here(case):
    text, rewritten = case["inputs"]["string"], case["expected"].get("stripped")
    if case["name"] in WRONGLY_REWRITTEN:
        assert rewritten is None or not equivalent(text, rewritten).equal
    else:
        assert equivalent(text, rewritten).equal


@pytest.mark.parametrize(
    ("response", "truth", "expected"),
    [
        ("so $x$ is \\boxed{\\dfrac{6}{4}}.", "1.5", {"score": 1.0, "acc": 1.0, "pred": "\\dfrac{6}{4}"}),
        ("\\boxed{2}", 1.5, {"pred": "2"}),
        ("none", "1.5", {}),
        (r"\boxed{10^{10^{10^{10}}}}", "1", {"pred": "10^{10^{10^{10}}}", "timed_out": 1.0}),
        (r"\boxed{x+5}", r"\frac{1}{", {"pred": "x+5", "unreadable_truth": 1.0}),
    ],
)
def test_the_result(response, truth, expected):
    nothing = {"score": 0.0, "acc": 0.0, "pred": "", "timed_out": 0.0, "unreadable_truth": 0.0}
    seconds = 0.5 if "timed_out" in expected else 10.0
    assert compute_score(response, truth, math_time_limit=seconds) == nothing | expected


def test_attacks_and_huge_responses_in_the_box(tmp_path):
    mark = tmp_path / "X"
    response = f"\\boxed{{__import__('os').system('touch {mark}')}}"
    assert compute_score(response, "5")["score"] == 0.0 and compute_score(response, "\\log_2 8")["score"] == 0.0
    assert not mark.exists()
    assert compute_score("\\boxed{" * 20_000, "5")["score"] == 0.0
    assert compute_score("\\boxed{" + "5" * 100_000 + "}", "5")["score"] == 0.0
    assert compute_score("answer: " * 20_000, "5", require_box=False)["score"] == 0.0


BOXES = {
    "\\boxed{a{b}c}": "a{b}c",
    "\\boxed {5}": "5",
    "\\boxed{\\{1,2\\}}": "\\{1,2\\}",
    "\\boxed{5} \\boxed{": None,
    "\\boxed{5} and \\boxedtext{6}": "5",
    "\\boxed 5\nand more": "5",
    "\\(\\boxed 5\\) and": "5",
    "\\fbox{\\boxed{3}}": "3",
    "boxed{5}": None,
}
STATED = {
    "The answer is 12. I hope it is correct.": "12",
    "**Answer:** $x=3.5$": "x=3.5",
    "Answer:\n\n7": "7",
    "answer is: 7": "7",
    "my answers are 7": None,
    "the answer isn't 7": None,
    "the answer is unclear, but the answer is 7": "7",
    "The answer is 5, because 2+3.": "5",
    "The answer is $7$ apples": "7",
}


def test_boxed_and_stated_answers():
    for text, content in BOXES.items():
        box = last_box(text)
        assert last_boxed(text) == content and (box is None or box.end <= len(text)), text
    for text, answer in STATED.items():
        assert stated(text) == answer, text


BITS = ["answer", "The answer is", "answer:", "answer*", " ", "\n", ":", "*", "$", "\\[", "is", ".", ", because",
        "\\boxed", "\\boxed{", "\\boxed \n", "\\fbox", "{", "}", "\\", "\\{"]  # fmt: skip


@pytest.mark.parametrize("before", ["", "The answer is", "answer:", "\\boxed{", "\\boxed"])
def test_reading_an_answer_takes_time_in_proportion(before):
    for bit in BITS:
        text = before + bit * (200_000 // len(bit))
        with quick(bit):
            for read in (stated, last_box, extract_answer):
                read(text)


def test_ways_to_give_the_truth():
    for truth, text in ((5, "5"), (5.0, "5"), (0.5, "0.5"), (" 5 ", "5"), ("so \\boxed{5}", "5")):
        assert truth_text(truth, "math") == text
        check(truth, {})
        assert compute_score(reference(truth, {}), truth)["score"] == 1.0


@pytest.mark.parametrize(
    ("truth", "message"),
    [
        (None, "reward_model.ground_truth='None': math needs the answer as text or a number, not NoneType"),
        (["5"], "math needs the answer as text or a number, not list"),
        (True, "not bool"),
        ({"target": 5}, "not dict"),
        ("", "it is empty"),
        ("  ", "it is empty"),
        (float("nan"), "math needs the answer as text or a number"),
        ("7" * (LONGEST + 1), f"of at most {LONGEST} characters; it has {LONGEST + 1}"),
    ],
)
def test_a_truth_that_is_none(truth, message):
    for act in (lambda: check(truth, {}), lambda: compute_score("\\boxed{5}", truth), lambda: reference(truth, {})):
        with pytest.raises(ValueError) as error:
            act()
        assert message in str(error.value)
