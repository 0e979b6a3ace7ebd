r"""math_dapo against the recorded scores, and where they err."""

import pytest

from burnish.rewards.equivalence import equivalent
from burnish.rewards.scores.math_dapo import INVALID, WINDOW, compute_score, extract_answer, reference
from tests.recorded import each, golden

GOLDEN = golden("reward_math_dapo")
SCORED = golden("reward_math_dapo", function="math_dapo")
NORMALISED = golden("reward_math_dapo", function="math_dapo_normalize")

# Numbers of cases in which both modes record -1 for a right answer.
COMPARED_RAW = {
    *(2, 3, 4, 5, 6, 7, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 32, 33, 34),
    *(51, 53, 54, 55, 56, 57, 66, 67, 68, 69, 70, 71, 73, 74),
}
OTHER_BOXES = {35: "5", 36: "5", 37: "9"}  # \boxed 5 and \fbox{9} are boxes too
EMPTY = 39  # an empty ground truth is an error of the row
AS_WRITTEN = {"math_dapo/minerva/63": "5 degrees", "math_dapo/minerva/64": "1,234,567"}
# Texts that are not what they are normalised to.
WRONGLY_NORMALISED = {
    "normalize/1": "'an' is deleted",
    "normalize/13": "5 and 6 is not 56",
    "normalize/14": "x or y is not x",
    "normalize/18": "'a ' is deleted",
    "normalize/19": "'th' is deleted",
    "normalize/22": "mbox becomes text inside a word",
    "normalize/29": "'sue' is deleted inside a word",
}


pytestmark = pytest.mark.usefixtures("no_algebra_process_left")


def test_every_case_is_read():
    assert (len(GOLDEN), len(SCORED), len(NORMALISED)) == (180, 150, 30)
    assert (len(COMPARED_RAW), len(OTHER_BOXES), len(WRONGLY_NORMALISED)) == (43, 3, 7)


@each(SCORED)
def test_golden(case):
    inputs, recorded, number = case["inputs"], case["expected"], int(case["name"].rpartition("/")[2])
    strict = case["params"]["strict_box_verify"]
    if number == EMPTY:
        with pytest.raises(ValueError, match="it is empty"):
            compute_score(inputs["solution_str"], inputs["ground_truth"], strict_box_verify=strict)
        return
    result = compute_score(inputs["solution_str"], inputs["ground_truth"], strict_box_verify=strict)
    pred = OTHER_BOXES.get(number) or AS_WRITTEN.get(case["name"]) or recorded["pred"] or INVALID
    right = recorded["acc"] or number in COMPARED_RAW or number in OTHER_BOXES
    expected = {"score": 1.0 if right else -1.0, "acc": float(right), "pred": pred}
    assert result == expected | {"timed_out": 0.0, "unreadable_truth": 0.0}
    assert not (recorded["acc"] and (number in COMPARED_RAW or number in OTHER_BOXES)), "listed, but as recorded"


@each(NORMALISED)
def test_what_is_normalised_there_is_equal_here(case):
    text, normalised = case["inputs"]["string"], case["expected"]["normalized"]
    assert equivalent(text, normalised).equal == (case["name"] not in WRONGLY_NORMALISED)


READ = {
    **dict.fromkeys(("**Answer:** 12", "Answer: $12$ (since 3*4)", "Answer: 12 (since 3*4)", "**Answer**: 12"), "12"),
    **dict.fromkeys(("Answer:\n$$\n12\n$$", "Answer: $$12$$", "Answer: \\[\n12\n\\]", "Answer: \\[12\\]"), "12"),
    **dict.fromkeys(("Final Answer:\n12", "Answer: 12. This is final.", "Answer: There are $12$ such triples."), "12"),
    "Answer: The final answer is $12$. I hope it is correct.": "12",
    "Answer: $\\boxed{\\frac12}$ as shown": "\\frac12",
    "Answer: $41$ or $42$": "$41$ or $42$",
    "\\boxed{3}" + " " * (WINDOW - 1): "3",
    "\\boxed{" + "+".join(["x"] * 200) + "}": "+".join(["x"] * 200),
    **dict.fromkeys(("The answer is 12", "Answer: 3" + " " * WINDOW, "\\boxed{3}" + " " * WINDOW, "myanswer: 3")),
}


@pytest.mark.parametrize("text", READ)
def test_where_the_answer_is_read(text):
    assert extract_answer(text) == READ[text]


def test_strict_mode_reads_boxes_only():
    assert extract_answer("\\boxed{3} Answer: 4") == "4"
    assert extract_answer("\\boxed{3} Answer: 4", strict_box_verify=True) == "3"
    assert compute_score(reference(204, {}), 204, strict_box_verify=True)["score"] == 1.0
