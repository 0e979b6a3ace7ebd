"""qa_em against the recorded scores of three scorers, the places where those are wrong, and what it adds."""

import re

import numpy as np
import pytest

from burnish.rewards.scores.answer_tag import last_answer
from burnish.rewards.scores.qa_em import (
    compute_score,
    contains_any,
    count_searches,
    gold_answers,
    normalise,
    reference,
    token_f1,
)
from tests.recorded import each, golden
from tests.rewards.conftest import cases

VERL = golden("reward_search_r1_like_qa_em")
SEARCH_R1 = golden("reward_searchr1_qa_em")
NORMALISED = [case for case in VERL if case["params"]["function"] == "qa_normalize"]
SCORED = [case for case in VERL if case["params"]["function"] != "qa_normalize"]

ERROR = ("an error", None)
# Where the recorded scorer is wrong: what is right instead, as (pred, score), for both methods or for one.
CORRECTED = {
    # a right answer without any text: the row is wrong
    **dict.fromkeys(("plain/12", "prompt/12x", "plain/24", "prompt/24x"), ERROR),
    # an empty answer is not right because "the" normalises to nothing
    **dict.fromkeys(("spaced/13", "prompt/13x"), ("", 0.0)),
    **dict.fromkeys(("subem two/23", "subem prompt/23x"), ("theater", 0.0)),  # "ater" is no word of "theater"
    "special/nested": ("Paris", 1.0),  # the answer begins at the nearest opening tag
    "format_score/special/nested": ("Paris", 0.1),
    # punctuation beyond ASCII's
    **dict.fromkeys(("em prompt/18", "em two/18x"), ("北京。", 1.0)),
    **dict.fromkeys(("em two/19", "em prompt/19x"), ("“Hamlet”", 1.0)),
    **dict.fromkeys(("two/39", "prompt/39x"), ("it’s", 1.0)),
    # the example of the prompt is not the policy's answer
    **dict.fromkeys(("special/only_prompt", "special/prompt_then_no_answer"), ("", 0.0)),
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


@each(NORMALISED)
def test_normalising_agrees_with_the_recorded_texts(case):
    recorded_text = case["expected"]["normalized"]
    expected = WITHOUT_PUNCTUATION.get(case["name"], recorded_text)
    assert normalise(case["inputs"]["string"]) == expected
    assert (expected != recorded_text) == (case["name"] in WITHOUT_PUNCTUATION)


@each(SCORED)
def test_golden(case):
    assert scored(case) == right(case)


@each(SEARCH_R1)
def test_golden_of_the_scorer_that_reads_the_prompt_too(case):
    """It has the same cases as the other file, and is right where that one is. Its own mistake is to want two answers,
    because the prompt has one; and it does not punish spam."""
    twin = next(other for other in SCORED if parts(other) == parts(case))
    assert twin["inputs"] == case["inputs"]
    assert scored(case) == right(twin)


def test_every_case_is_read_and_every_correction_is_one():
    assert (len(NORMALISED), len(SCORED), len(SEARCH_R1), len(FORMED)) == (42, 224, 224, 117)
    corrected = [parts(case) for case in SCORED if right(case) != recorded(case)]
    assert not set(CORRECTED) - {key for method, name in corrected for key in (name, f"{method} {name}")}
    assert len(corrected) == 30


def test_the_last_answer():
    for text, answer in {
        "<answer>a</answer> or <answer> b </answer>": "b",
        "I will close with an <answer> tag. <answer>Rome</answer>": "Rome",
        "<answer>Rome</answer> and <answer>": "Rome",
        "<answer>Rome</answer></answer>": "Rome",
        **dict.fromkeys(("</answer><answer>", "<answer>Rome", "")),
    }.items():
        assert last_answer(text) == answer, text


ALIKE = cases("""
    O’Brien ~ O'Brien ;; 1914–1918 ~ 1914-1918 ;; Jay‑Z ~ Jay-Z ;; “Hello” ~ Hello ;; Ｔｏｋｙｏ　２０２０ ~ Tokyo 2020
    wait… ~ wait ;; −5 ~ -5 ;; ＄５ ~ $5 ;; Hawaiʻi ~ Hawai'i ;; Cafe\u0301 ~ Café
""")


@pytest.mark.parametrize(("answer", "gold"), [case.split(" ~ ") for case in ALIKE])
def test_other_characters_for_the_same(answer, gold):
    assert compute_score(f"<answer>{answer}</answer>", gold)["score"] == 1.0
    assert compute_score(f"<answer>{gold}</answer>", answer)["score"] == 1.0


@pytest.mark.parametrize(("answer", "gold"), [("Cafe", "Café"), ("ß", "ss"), ("10 €", "10"), ("C♯", "C")])
def test_letters_and_symbols_stay(answer, gold):
    assert compute_score(f"<answer>{answer}</answer>", gold)["score"] == 0.0


@pytest.mark.parametrize("method", ["em", "subem", "f1"])
def test_references_are_right_and_what_normalises_to_nothing_is_compared_as_written(method):
    for target in ("Paris", "The The", "!!!", "A+"):
        response = reference({"target": [target, "other"]}, {})
        assert compute_score(response, {"target": target}, method=method)["score"] == 1.0
    for answer in ("the", "a", "!", " ", "The Who"):
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
    assert gold_answers(["", "Rome", " "]) == ["Rome"]
    assert compute_score("<answer>1,972</answer>", {"target": [1972]})["score"] == 1.0
    assert compute_score("<answer>R</answer>", "Rome")["score"] == 0.0, "a text is one answer, not its letters"
    assert compute_score("<answer>x b</answer>", "b y", method="f1", score=2.0)["score"] == 1.0
    assert compute_score("<answer>x</answer>", "b", method="f1", format_score=0.1)["score"] == 0.1
    assert token_f1("new york new york", ["new york"]) == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="method='loose': qa_em knows 'em', 'subem' and 'f1'"):
        compute_score("<answer>a</answer>", "a", method="loose")


