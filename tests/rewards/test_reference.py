"""Reference answers: every built-in scorer gives its own full marks, and rows are held to theirs."""

import json

import numpy as np
import pytest

from burnish.config.reward import RuleConfig
from burnish.errors import ConfigError
from burnish.rewards.contract import FunctionSpec
from burnish.rewards.reference import TRIALS, References, Remark, as_text
from burnish.rewards.routing import SCORERS, default_compute_score
from burnish.rewards.scoring import Scoring

#: Scorer → a right response, ways to give the ground truth, and what is none.
TRUTHS = {
    "arithmetic": ("answer: 12", ["12", " 12 ", 12, 12.0], ["x", "", None, 12.5, True, [1], {"target": 1}]),
    "multiply": (
        "<answer>−1,234</answer>",
        ["-1234", -1234, -1234.0, np.int64(-1234), "-1,234", " -1234\n"],
        [None, "", "12.5", 12.5, True, [12], {"target": 12}, float("nan"), 1e300],
    ),
    "countdown": (
        "<answer>3 * 8 * 1 * 1</answer>",
        [
            json.dumps({"target": 24, "numbers": [3, 8, 1, 1]}),
            {"target": 24, "nums": [3, 8, 1, 1]},
            {"target": 24.0, "numbers": np.array([3, 8, 1, 1])},
            {"target": np.int64(24), "numbers": (3.0, 8.0, 1.0, 1.0)},
        ],
        [
            *(None, 24, "24 from 3, 8", "[3, 8]", {"numbers": [3, 8]}, {"target": 24}),
            *({"target": target, "numbers": [3, 8]} for target in ("24", True, 24.5)),
            *({"target": 24, "numbers": numbers} for numbers in ([], "38", [3, "8"], [3, -8], [3, float("nan")])),
        ],
    ),
    "qa_em": (
        "<answer>the rome.</answer>",
        [{"target": "Rome"}, {"target": ["Milan", "Rome"]}, "Rome", ["Milan", "Rome"], {"target": np.array(["Rome"])}],
        [None, {}, {"target": None}, {"target": []}, {"target": " "}, 1.5, [True], [["a"]]],
    ),
    "gsm8k": (
        "#### 18",
        ["18", "$18", 18, 18.0, "18.", " 18\n", "18.00"],
        ["seven", "", None, True, ["7"], {"target": "7"}, "18 apples", "3/4", "1,8"],
    ),
}


@pytest.mark.parametrize("name", TRUTHS)
def test_ways_to_give_the_ground_truth_and_rows_without_one(name):
    (scorer,) = (each.module for each in SCORERS if each.name == name)
    response, good, bad = TRUTHS[name]
    for truth in good:
        scorer.check(truth, {})
        for text in (response, scorer.reference(truth, {})):
            result = scorer.compute_score(text, truth)
            assert (result["score"] if isinstance(result, dict) else result) == 1.0
    said = name if name == "qa_em" else f"{name} needs"
    for truth in bad:
        with pytest.raises(ValueError, match=f"reward_model.ground_truth=(.|\\n)*{said}"):
            scorer.check(truth, {})
        if name != "gsm8k":  # which compares what is no number as text
            with pytest.raises(ValueError, match=f"reward_model.ground_truth=(.|\\n)*{said}"):
                scorer.compute_score(response, truth)


def test_references_of_other_numbers_and_of_mathematics_earn_full_marks():
    answers = ("1", r"\frac{1}{2}", "x + 1", r"\sqrt{2}", "(1, 2)", "-3.5")
    numbers = ("1,234", "-0.5", 7.5, 1e20, "-$1,018.25", -(10**12))
    truths = {**dict.fromkeys(("math", "math_dapo", "prime_math", "geo3k"), answers), "gsm8k": numbers}
    ask_more_of_a_row = {"code", "reasoning_gym"}  # a program and a puzzle; their own tests have them
    assert {scorer.name for scorer in SCORERS} == {*truths, *TRUTHS} | ask_more_of_a_row, "a new scorer brings its own"
    for scorer in SCORERS:
        for truth in truths.get(scorer.name, ()):
            scorer.module.check(truth, {})
            result = default_compute_score(scorer.sources[0], scorer.module.reference(truth, {}), truth)
            assert (result["score"] if isinstance(result, dict) else result) == 1.0, (scorer.name, truth)


