"""Reference answers: every built-in scorer gives its own full marks, and rows are held to theirs."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.config.reward import RuleConfig
from burnish.errors import ConfigError
from burnish.rewards.contract import FunctionSpec
from burnish.rewards.reference import TRIALS, References, Remark, as_text
from burnish.rewards.routing import SCORERS, default_compute_score
from burnish.rewards.scoring import Scoring

whole_numbers = st.integers(-(10**12), 10**12)
answers = st.sampled_from(["1", r"\frac{1}{2}", "x + 1", r"\sqrt{2}", "(1, 2)", "-3.5"])
# What the rows of each scorer hold as their ground truth. A new scorer brings its own.
GROUND_TRUTHS = {
    "gsm8k": st.one_of(
        whole_numbers,
        whole_numbers.map(str),
        whole_numbers.map(lambda n: f"{n:,}"),
        whole_numbers.map(lambda n: f"${n}"),
        st.integers(-(10**6), 10**6).map(float),
        st.decimals(-(10**6), 10**6, places=2).map(str),
    ),
    "arithmetic": st.one_of(whole_numbers, whole_numbers.map(str), whole_numbers.map(lambda n: f" +{abs(n)} ")),
    "math": answers,
    "math_dapo": st.sampled_from(["1", "34", "-7"]),
    "prime_math": answers,
    "geo3k": st.sampled_from(["48", r"\frac{1}{2}", "2.5"]),
    "qa_em": st.sampled_from([{"target": ["Rome", "Roma"]}, {"target": "42"}, "Mount Everest", ["a b"]]),
    "countdown": st.sampled_from([{"target": 30, "numbers": [8, 2, 5]}, {"target": 5, "numbers": [2, 3]}]),
    "multiply": st.one_of(whole_numbers, whole_numbers.map(str)),
}
ASK_MORE_OF_A_ROW = ("code", "reasoning_gym")  # a program and a puzzle; their own tests have them


@pytest.mark.parametrize(
    "scorer", [s for s in SCORERS if s.name not in ASK_MORE_OF_A_ROW], ids=lambda scorer: scorer.name
)
@settings(deadline=None, max_examples=20)
@given(data=st.data())
def test_the_reference_of_every_scorer_earns_full_marks(scorer, data):
    truth = data.draw(GROUND_TRUTHS[scorer.name])
    scorer.check(truth, {})
    result = default_compute_score(scorer.sources[0], scorer.reference(truth, {}), truth)
    assert (result["score"] if isinstance(result, dict) else result) == 1.0


def test_references_are_written_as_responses_are():
    written = {scorer.name: scorer.reference("72", {}) for scorer in SCORERS if scorer.name in ("gsm8k", "arithmetic")}
    assert written == {"gsm8k": "#### 72", "arithmetic": "answer: 72"}


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


def test_right_answers_say_nothing(built_in):
    rows = [row(), row(answer="48+24 = 72\n#### 72"), row(933, "burnish/arithmetic"), row(answer="  ")]
    assert [built_in.inspect(each) for each in rows] == [None] * 4
    assert built_in.score(rows) == [None] * 4


@pytest.mark.parametrize("answer", ["72", "48 + 24 is 72."])
def test_a_worked_answer_in_another_form_is_no_problem_where_the_ground_truth_passes(built_in, answer):
    bad, good = built_in.score([row(answer=answer), row(answer="#### 72")])
    text = f"extra_info.answer scores 0: '{answer}', where the ground truth is '72'"
    assert bad == Remark("worked_answer", text) and good is None


@pytest.mark.parametrize("answer", ["it is\n#### 73", "it is 172", "0.72", "7.2", "-72"])
def test_a_worked_answer_that_contradicts_the_ground_truth_is_a_problem(built_in, answer):
    short, long = built_in.score([row(answer=answer), row(answer="x" * 500 + answer)])
    assert short.finding == long.finding == "failing_reference"
    assert "…" in long.text and len(long.text) < 200, "a long one is shown by its end"
    assert f"{answer[-5:]}'" in long.text


def test_a_worked_answer_that_fails_is_a_problem_where_the_ground_truth_fails_too(built_in):
    too_small, no_number = built_in.score([row(1e-7, answer="x"), row("seven", "burnish/arithmetic", answer="7")])
    assert too_small == Remark(
        "failing_reference", "extra_info.answer scores 0: 'x', where the ground truth is '1e-07'"
    )
    assert no_number.finding == "failing_reference"
    assert no_number.text.startswith(
        "extra_info.answer cannot be scored: ValueError: reward_model.ground_truth='seven'"
    )


def test_a_worked_answer_that_fails_is_a_problem_where_there_is_no_ground_truth(references):
    by = references("def compute_score(solution_str): return float(solution_str == 'yes')")
    remarks = by.score([row(None, answer="no"), row("yes", answer="yes!"), row("also no", answer="no")])
    assert [remark.finding for remark in remarks] == ["failing_reference", "worked_answer", "failing_reference"]


def test_a_ground_truth_that_its_scorer_cannot_reach_fails(built_in):
    too_small, no_number = built_in.score([row(1e-7), row("seven", "burnish/arithmetic")])
    assert too_small.text.startswith("the ground truth scores 0: '#### 1e-07'")
    assert no_number == Remark("failing_reference", "reward_model.ground_truth='seven': arithmetic needs an integer")


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


def test_rows_that_a_reward_model_scores_are_not_checked(built_in):
    asks = {"data_source": "chat", "reward_model": {"style": "model"}}
    remark = built_in.inspect(asks)
    assert remark.finding == "not_checked" and remark.text.startswith("chat: rows of reward_model.style model")
    both = {"data_source": "gsm8k", "reward_model": {"style": "both", "ground_truth": "7"}}
    assert built_in.inspect(both) is None and built_in.score([both]) == [None]


TESTS = json.dumps(["assert add(1, 2) == 3"])
PROGRAM = "def add(a, b):\n    return a + b"


@pytest.fixture
def of_programs():
    rules = RuleConfig()
    rules.sandbox.allow_unsafe = True  # the programs here are ours
    made = References(Scoring(FunctionSpec(), rules=rules))
    yield made
    made.close()


def test_programs_are_run(of_programs):
    rows = [row(TESTS, "mbpp", answer=PROGRAM), row(TESTS, "mbpp", answer=PROGRAM.replace("+", "-"))]
    assert [of_programs.inspect(each) for each in rows] == [None, None]
    good, bad = of_programs.score(rows)
    assert good is None
    assert bad.finding == "failing_reference" and bad.text.startswith("extra_info.answer scores 0: '")
    without = of_programs.inspect(row(TESTS, "mbpp"))
    assert without == Remark("not_checked", "mbpp: rows without extra_info.answer, a program that passes the tests")


def test_programs_are_not_checked_where_none_can_be_run(built_in, monkeypatch):
    monkeypatch.setattr("burnish.rewards.sandboxed.SandboxPool.why_not", "no namespaces here. Ways out:\n  - a key")
    remark = built_in.inspect(row(TESTS, "mbpp", answer=PROGRAM))
    assert remark.finding == "not_checked" and remark.text.endswith("none can be run: no namespaces here")


def test_a_function_that_takes_lists(references):
    by = references("def compute_score(solution_strs): return [float(text == '72') for text in solution_strs]")
    good, bad = by.score([row(source="mine"), row("73", source="mine")])
    assert good is None and bad.text.startswith("the ground truth scores 0: '73'")


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


def test_a_function_that_raises_on_one_row_fails_that_row_only(references):
    by = references("def compute_score(solution_str): return {'a': 1.0}[solution_str]")
    good, bad, after = by.score([row("a"), row("b"), row("a")])
    assert (good, after) == (None, None)
    assert bad == Remark("failing_reference", "the ground truth cannot be scored: KeyError: 'b'")


def test_a_function_that_always_fails_is_asked_no_more(references):
    by = references("def my_score(solution_str): raise ValueError('no')", ":my_score")
    remarks = by.score([row()] * 3) + by.score([row()] * 20)
    assert [remark.finding for remark in remarks] == ["failing_reference"] * TRIALS + ["not_checked"] * (23 - TRIALS)
    assert "my_reward.py failed on the first 8 rows and is asked no more" in remarks[-1].text
    assert by.score([row()])[0].finding == "not_checked"


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("nowhere.py", "--reward nowhere.py: custom_reward_function.path=nowhere.py: no such file"),
        (":score", "--reward :score: expected a file, and maybe a name in it: my_reward.py:my_score"),
    ],
)
def test_a_missing_function(function, said):
    with pytest.raises(ConfigError) as error:
        References.by(function)
    assert str(error.value).startswith(said)


@pytest.mark.parametrize(
    ("truth", "text"),
    [("a", "a"), (7, "7"), (["Paris", "paris"], "Paris"), ({"target": ["x", "y"]}, "x"), ({"n": 1}, '{"n": 1}')],
)
def test_ground_truths_as_text(truth, text):
    assert as_text(truth) == text
