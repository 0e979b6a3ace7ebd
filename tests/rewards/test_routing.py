"""Which scorer a row gets and what it must hold; and every scorer keeps the contract, on hostile texts too."""

import inspect
import json

import pytest

from burnish.errors import DataError
from burnish.rewards.routing import (
    SCORERS,
    SOURCES,
    check_row,
    default_compute_score,
    scorer_for,
    scorer_options,
    style_of,
    truth_of,
)
from burnish.rewards.scores.qa_em import compute_score as score_qa
from burnish.rewards.scores.qa_em import contains_any
from burnish.rewards.scores.reasoning_gym_guards import GUARDS, is_formula
from burnish.rewards.scores.sums import parse
from tests.rewards.conftest import quick


def test_sources_are_found_by_name_and_by_family():
    for source, name in {"gsm8k": "gsm8k", "HuggingFaceH4/MATH-500": "math", "hiyouga/geometry3k": "geo3k"}.items():
        assert scorer_for(source).name == name
    families = {"aime2024": "math_dapo", "numina_olympiads": "prime_math", "searchR1_nq": "qa_em"}
    families |= {"reasoning_gym/chain_sum": "reasoning_gym", "OpenAI/GSM8K": "gsm8k", "HotpotQA": "qa_em"}
    families |= dict.fromkeys(("Maxwell-Jia/AIME_2024", "math_dapo_reasoning", "AIME2025"), "math_dapo")
    for source, name in families.items():
        assert scorer_for(source).name == name
    assert len(set(SOURCES)) == len(SOURCES)
    in_processes = {scorer.name for scorer in SCORERS if scorer.runs == "process"}
    assert in_processes == {"math", "math_dapo", "prime_math", "geo3k", "reasoning_gym"}


@pytest.mark.parametrize("scorer", SCORERS, ids=lambda scorer: scorer.name)
def test_every_scorer_keeps_the_contract(scorer):
    assert {"solution_str", "ground_truth"} & set(inspect.signature(scorer.module.compute_score).parameters)
    assert list(inspect.signature(scorer.module.reference).parameters) == ["ground_truth", "extra_info"]
    assert list(inspect.signature(scorer.module.check).parameters) == ["ground_truth", "extra_info"]
    is_async = inspect.iscoroutinefunction(scorer.module.compute_score)
    assert is_async == (scorer.runs == "sandbox"), "one that runs programs waits for many at a time; others do not wait"


def test_unknown_source_names_the_known_ones_and_the_way_to_add_one():
    with pytest.raises(DataError) as error:
        default_compute_score("opanai/gsm8k", "#### 1", "1")
    message = str(error.value)
    assert "data_source='opanai/gsm8k'" in message and "did you mean 'openai/gsm8k'?" in message
    assert "Known: openai/gsm8k, gsm8k, burnish/arithmetic, lighteval/MATH, " in message
    assert all(source in message for source in SOURCES)
    assert "custom_reward_function.path" in message and "routing.py" in message
    with pytest.raises(DataError) as error:
        scorer_for("xyzzy")
    assert "did you mean" not in str(error.value)


def test_options_reach_the_scorers_that_name_them():
    assert default_compute_score("gsm8k", "it is 7", "7") == 0.0
    assert default_compute_score("gsm8k", "it is 7", "7", method="flexible", sandbox={}) == 1.0
    assert default_compute_score("burnish/arithmetic", "answer: 7", 7, {"index": 1}, method="flexible")["score"] == 1.0
    # gsm8k and qa_em both have a `method`, with choices of their own; one run may have rows of both.
    rome = "nq", "<answer>in Rome</answer>", "Rome"
    assert default_compute_score(*rome, method="flexible", format_score=0.25)["score"] == 0.25
    assert default_compute_score(*rome, method="f1")["score"] == pytest.approx(2 / 3)
    assert default_compute_score("gsm8k", "#### 7", "7", method="f1") == 1.0
    with pytest.raises(ValueError, match="method='loose': gsm8k knows 'strict' and 'flexible'"):
        default_compute_score("gsm8k", "it is 7", "7", method="loose")
    known = scorer_options()
    assert known >= {"method", "format_score", "score", "retrieval_score", "sandbox"}
    assert not known & {"data_source", "solution_str", "ground_truth", "extra_info"}