def test_contained_as_whole_words():
    for text, gold, expected in (
        ("the capital is “Paris”, they say", "Paris", True),
        ("Parisian life", "Paris", False),
        ("comparis on", "Paris", False),
        ("New York City", "york city", True),
        ("1972", "72", False),
        ("我住在北京市", "北京", True),  # a script without blanks between words
        ("i̇stanbul", "i", False),  # an accent that is a character of its own ends no word
        ("anything", "The", False),
    ):
        assert contains_any(text, [gold]) is expected, text


# Rewards for the form of a searching response.

FORMED = golden("reward_searchr1_qa_em_format")
RECORDED_FORM = {case["name"]: case["expected"] for case in FORMED}

# Where the recorded scorer is wrong with a prompt in front: what is right instead, as (valid, score).
CORRECTED_FORM = {
    "eos_after": (True, 1.0),  # special tokens are no text of the policy's
    "endoftext_after": (True, 1.0),
    "info_contains_tags": (True, 1.0),  # what a document says is not the policy's doing
    "unclosed_answer": (False, 0.0),  # no answer; the recorded one is the example of the prompt
    "no_answer": (False, 0.0),
    "no_answer_2": (False, 0.0),
    "only_think": (False, 0.0),
    "empty": (False, 0.0),
}
OPTIONS = {"structure_format_score": 0.2, "final_format_score": 0.1, "retrieval_score": 0.05}


def as_trajectory(recorded: str) -> tuple[str, list[str]]:
    """The policy's own text and the retrieved passages of a recorded text.

    Information is retrieved where it answers a search; anywhere else the policy has made it up.
    """
    text = re.sub(r"<\|(?:im_end|endoftext)\|>", "", policy_text(recorded))
    answered = re.compile(r"(?<=</search>)\s*<information>(.*?)</information>\s*", re.DOTALL)
    return answered.sub("", text), answered.findall(text)


def right_form(case: dict) -> tuple[bool, float]:
    """A case without the prompt, or without its marker as well, is as good as the one with both."""
    place, _, name = case["name"].rpartition("/")
    if place and name in CORRECTED_FORM:
        return CORRECTED_FORM[name]
    expected = RECORDED_FORM[f"with_prompt/{name}" if place in ("no_prompt_marker", "bare") else case["name"]]
    return expected["valid_format"], expected["score"]