def row(truth="72", source="gsm8k", **extra_info):
    return {"data_source": source, "reward_model": {"ground_truth": truth}, "extra_info": extra_info}


@pytest.fixture
def built_in():
    made = References.by(None)
    yield made
    made.close()


@pytest.fixture
def references(reward_file):
    made = []

    def make(source, name=""):
        made.append(References.by(reward_file(source) + name))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_worked_answer_in_another_form_is_no_problem_where_the_ground_truth_passes(built_in):
    rows = [row(), row(answer="48+24 = 72\n#### 72"), row(933, "burnish/arithmetic"), row(answer="  ")]
    assert [built_in.inspect(each) for each in rows] == [None] * 4
    assert built_in.score(rows) == [None] * 4, "right answers say nothing"
    for answer in ("72", "48 + 24 is 72."):
        bad, good = built_in.score([row(answer=answer), row(answer="#### 72")])
        text = f"extra_info.answer scores 0: '{answer}', where the ground truth is '72'"
        assert bad == Remark("worked_answer", text) and good is None
    for answer in ("it is\n#### 73", "it is 172", "0.72", "7.2", "-72"):  # they contradict it
        short, long = built_in.score([row(answer=answer), row(answer="x" * 500 + answer)])
        assert short.finding == long.finding == "failing_reference"
        assert "…" in long.text and len(long.text) < 200, "a long one is shown by its end"
        assert f"{answer[-5:]}'" in long.text


def test_a_ground_truth_that_its_scorer_cannot_reach_fails_with_or_without_a_worked_answer(built_in):
    rows = [row(1e-7), row("seven", "burnish/arithmetic"), row(1e-7, answer="x")]
    too_small, no_number, worked, unread = built_in.score([*rows, row("seven", "burnish/arithmetic", answer="7")])
    assert too_small.text.startswith("the ground truth scores 0: '#### 1e-07'")
    assert no_number == Remark("failing_reference", "reward_model.ground_truth='seven': arithmetic needs an integer")
    text = "extra_info.answer scores 0: 'x', where the ground truth is '1e-07'"
    assert worked == Remark("failing_reference", text) and unread.finding == "failing_reference"
    assert unread.text.startswith("extra_info.answer cannot be scored: ValueError: reward_model.ground_truth='seven'")


def test_a_worked_answer_that_fails_is_a_problem_where_there_is_no_ground_truth(references):
    by = references("def compute_score(solution_str): return float(solution_str == 'yes')")
    remarks = by.score([row(None, answer="no"), row("yes", answer="yes!"), row("also no", answer="no")])
    assert [remark.finding for remark in remarks] == ["failing_reference", "worked_answer", "failing_reference"]


def test_a_format_score_is_not_full_marks(built_in, monkeypatch):
    monkeypatch.setattr("burnish.rewards.scores.gsm8k.compute_score.__defaults__", ("strict", 0.5, 1.0))
    (remark,) = built_in.score([row(answer="#### 73")])
    assert remark.text.startswith("extra_info.answer scores 0.5")


def test_rows_that_cannot_be_scored_here_say_why(built_in):
    unknown = built_in.inspect(row(source="mystery"))
    assert unknown.finding == "refused" and "data_source='mystery' has no built-in scorer" in unknown.text
    empty = built_in.inspect(row(truth=""))
    assert empty.finding == "refused" and "reward_model.ground_truth is missing" in empty.text
    wrong = built_in.inspect(row("seven", "burnish/arithmetic"))
    assert wrong == Remark("refused", "reward_model.ground_truth='seven': arithmetic needs an integer")
    model = built_in.inspect({"data_source": "chat", "reward_model": {"style": "model"}})
    assert model.finding == "not_checked" and model.text.startswith("chat: rows of reward_model.style model")
    both = {"data_source": "gsm8k", "reward_model": {"style": "both", "ground_truth": "7"}}
    assert built_in.inspect(both) is None and built_in.score([both]) == [None]