def row(**fields):
    return {"data_source": "gsm8k", "reward_model": {"style": "rule", "ground_truth": "7"}, **fields}


DEEP = "[" * 100_000 + "]" * 100_000
NEGATED = json.dumps(["assert f(" + "-" * 50_000 + "1)"])


@pytest.mark.parametrize(
    "fields",
    [
        {"data_source": "apps", "reward_model": {"ground_truth": DEEP}},
        {"data_source": "mbpp", "extra_info": {"test_cases": NEGATED}},
        {"data_source": "countdown", "reward_model": {"ground_truth": DEEP.replace("[", '{"a":').replace("]", "}")}},
        {"data_source": "reasoning_gym/chain_sum", "extra_info": {"metadata": DEEP}},
    ],
)
def test_what_is_nested_too_deeply_to_be_read_is_a_problem_of_the_row(fields):
    assert "nested too deeply" in check_row(row(**fields))


EMPTY = [None, {}, {"style": "rule"}, {"ground_truth": None}, {"ground_truth": ""}, {"ground_truth": []}]


@pytest.mark.parametrize("reward_model", EMPTY)
def test_a_row_without_the_ground_truth_its_scorer_reads_or_with_it_in_the_wrong_place(reward_model):
    problem = check_row(row(reward_model=reward_model))
    assert problem.startswith("reward_model.ground_truth is missing: the scorer 'gsm8k' of 'gsm8k' compares with it")
    assert "fill it in" in problem and "custom_reward_function.path" in problem
    assert check_row(row(reward_model=reward_model), custom=True) is None
    misplaced = row(reward_model=reward_model, ground_truth="7")
    for custom in (True, False):
        problem = check_row(misplaced, custom=custom)
        assert problem.startswith("the row has 'ground_truth' at top level; put it under reward_model: {")
    assert check_row(misplaced, custom=True, reads_ground_truth=False) is None, "where it is not needed, no mistake"
    assert check_row(row(ground_truth="8"), custom=True) is None, "reward_model has one as well"


@pytest.mark.parametrize("source", ["math", "math_dapo", "numina_olympiads", "hiyouga/geometry3k", "mbpp"])
def test_a_ground_truth_of_the_wrong_type_is_refused_before_anything_is_scored(source):
    wrong = {"data_source": source, "reward_model": {"ground_truth": {"answer": 1}}}
    needs = f"{scorer_for(source).name} needs the answer as text or a number, not dict"
    assert ("the key 'answer' is not known" if source == "mbpp" else needs) in check_row(wrong)
    assert check_row(wrong, custom=True) is None


def test_the_check_of_a_scorer_sees_the_other_fields_of_the_row():
    tests = [{"input": "1", "output": "2"}]
    assert check_row({"data_source": "apps", "reward_model": {"test_cases": tests}}) is None
    assert check_row({"data_source": "apps", "extra_info": {"test_cases": tests}}) is None
    assert check_row({"data_source": "apps", "extra_info": {"index": 1}}) is not None
    given = {"reward_model": {"style": "rule", "ground_truth": "7", "a": 1, "b": 1}, "extra_info": {"b": 2}}
    assert truth_of(given) == ("7", {"style": "rule", "a": 1, "b": 2}), "the row's own over those of its reward_model"
    assert truth_of({}) == (None, {}) and truth_of({"reward_model": None, "extra_info": None}) == (None, {})


