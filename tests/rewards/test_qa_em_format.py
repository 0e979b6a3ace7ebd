"""Rewards for the form of a searching response, against the recorded scores and beyond them."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from burnish.rewards.scores.qa_em import compute_score, count_searches

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "reward_searchr1_qa_em_format.json").read_text())
RECORDED = {case["name"]: case["expected"] for case in GOLDEN}
MARKER = "<|im_start|>assistant"

# Where the recorded scorer is wrong with a prompt in front: what is right instead, as (valid, score).
CORRECTED = {
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
    prompt, marker, response = recorded.partition(MARKER)
    text = re.sub(r"<\|(?:im_end|endoftext)\|>", "", response if marker else prompt)
    answered = re.compile(r"(?<=</search>)\s*<information>(.*?)</information>\s*", re.DOTALL)
    return answered.sub("", text), answered.findall(text)


def right(case: dict) -> tuple[bool, float]:
    """A case without the prompt, or without its marker as well, is as good as the one with both."""
    place, _, name = case["name"].rpartition("/")
    if place and name in CORRECTED:
        return CORRECTED[name]
    expected = RECORDED[f"with_prompt/{name}" if place in ("no_prompt_marker", "bare") else case["name"]]
    return expected["valid_format"], expected["score"]


def test_all_recorded_cases_are_read():
    assert len(GOLDEN) == 117
    assert {case["name"].rpartition("/")[2] for case in GOLDEN} >= set(CORRECTED)


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["name"])
def test_golden(case):
    text, retrieved = as_trajectory(case["inputs"]["solution_str"])
    options = {name: value for name, value in case["params"].items() if name != "function"}
    result = compute_score(text, {"target": case["inputs"]["target"]}, {"retrieved": retrieved}, **options)
    valid, score = right(case)
    assert result["score"] == pytest.approx(score)
    if "format" in result:
        assert result["format"] == valid
        # Made-up information counts for nothing; the recorded scorer counts it.
        made_up = "info_without_search" in case["name"]
        assert result["retrieval"] == (case["expected"]["retrieval_correct"] and not made_up)


def test_where_the_recorded_scorer_is_wrong():
    """With the prompt in front, the corrections above; else it misses the marker, or the second answer."""
    wrong = [case for case in GOLDEN if right(case) != (case["expected"]["valid_format"], case["expected"]["score"])]
    with_prompt = {case["name"] for case in wrong if case["name"].startswith("with_prompt/")}
    assert with_prompt == {f"with_prompt/{name}" for name in CORRECTED}
    for case in wrong:
        if case["name"] not in with_prompt:
            place, _, name = case["name"].rpartition("/")
            assert place in ("bare", "no_prompt_marker")
            no_marker = case["expected"]["reason"] == "Missing assistant marker"
            assert no_marker or case["expected"]["extracted"] is None or name in CORRECTED
    assert len(wrong) == 61


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
def test_the_table(text, retrieved, score):
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


def test_one_of_the_three_options_is_enough():
    for name in OPTIONS:
        assert "format" in compute_score(GOOD, "Rome", **{name: 0.1})
    assert "format" not in compute_score(GOOD, "Rome", format_score=0.1)


@pytest.mark.parametrize("other", [{"method": "f1"}, {"method": "subem"}, {"format_score": 0.1}])
def test_options_that_do_not_go_together(other):
    with pytest.raises(ValueError, match="go with method 'em' alone"):
        compute_score(GOOD, "Rome", **OPTIONS, **other)


def test_retrieved_passages_are_texts():
    assert compute_score(SEARCHED, "Rome", {"retrieved": np.array(["Rome"])}, **OPTIONS)["retrieval"] == 1.0
    for wrong in ("Rome", [["Rome"]], 3):
        with pytest.raises(ValueError, match="extra_info.retrieved=.*one for each search"):
            compute_score(SEARCHED, "Rome", {"retrieved": wrong}, **OPTIONS)