TESTS = json.dumps(["assert add(1, 2) == 3"])
PROGRAM = "def add(a, b):\n    return a + b"


def test_programs_are_run_where_they_can_be(built_in, monkeypatch):
    rules = RuleConfig()
    rules.sandbox.allow_unsafe = True  # the programs here are ours
    of_programs = References(Scoring(FunctionSpec(), rules=rules))
    rows = [row(TESTS, "mbpp", answer=PROGRAM), row(TESTS, "mbpp", answer=PROGRAM.replace("+", "-"))]
    assert [of_programs.inspect(each) for each in rows] == [None, None]
    good, bad = of_programs.score(rows)
    of_programs.close()
    assert good is None
    assert bad.finding == "failing_reference" and bad.text.startswith("extra_info.answer scores 0: '")
    monkeypatch.setattr("burnish.rewards.scoring.Scoring.no_programs", "no namespaces here. Ways out:\n  - a key")
    remark = built_in.inspect(row(TESTS, "mbpp", answer=PROGRAM))
    assert remark.finding == "not_checked" and remark.text.endswith("none can be run: no namespaces here")
    monkeypatch.undo()
    without = of_programs.inspect(row(TESTS, "mbpp"))
    assert without == Remark("not_checked", "mbpp: rows without extra_info.answer, a program that passes the tests")


def test_a_custom_function_scores_answer_or_ground_truth_and_passes_above_zero(references):
    by = references(
        """
        def compute_score(solution_str, ground_truth, extra_info):
            assert extra_info["truncated"] is False
            return 0.1 if solution_str.endswith(ground_truth) else 0.0
        """
    )
    rows = [row(source="mine"), row(source="mine", answer="so 72"), row(source="mine", answer="so 73")]
    assert [by.inspect(each) for each in rows] == [None] * 3
    first, second, third = by.score(rows)
    assert first is None and second is None
    assert third.text.startswith("extra_info.answer scores 0: 'so 73'")
    nothing = by.inspect(row(None, "mine"))
    assert nothing.finding == "not_checked" and "neither reward_model.ground_truth nor" in nothing.text
    lists = references("def compute_score(solution_strs): return [float(text == '72') for text in solution_strs]")
    good, bad = lists.score([row(source="mine"), row("73", source="mine")])
    assert good is None and bad.text.startswith("the ground truth scores 0: '73'")


def test_a_function_that_raises_fails_its_rows_and_is_asked_no_more_where_it_always_does(references):
    by = references("def compute_score(solution_str): return {'a': 1.0}[solution_str]")
    good, bad, after = by.score([row("a"), row("b"), row("a")])
    assert (good, after) == (None, None)
    assert bad == Remark("failing_reference", "the ground truth cannot be scored: KeyError: 'b'")
    by = references("def my_score(solution_str): raise ValueError('no')", ":my_score")
    remarks = by.score([row()] * 3) + by.score([row()] * 20)
    assert [remark.finding for remark in remarks] == ["failing_reference"] * TRIALS + ["not_checked"] * (23 - TRIALS)
    assert "my_reward.py failed on the first 8 rows and is asked no more" in remarks[-1].text
    assert by.score([row()])[0].finding == "not_checked"


def test_a_missing_function():
    with pytest.raises(ConfigError, match="^--reward nowhere.py: custom_reward_function.path=nowhere.py: no such file"):
        References.by("nowhere.py")
    with pytest.raises(ConfigError, match="^--reward :score: expected a file, and maybe a name in it: my_reward.py:my"):
        References.by(":score")


def test_ground_truths_as_text():
    assert [as_text(truth) for truth in ("a", 7, ["Rome", "Roma"], {"target": ["x", "y"]})] == ["a", "7", "Rome", "x"]
    assert as_text({"n": 1}) == '{"n": 1}'
