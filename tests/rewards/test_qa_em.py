"""qa_em against the recorded scores of two scorers, the places where those are wrong, and what it adds."""

import json
from pathlib import Path

import numpy as np
import pytest

from burnish.rewards.scores.answer_tag import last_answer
from burnish.rewards.scores.qa_em import check, compute_score, reference
from burnish.rewards.scores.short_answer import contains_any, gold_answers, normalise, token_f1

FOLDER = Path(__file__).parents[1] / "golden"
VERL = json.loads((FOLDER / "reward_search_r1_like_qa_em.json").read_text())
SEARCH_R1 = json.loads((FOLDER / "reward_searchr1_qa_em.json").read_text())
NORMALISED = [case for case in VERL if case["params"]["function"] == "qa_normalize"]
SCORED = [case for case in VERL if case["params"]["function"] != "qa_normalize"]

ERROR = ("an error", None)
# Where the recorded scorer is wrong: what is right instead, as (pred, score), for both methods or for one.
CORRECTED = {
    "plain/12": ERROR,  # a right answer without any text: the row is wrong
    "prompt/12x": ERROR,
    "plain/24": ERROR,
    "prompt/24x": ERROR,
    "spaced/13": ("", 0.0),  # an empty answer is not right because "the" normalises to nothing
    "prompt/13x": ("", 0.0),
    "subem two/23": ("theater", 0.0),  # "ater" is no word of "theater"
    "subem prompt/23x": ("theater", 0.0),
    "special/nested": ("Paris", 1.0),  # the answer begins at the nearest opening tag
    "format_score/special/nested": ("Paris", 0.1),
    "em prompt/18": ("北京。", 1.0),  # punctuation beyond ASCII's
    "em two/18x": ("北京。", 1.0),
    "em two/19": ("“Hamlet”", 1.0),
    "em prompt/19x": ("“Hamlet”", 1.0),
    "two/39": ("it’s", 1.0),
    "prompt/39x": ("it’s", 1.0),
    "special/only_prompt": ("", 0.0),  # the example of the prompt is not the policy's answer
    "special/prompt_then_no_answer": ("", 0.0),
}


# The same for the normalised texts.
WITHOUT_PUNCTUATION = {"normalize/18": "北京", "normalize/19": "hamlet", "normalize/39": "its"}


def policy_text(recorded: str) -> str:
    """The recorded text without the prompt that stands before it."""
    prompt, marker, response = recorded.partition("<|im_start|>assistant")
    return response if marker else prompt


def parts(case: dict) -> tuple[str, str]:
    """The method and the name of a case, which the two files have in common."""
    family, _, name = case["name"].partition("/")
    return family.rpartition("_")[2], name


def recorded(case: dict) -> tuple[str, float]:
    return case["expected"]["extracted"] or "", case["expected"]["score"]


def right(case: dict) -> tuple[str, float | None]:
    method, name = parts(case)
    return CORRECTED.get(name) or CORRECTED.get(f"{method} {name}") or recorded(case)


def scored(case: dict) -> tuple[str, float | None]:
    options = {name: case["params"][name] for name in ("format_score", "score")}
    text, truth = policy_text(case["inputs"]["solution_str"]), {"target": case["inputs"]["target"]}
    try:
        result = compute_score(text, truth, method=parts(case)[0], **options)
    except ValueError:
        return ERROR
    return result["pred"], result["score"]


def test_all_recorded_cases_are_read():
    assert (len(NORMALISED), len(SCORED), len(SEARCH_R1)) == (42, 224, 224)


@pytest.mark.parametrize("case", NORMALISED, ids=lambda case: case["name"])
def test_normalising_agrees_with_the_recorded_texts(case):
    recorded_text = case["expected"]["normalized"]
    expected = WITHOUT_PUNCTUATION.get(case["name"], recorded_text)
    assert normalise(case["inputs"]["string"]) == expected
    assert (expected != recorded_text) == (case["name"] in WITHOUT_PUNCTUATION)


@pytest.mark.parametrize("case", SCORED, ids=lambda case: case["name"])
def test_golden(case):
    assert scored(case) == right(case)


def test_every_correction_is_one():
    names = {key for case in SCORED if right(case) != recorded(case) for key in (parts(case)[1], " ".join(parts(case)))}
    assert not set(CORRECTED) - names
    assert sum(right(case) != recorded(case) for case in SCORED) == 30


@pytest.mark.parametrize("case", SEARCH_R1, ids=lambda case: case["name"])
def test_golden_of_the_scorer_that_reads_the_prompt_too(case):
    """It has the same cases as the other file, and is right where that one is. Its own mistake is to want two answers,
    because the prompt has one; and it does not punish spam."""
    twin = next(other for other in SCORED if parts(other) == parts(case))
    assert twin["inputs"] == case["inputs"]
    assert scored(case) == right(twin)
    if right(twin) != recorded(case):
        wanted_two = case["expected"]["extracted"] is None and case["inputs"]["solution_str"].count("</answer>") > 0
        spam = case["inputs"]["solution_str"].count("<answer>") > 10 and parts(case)[0] == "em"
        assert wanted_two or spam or right(twin) != recorded(twin)


