"""Long hostile responses: every scorer that runs in place answers at once, and never raises."""

import pytest

from burnish.rewards.routing import SCORERS
from burnish.rewards.scores.qa_em import compute_score as score_qa
from burnish.rewards.scores.qa_em import contains_any
from burnish.rewards.scores.reasoning_gym_guards import GUARDS, is_formula
from burnish.rewards.scores.sums import parse
from tests.rewards.conftest import quick

SIZE = 100_000
TRUTHS = {"gsm8k": "18", "arithmetic": 18, "qa_em": "18", "countdown": {"target": 18, "numbers": [18]}, "multiply": 18}
UNITS = (
    "9|0|1,|1,234|-|$|.|9.|0 | |\n|#### |#### 1,|#|*|(|=|= |=1 |answer:|answer: 1|answer: 0|<answer>|</answer>|the |a|x"
    "|1x|<answer>1</answer>|<think>|<search>q</search>|\u0300\u0316|e\u0301|\ufdfa|’|９|1+|1e|/"
).split("|")
MANY = [unit * (SIZE // len(unit)) for unit in UNITS]
FORMS = ("{}", "<answer>{}</answer>", "answer: {}", "answer: {}.5", "#### {}", "<answer>=1{}")
TEXTS = [form.format(many) for many in MANY for form in FORMS]
HERE = [scorer for scorer in SCORERS if scorer.runs == "here"]


@pytest.mark.parametrize("scorer", HERE, ids=lambda scorer: scorer.name)
def test_in_place(scorer):
    for text in TEXTS:
        with quick(text):
            scorer.module.compute_score(text, TRUTHS[scorer.name])


def test_of_rewards_for_the_form():
    for text in (f"<answer>{many}</answer>" for many in MANY):
        with quick(text):
            score_qa(text, "18", {"retrieved": [text]}, structure_format_score=0.1)


@pytest.mark.parametrize("task", GUARDS)
def test_before_a_verifier_is_asked(task):
    metadata = {"numbers": [1], "integrand": "x", "variable": "x", "problem": "1 + 1"}
    entry = {"answer": "[1]" if task == "number_sorting" else "1", "metadata": metadata}
    for text in MANY:
        with quick(text):
            GUARDS[task](text, entry)
            assert is_formula(text) is False and parse(text) is None


def test_whole_words_in_a_long_text():
    with quick():
        assert not contains_any("ab" * SIZE, ["ab" * 100])
        assert contains_any("x " * SIZE + "y", ["x y"])
