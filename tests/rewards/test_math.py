r"""math, math_dapo, prime_math and geo3k against the scores recorded of other scorers, and where these err."""

from typing import Any

import pytest

from burnish.rewards.equivalence import LONGEST, equivalent
from burnish.rewards.scores import geo3k, math_dapo, prime_math
from burnish.rewards.scores.answers import last_box, last_boxed, stated, truth_text
from burnish.rewards.scores.math import check, compute_score, reference
from burnish.rewards.scores.math_dapo import INVALID, WINDOW, extract_answer
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


def scored_by_math(case, **options) -> float | None:
    inputs = case["inputs"]
    try:
        return compute_score(inputs["solution_str"], inputs["ground_truth"], **options)["score"]
    except ValueError as error:
        assert "it is empty" in str(error)
        return None


@each(BOXED)
def test_golden(case):
    expected = case["expected"]
    if reason := CORRECTED.get(number(case)):
        assert expected["score"] == (1.0 if reason is EMPTY else 0.0)
        assert scored_by_math(case) == (None if reason is EMPTY else 1.0), reason
    else:
        assert scored_by_math(case) == expected["score"]
    box, recorded = last_boxed(case["inputs"]["solution_str"]), expected["last_boxed"]
    assert box == (None if recorded is None else last_boxed(recorded))


@each(MATH_VERIFY)
def test_golden_of_math_verify(case):
    right, reason = CORRECTED_MATH_VERIFY.get(number(case), (case["expected"]["score"], "as recorded"))
    assert scored_by_math(case, require_box=False) == right, reason
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


def test_huge_responses_in_the_box():
    assert compute_score("\\boxed{" * 20_000, "5")["score"] == 0.0
    assert compute_score("\\boxed{" + "5" * 100_000 + "}", "5")["score"] == 0.0
    assert compute_score("answer: " * 20_000, "5", require_box=False)["score"] == 0.0


def test_boxed_and_stated_answers():
    for text, content in {
        "\\boxed{a{b}c}": "a{b}c",
        "\\boxed {5}": "5",
        "\\boxed{\\{1,2\\}}": "\\{1,2\\}",
        "\\boxed{5} \\boxed{": None,
        "\\boxed{5} and \\boxedtext{6}": "5",
        "\\boxed 5\nand more": "5",
        "\\(\\boxed 5\\) and": "5",
        "\\fbox{\\boxed{3}}": "3",
        "boxed{5}": None,
    }.items():
        box = last_box(text)
        assert last_boxed(text) == content and (box is None or box.end <= len(text)), text
    for text, answer in {
        "The answer is 12. I hope it is correct.": "12",
        "**Answer:** $x=3.5$": "x=3.5",
        "Answer:\n\n7": "7",
        "answer is: 7": "7",
        "my answers are 7": None,
        "the answer isn't 7": None,
        "the answer is unclear, but the answer is 7": "7",
        "The answer is 5, because 2+3.": "5",
        "The answer is $7$ apples": "7",
    }.items():
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


# An empty ground truth is an error of the row.
DAPO, PRIME, GEO3K = (
    [case for case in golden(name) if case["inputs"].get("ground_truth")]
    for name in ("reward_math_dapo", "reward_prime_math", "reward_geo3k")
)
NORMALISED = golden("reward_math_dapo", function="math_dapo_normalize")

# Numbers of cases in which both modes of math_dapo record -1 for a right answer.
COMPARED_RAW = {
    *(2, 3, 4, 5, 6, 7, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 32, 33, 34),
    *(51, 53, 54, 55, 56, 57, 66, 67, 68, 69, 70, 71, 73, 74),
}
OTHER_BOXES = {35: "5", 36: "5", 37: "9"}  # \boxed 5 and \fbox{9} are boxes too
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
PRIME_RIGHT = {  # recorded as wrong
    **dict.fromkeys((54, 55, 57, 69), "the same value, written in another way"),
    **dict.fromkeys((67, 68), "a list in another order, or with a word between"),
    53: "− is a minus sign",
    36: "\\boxed 5$ ends at the dollar sign",
}
PRIME_PRED = {  # recorded with other text
    **{22: "x = 5", 23: "xyz = 5", 70: "a_n = 2n"},  # the left side is kept
    **{35: "5", 36: "5", 42: "12", 43: "12"},  # without \boxed, dollar signs and full stop
    **{38: "", 62: ""},  # no answer, not the whole text
}
# An answer in a form that is read, whether right or not; recorded is whether it was found right at once.
FORM_WITHOUT_SUCCESS = {10, 14, 36, 48, 50, 53, 54, 55, 57, 65, 67, 68, 69}
GEO3K_RIGHT = {  # recorded as wrong
    **dict.fromkeys(("geo3k/55", "geo3k/57", "geo3k/69"), "the same value, written in another way"),
    **dict.fromkeys(("geo3k/23", "geo3k/70"), "an equation that names the answer"),
    **dict.fromkeys(("geo3k/68", "geo3k/with_think/68"), "a list in another order"),
    **dict.fromkeys(("geo3k/35", "geo3k/36", "geo3k/with_think/36", "geo3k/37"), "\\boxed 5 and \\fbox{9} are boxes"),
    "geo3k/53": "− is a minus sign",
}