def test_how_often_that_scorer_is_wrong():
    twins = {parts(case): right(case) for case in SCORED}
    assert sum(twins[parts(case)] != recorded(case) for case in SEARCH_R1) == 76


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>a</answer> or <answer> b </answer>", "b"),
        ("I will close with an <answer> tag. <answer>Rome</answer>", "Rome"),
        ("<answer>Rome</answer> and <answer>", "Rome"),
        ("<answer>Rome</answer></answer>", "Rome"),
        ("</answer><answer>", None),
        ("<answer>Rome", None),
        ("", None),
    ],
)
def test_the_last_answer(text, answer):
    assert last_answer(text) == answer


@pytest.mark.parametrize(
    "ground_truth",
    [{"target": "Rome"}, {"target": ["Milan", "Rome"]}, "Rome", ["Milan", "Rome"], {"target": np.array(["Rome"])}],
)
def test_ways_to_give_the_right_answers(ground_truth):
    check(ground_truth, {})
    assert gold_answers(["", "Rome", " "]) == ["Rome"]
    assert compute_score("<answer>1,972</answer>", {"target": [1972]})["score"] == 1.0
    assert compute_score("<answer>the rome.</answer>", ground_truth)["score"] == 1.0
    assert compute_score("<answer>R</answer>", ground_truth)["score"] == 0.0


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("O’Brien", "O'Brien"),
        ("1914–1918", "1914-1918"),
        ("Jay‑Z", "Jay-Z"),
        ("“Hello”", "Hello"),
        ("Ｔｏｋｙｏ　２０２０", "Tokyo 2020"),
        ("wait…", "wait"),
        ("−5", "-5"),
        ("＄５", "$5"),
        ("Hawaiʻi", "Hawai'i"),
        ("Cafe\u0301", "Café"),
    ],
)
def test_other_characters_for_the_same(answer, gold):
    assert compute_score(f"<answer>{answer}</answer>", gold)["score"] == 1.0
    assert compute_score(f"<answer>{gold}</answer>", answer)["score"] == 1.0


@pytest.mark.parametrize(("answer", "gold"), [("Cafe", "Café"), ("ß", "ss"), ("10 €", "10"), ("C♯", "C")])
def test_letters_and_symbols_stay(answer, gold):
    assert compute_score(f"<answer>{answer}</answer>", gold)["score"] == 0.0


@pytest.mark.parametrize(
    "ground_truth", [None, {}, {"target": None}, {"target": []}, {"target": " "}, 1.5, [True], [["a"]]]
)
def test_a_row_without_a_right_answer(ground_truth):
    for call in (lambda: check(ground_truth, {}), lambda: compute_score("<answer>a</answer>", ground_truth)):
        with pytest.raises(ValueError, match="reward_model.ground_truth=.*qa_em"):
            call()


@pytest.mark.parametrize("target", ["Paris", "The The", "!!!", "A+"])
def test_the_reference_answer_is_right(target):
    response = reference({"target": [target, "other"]}, {})
    assert all(
        compute_score(response, {"target": target}, method=method)["score"] == 1.0 for method in ("em", "subem", "f1")
    )


@pytest.mark.parametrize("answer", ["the", "a", "!", " ", "The Who"])
def test_what_normalises_to_nothing_is_compared_as_written(answer):
    for method in ("em", "subem", "f1"):
        assert compute_score(f"<answer>{answer}</answer>", "The The", method=method)["score"] == 0.0


def test_the_other_fields_of_a_result():
    result = compute_score("<answer>Barack Hussein Obama</answer>", ["Obama", "Barack Obama"], format_score=0.1)
    assert result == {"score": 0.1, "acc": 0.0, "em": 0.0, "f1": 0.8, "pred": "Barack Hussein Obama"}
    nothing = {"score": 0.0, "acc": 0.0, "em": 0.0, "f1": 0.0, "pred": ""}
    for text in ("<answer> </answer>", "a b"):
        assert compute_score(text, "a b", format_score=0.1) == nothing
    spam = compute_score("<answer>Rome</answer>" * 11, "Rome")
    assert (spam["score"], spam["acc"]) == (0.25, 1.0), "right, but it earns a quarter"


def test_methods():
    assert compute_score("<answer>x b</answer>", "b y", method="f1", score=2.0)["score"] == 1.0
    assert compute_score("<answer>x</answer>", "b", method="f1", format_score=0.1)["score"] == 0.1
    assert token_f1("new york new york", ["new york"]) == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="method='loose': qa_em knows 'em', 'subem' and 'f1'"):
        compute_score("<answer>a</answer>", "a", method="loose")


@pytest.mark.parametrize(
    ("text", "gold", "expected"),
    [
        ("the capital is “Paris”, they say", "Paris", True),
        ("Parisian life", "Paris", False),
        ("comparis on", "Paris", False),
        ("New York City", "york city", True),
        ("1972", "72", False),
        ("我住在北京市", "北京", True),  # a script without blanks between words
        ("i̇stanbul", "i", False),  # an accent that is a character of its own ends no word
        ("anything", "The", False),
    ],
)
def test_contained_as_whole_words(text, gold, expected):
    assert contains_any(text, [gold]) is expected