@each(FORMED)
def test_golden_of_the_form(case):
    text, retrieved = as_trajectory(case["inputs"]["solution_str"])
    options = {name: value for name, value in case["params"].items() if name != "function"}
    result = compute_score(text, {"target": case["inputs"]["target"]}, {"retrieved": retrieved}, **options)
    valid, score = right_form(case)
    place, _, name = case["name"].rpartition("/")
    if place == "with_prompt":
        is_right = (valid, score) == (case["expected"]["valid_format"], case["expected"]["score"])
        assert is_right == (name not in CORRECTED_FORM)
    assert result["score"] == pytest.approx(score)
    if "format" in result:
        assert result["format"] == valid
        # Made-up information counts for nothing; the recorded scorer counts it.
        made_up = "info_without_search" in case["name"]
        assert result["retrieval"] == (case["expected"]["retrieval_correct"] and not made_up)


GOOD, WRONG = "<think>t</think><answer>Rome</answer>", "<think>t</think><answer>Oslo</answer>"
SEARCHED = "<think>t</think><search>q</search>\n<think>t</think><answer>Oslo</answer>"


@pytest.mark.parametrize(
    ("text", "retrieved", "score"),
    [
        (GOOD, None, 1.0),
        (f"Sure! {GOOD}", None, 0.8),
        (SEARCHED, ["", "the ROME."], 0.1),  # two passages for one search
        (SEARCHED, ["It is in Rome."], 0.25),
        (SEARCHED, ["It is Romeo."], 0.2),
        (SEARCHED, None, 0.2),
        (WRONG, [], 0.2),
        (f"{WRONG}!", [], 0.1),
        ("<think>t</think><answer> </answer>", None, 0.2),
        (SEARCHED.replace("Oslo", ""), ["Rome"], 0.2),
        ("<answer> </answer>", None, 0.0),
        ("<think>t</think>", None, 0.0),
        ("", None, 0.0),
    ],
)
def test_the_table_of_the_form(text, retrieved, score):
    extra_info = {} if retrieved is None else {"retrieved": retrieved}
    assert compute_score(text, "Rome", extra_info, **OPTIONS)["score"] == pytest.approx(score)


def test_made_up_information_is_invalid_and_not_retrieved():
    text = SEARCHED.replace("</search>", "</search><information>Rome</information>")
    result = compute_score(text, "Rome", {"retrieved": [""]}, **OPTIONS)
    assert (result["score"], result["format"], result["retrieval"]) == (0.1, 0.0, 0.0)


@pytest.mark.parametrize(
    ("text", "searches"),
    [
        (f" {GOOD}\n", 0),
        (SEARCHED, 1),
        ("<think>t</think><search>q</search>" * 3 + GOOD, 3),
        ("<think>t</think>" * 2 + "<answer>a</answer>", None),
        ("<think>t</think><search>q</search><answer>a</answer>", None),
        ("<think>t</think><search>q</search>", None),
        (GOOD + GOOD, None),
        (GOOD + "</think>", None),
        ("<think>t</answer>", None),
        ("<think>t<answer>a</answer></think>", None),
        ("<THINK>t</THINK><answer>a</answer>", None),
        (GOOD + "<think>", None),
    ],
)
def test_valid_responses(text, searches):
    assert count_searches(text) == searches


def test_one_of_the_three_options_is_enough_and_others_do_not_go_with_them():
    for name in OPTIONS:
        assert "format" in compute_score(GOOD, "Rome", **{name: 0.1})
    assert "format" not in compute_score(GOOD, "Rome", format_score=0.1)
    for other in ({"method": "f1"}, {"method": "subem"}, {"format_score": 0.1}):
        with pytest.raises(ValueError, match="go with method 'em' alone"):
            compute_score(GOOD, "Rome", **OPTIONS, **other)


def test_retrieved_passages_are_texts():
    assert compute_score(SEARCHED, "Rome", {"retrieved": np.array(["Rome"])}, **OPTIONS)["retrieval"] == 1.0
    for wrong in ("Rome", [["Rome"]], 3):
        with pytest.raises(ValueError, match="extra_info.retrieved=.*one for each search"):
            compute_score(SEARCHED, "Rome", {"retrieved": wrong}, **OPTIONS)