def scored(scorer: Any, case: dict[str, Any], *options: str) -> dict[str, Any]:
    chosen = {name: case["params"][name] for name in options}
    result: dict[str, Any] = scorer.compute_score(
        case["inputs"]["solution_str"], case["inputs"]["ground_truth"], **chosen
    )
    return result


def test_every_case_is_read():
    assert (len(golden("reward_math")), len(BOXED), len(REWRITTEN), len(MATH_VERIFY)) == (101, 75, 26, 75)
    assert len(CORRECTED) == 25 and len(CORRECTED_MATH_VERIFY) == 6
    assert [len(cases) for cases in (DAPO, NORMALISED, PRIME, GEO3K)] == [148, 30, 74, 112]
    assert (len(COMPARED_RAW), len(OTHER_BOXES), len(WRONGLY_NORMALISED)) == (43, 3, 7)
    assert (len(PRIME_RIGHT), len(PRIME_PRED), len(FORM_WITHOUT_SUCCESS), len(GEO3K_RIGHT)) == (8, 9, 13, 12)
    for scorer in (math_dapo, prime_math, geo3k):
        with pytest.raises(ValueError, match="it is empty"):
            scorer.compute_score("\\boxed{5}", "")


@each(DAPO)
def test_golden_of_math_dapo(case):
    result, recorded = scored(math_dapo, case, "strict_box_verify"), case["expected"]
    pred = OTHER_BOXES.get(number(case)) or AS_WRITTEN.get(case["name"]) or recorded["pred"] or INVALID
    corrected = number(case) in COMPARED_RAW or number(case) in OTHER_BOXES
    right = recorded["acc"] or corrected
    expected = {"score": 1.0 if right else -1.0, "acc": float(right), "pred": pred}
    assert result == expected | {"timed_out": 0.0, "unreadable_truth": 0.0}
    assert not (recorded["acc"] and corrected), "listed, but as recorded"


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
def test_where_math_dapo_reads_the_answer(text):
    assert extract_answer(text) == READ[text]


def test_strict_mode_reads_boxes_only():
    assert extract_answer("\\boxed{3} Answer: 4") == "4"
    assert extract_answer("\\boxed{3} Answer: 4", strict_box_verify=True) == "3"
    assert math_dapo.compute_score(math_dapo.reference(204, {}), 204, strict_box_verify=True)["score"] == 1.0


@each(PRIME)
def test_golden_of_prime_math(case):
    result, recorded, is_right = scored(prime_math, case), case["expected"], number(case) in PRIME_RIGHT
    is_formed = number(case) in FORM_WITHOUT_SUCCESS
    assert not (recorded["is_correct"] and is_right), "listed, but as recorded"
    assert not (recorded["format_correct"] and is_formed), "listed, but as recorded"
    right, formed = float(recorded["is_correct"] or is_right), float(recorded["format_correct"] or is_formed)
    pred = PRIME_PRED.get(number(case), recorded["extracted"])
    no_trouble = {"timed_out": 0.0, "unreadable_truth": 0.0}
    assert result == {"score": right, "acc": right, "format": formed, "pred": pred} | no_trouble


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
def test_answers_stated_to_prime_math(answer, truth, score):
    assert prime_math.compute_score(f"The answer is {answer}", truth)["score"] == score


@each(GEO3K)
def test_golden_of_geo3k(case):
    result, recorded = scored(geo3k, case, "use_boxed", "format_score"), case["expected"]
    assert not (recorded["acc"] and case["name"] in GEO3K_RIGHT), "listed, but as recorded"
    acc = 1.0 if case["name"] in GEO3K_RIGHT else recorded["acc"]
    assert (result["acc"], result["format"]) == (acc, recorded["format"])
    assert result["score"] == pytest.approx(0.9 * acc + 0.1 * recorded["format"])
    assert case["name"] in GEO3K_RIGHT or result["score"] == pytest.approx(recorded["score"])


def test_the_format_of_geo3k_and_its_weight():
    response = "<think>a</think> \\boxed{5}"
    assert geo3k.is_formed(response)
    for other in (
        "<think>a \\boxed{5}</think> 5",
        " <think>a</think> \\boxed{5}",
        "<think>a \\boxed{5}",
        "<think>a</think> \\boxed{5",
        "<think>" + "</think>" * 50_000,
    ):
        assert not geo3k.is_formed(other)
    assert geo3k.compute_score(response, "6", format_score=0.3)["score"] == pytest.approx(0.3)
    assert geo3k.compute_score("\\boxed{6}", "6", format_score=0.3)["score"] == pytest.approx(0.7)
    assert geo3k.compute_score(response, "6")["pred"] == "5"