def test_other_problems_name_the_field():
    no_source = "the row has no data_source, which chooses the scorer: set custom_reward_function.path="
    for fields, said in (
        ({"data_source": None}, no_source),
        ({"data_source": "unknown"}, no_source),  # as a dataset fills it in
        ({"data_source": "mystery"}, "data_source='mystery' has no built-in scorer"),
        ({"reward_model": "7"}, "reward_model='7': must be a dict"),
    ):
        assert check_row(row(**fields)).startswith(said)
        assert check_row(row(**fields), custom=True) is None
    assert "or add the column. Known: openai/gsm8k, gsm8k, burnish/ar" in check_row(row(data_source=None))
    assert check_row(row()) is None
    assert check_row(row(reward_model={"style": "anything", "ground_truth": 0})) is None
    assert check_row({**row(data_source="mystery"), "task": "gsm8k"}, "task") is None
    assert check_row(row(), "extra_info.task") is None  # the dataset has already put it in data_source


def test_styles():
    for style, found in {"model": "model", "both": "both", "rule": "rule", "rule-lighteval/MATH_v2": "rule"}.items():
        assert style_of({"reward_model": {"style": style}}) == found
    for reward_model in ({}, None, "7"):
        assert style_of({"reward_model": reward_model}) == "rule"


@pytest.mark.parametrize("style", ["model", "both"])
def test_a_row_that_asks_for_a_reward_model_where_there_is_none(style):
    asks = row(reward_model={"style": style, "ground_truth": "7"})
    problem = check_row(asks)
    assert problem.startswith(f"reward_model.style='{style}' asks for a reward model, but none is set: ")
    assert "reward_model.enable=true reward_model.model.path=" in problem
    assert "make the style 'rule'" in problem and "custom_reward_function.path=" in problem
    assert (check_row(asks, custom=True) is None) == (style == "model"), "a function is no half of a score"
    assert check_row(asks, reward_model=True) is None
    assert check_row({"reward_model": {"style": "model"}}, reward_model=True) is None, "nothing else is asked of it"
    assert check_row({"reward_model": {"style": "model"}}, reward_model=True, custom=True) is None
    assert "has no data_source" in check_row({"reward_model": {"style": "both"}}, reward_model=True)
    assert "is missing" in check_row({"data_source": "gsm8k", "reward_model": {"style": "both"}}, reward_model=True)


SIZE = 100_000
TRUTHS = {"gsm8k": "18", "arithmetic": 18, "qa_em": "18", "countdown": {"target": 18, "numbers": [18]}, "multiply": 18}
UNITS = (
    "9|0|1,|1,234|-|$|.|9.|0 | |\n|#### |#### 1,|#|*|(|=|= |=1 |answer:|answer: 1|answer: 0|<answer>|</answer>|the |a|x"
    "|1x|<answer>1</answer>|<think>|<search>q</search>|\u0300\u0316|e\u0301|\ufdfa|’|９|1+|1e|/"
).split("|")
MANY = [unit * (SIZE // len(unit)) for unit in UNITS]
FORMS = ("{}", "<answer>{}</answer>", "answer: {}", "answer: {}.5", "#### {}", "<answer>=1{}")
HERE = [scorer for scorer in SCORERS if scorer.runs == "here"]


@pytest.mark.parametrize("scorer", HERE, ids=lambda scorer: scorer.name)
def test_in_place(scorer):
    for text in (form.format(many) for many in MANY for form in FORMS):
        with quick(text):
            scorer.module.compute_score(text, TRUTHS[scorer.name])


def test_of_rewards_for_the_form_and_whole_words():
    for text in (f"<answer>{many}</answer>" for many in MANY):
        with quick(text):
            score_qa(text, "18", {"retrieved": [text]}, structure_format_score=0.1)
    with quick():
        assert not contains_any("ab" * SIZE, ["ab" * 100])
        assert contains_any("x " * SIZE + "y", ["x y"])


@pytest.mark.parametrize("task", GUARDS)
def test_before_a_verifier_is_asked(task):
    metadata = {"numbers": [1], "integrand": "x", "variable": "x", "problem": "1 + 1"}
    entry = {"answer": "[1]" if task == "number_sorting" else "1", "metadata": metadata}
    for text in MANY:
        with quick(text):
            GUARDS[task](text, entry)
            assert is_formula(text) is False and parse(text) is None
