"""Scoring as a run uses it: from the configuration to results."""

import asyncio
import json
import logging
import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import ANY

import pytest

from burnish.config import EvalConfig, PPOConfig
from burnish.config.reward import RuleConfig
from burnish.config.rules import Given
from burnish.config.rules.scoring import functions, limits
from burnish.errors import ConfigError, RewardError
from burnish.rewards import scoring as module
from burnish.rewards.contract import FunctionSpec, ScoreRequest
from burnish.rewards.scoring import Scoring, loop_result, request_for
from burnish.waits import longest

ROW = {
    "data_source": "gsm8k",
    "raw_prompt": [{"role": "user", "content": "3+4?"}],
    "reward_model": {"style": "rule", "ground_truth": "7", "test_cases": [1], "index": "hidden"},
    "extra_info": {"index": 5, "split": "train", "num_turns": "stale"},
}


def output(**fields) -> SimpleNamespace:
    """An agent loop's output, as far as scoring reads it."""
    defaults = {"reward_score": None, "turn_rewards": None, "add_score": False, "num_turns": 2, "metrics": {}}
    return SimpleNamespace(**{**defaults, "extra_fields": {}, **fields})


def finished(manager: str = "naive") -> PPOConfig:
    config = PPOConfig()
    config.reward_model.reward_manager = manager
    limits(config.reward, manager)
    return config


def scoring_of(config: PPOConfig) -> Scoring:
    custom, rules = config.custom_reward_function, config.reward_model
    return Scoring.from_config(custom, config.reward, rules, config.data.reward_fn_key)


@pytest.fixture
def scoring(reward_file):
    made = []

    def make(source: str | None = None, **reward_kwargs) -> Scoring:
        config = finished()
        config.custom_reward_function.path = reward_file(source) if source else None
        config.custom_reward_function.reward_kwargs = reward_kwargs
        config.reward.retries = 0
        made.append(scoring_of(config))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_settings_come_from_the_configuration():
    config = finished()
    config.reward.timeout, config.reward.retries, config.reward.num_workers = 3.5, 4, 5
    config.data.reward_fn_key, config.custom_reward_function.path = "task", ""
    made = scoring_of(config)
    assert (made.pool.timeout, made.pool.retries, len(made.pool.processes), made.reward_fn_key) == (3.5, 4, 5, "task")
    assert made.spec.path is None and not made.reward_model, "an empty path is no path"
    prime = scoring_of(finished("prime"))
    assert (prime.pool.timeout, len(prime.pool.processes)) == (300, 64)
    evaluation = EvalConfig()
    limits(evaluation.reward)
    custom, rules = evaluation.custom_reward_function, evaluation.reward_model
    assert Scoring.from_config(custom, evaluation.reward, rules, "task").reward_model, "rows are left to none"


def test_extra_info_is_assembled():
    request = request_for({**ROW, "index": 5}, "#### 7", {"num_turns": 2, "truncated": False})
    assert request.index == 5
    assert (request.data_source, request.solution_str, request.ground_truth) == ("gsm8k", "#### 7", "7")
    assert request.extra_info == {
        "index": 5,  # the row's own wins over reward_model's
        "split": "train",
        "style": "rule",
        "test_cases": [1],
        "num_turns": 2,  # facts win over the row's
        "truncated": False,
        "prompt": [{"role": "user", "content": "3+4?"}],
    }
    assert ROW["extra_info"] == {"index": 5, "split": "train", "num_turns": "stale"}
    bare = request_for({"data_source": "s", "reward_model": None, "extra_info": None}, "x", {})
    assert bare == ScoreRequest("s", "x", None, {"prompt": None})


def test_built_in_scorers_run_here_or_in_the_pool_as_their_line_says(scoring):
    one = scoring()
    one.validate()
    result = asyncio.run(one.score(ROW, output(), "#### 7"))
    assert (result.score, result.error, result.data_source) == (1.0, None, "gsm8k")
    row = {**ROW, "data_source": "burnish/arithmetic", "reward_model": {"ground_truth": "x"}}
    result = asyncio.run(one.score(row, output(), "answer: 7"))
    assert result.score is None and "arithmetic needs an integer" in result.error
    assert one.pool.batch is None, "no process has started"
    row = {**ROW, "data_source": "math", "reward_model": {"ground_truth": "0.5"}}
    assert asyncio.run(one.score(row, output(), r"\boxed{\frac12}")).score == 1.0 and one.pool.batch is not None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"method": "flexibel"},
            "method=flexibel: must be one of strict, flexible, em, subem, f1; did you mean flexible?",
        ),
        ({"metod": "flexible"}, "metod: no built-in scorer has this option; did you mean method? (known: "),
        ({"format_score": "high"}, "format_score=high: must be a number"),
        ({"score": True}, "score=True: must be a number"),
        ({"continuous": "flase"}, "continuous=flase: must be true or false"),
    ],
)
def test_values_of_options_are_checked_before_training(scoring, options, said):
    with pytest.raises(ConfigError) as error:
        scoring(**options).validate()
    assert str(error.value).startswith(f"custom_reward_function.reward_kwargs.{said}")


def test_a_custom_function_sees_the_facts_of_the_trajectory_and_no_rules(scoring):
    one = scoring("""
        def compute_score(solution_str, extra_info, **kwargs):
            names = ("num_turns", "num_tool_calls", "truncated", "index")
            facts = {name: extra_info[name] for name in names}
            return {"score": 1, "text": solution_str, "names": sorted(kwargs), **facts}
        """)
    one.validate()
    loop_output = output(num_turns=4, metrics={"num_tool_calls": 2}, extra_fields={"finish_reason": "length"})
    result = asyncio.run(one.score({**ROW, "data_source": "anything"}, loop_output, "words"))
    assert result.info.pop("names") == ["data_source", "ground_truth"]
    assert result.info == {"text": "words", "num_turns": 4, "num_tool_calls": 2, "truncated": True, "index": 5}


def test_a_reward_that_the_agent_loop_gave_is_taken(scoring):
    one = scoring()
    assert asyncio.run(one.score(ROW, output(reward_score=0.25), "")).score == 0.25
    turns = asyncio.run(one.score(ROW, output(turn_rewards=[0.5, 1.0]), ""))
    assert (turns.score, turns.turn_rewards, turns.data_source) == (1.5, (0.5, 1.0), "gsm8k")
    both = asyncio.run(one.score(ROW, output(turn_rewards=[0.5, 1.0], reward_score=3.0), ""))
    assert (both.score, both.turn_rewards) == (4.5, (0.5, 4.0))


SUMMANDS = """
    def right(solution_str, ground_truth):
        return {"score": float(solution_str == ground_truth), "acc": 1.0, "right": "taken"}

    def length(solution_str, most):
        if solution_str == "fail":
            raise ValueError("too short")
        return {"score": len(solution_str) / most, "acc": 0.5}
    """
ASYNC = SUMMANDS.replace("def ", "async def ")
LISTS = """
    def right(solution_strs, ground_truths):
        pairs = zip(solution_strs, ground_truths)
        return [{"score": float(a == b), "acc": 1.0, "right": "taken"} for a, b in pairs]

    def length(solution_strs, most):
        return [{"score": float("nan") if a == "fail" else len(a) / most, "acc": 0.5} for a in solution_strs]
    """


@pytest.fixture
def sum_of(reward_file):
    """A scoring by `right` of the first source and 0.5 · `length` of the second, or of the same."""
    made = []

    def make(first: str, second: str | None = None, kwargs: dict | None = None) -> Scoring:
        config, here = finished(), reward_file(first)
        there = here if second is None else reward_file(second, "second.py")
        length = {"path": there, "weight": 0.5, "reward_kwargs": {"most": 4} if kwargs is None else kwargs}
        config.custom_reward_function.functions = {"right": {"path": here}, "length": length}
        functions(config.custom_reward_function, Given())
        config.reward.retries = 0
        made.append(scoring_of(config))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize(
    ("first", "second", "one_by_one"),
    [(SUMMANDS, None, True), (ASYNC, None, True), (SUMMANDS, ASYNC, True), (LISTS, None, False)],
    ids=["plain", "async", "plain and async", "lists"],
)
def test_several_functions_are_summed_with_their_weights(sum_of, first, second, one_by_one):
    one = sum_of(first, second)
    one.validate()
    assert one.one_by_one == one_by_one and one.check_row({"data_source": "anything", "reward_model": None}) is None
    info = {"right": 1.0, "length": 0.25, "acc": 1.0, "right.right": "taken", "length.acc": 0.5}
    asked = [ScoreRequest("s", text, "7") for text in ("7", "fail")]
    good, failed = one.score_all(asked)
    assert (good.score, good.info) == (1.125, info), "each under its name, and of one further key the first"
    assert failed.score is None and re.search("length .*returned .*nan|ValueError: too short", failed.error)
    if one_by_one:
        assert asyncio.run(one.score_request(asked[0])) == replace(good, seconds=ANY)


@pytest.mark.parametrize(
    ("second", "kwargs", "said"),
    [
        ("def long(): ...", {}, r"functions.length.name=length: .*second.py has no such name; it defines long"),
        (
            SUMMANDS,
            {"mots": 4},
            r"it requires most, .* or a value in custom_reward_function.functions.length.reward_kwa",
        ),
        (LISTS, None, r"functions \(right, length\): length takes lists of samples .* and right one sample"),
    ],
)
def test_several_functions_are_tried_before_training(sum_of, second, kwargs, said):
    with pytest.raises(ConfigError, match=said):
        sum_of(SUMMANDS, second, kwargs).validate()


def test_validate_tries_the_function_and_leaves_no_process(scoring):
    with pytest.raises(ConfigError, match="has no such name; it defines score_it"):
        scoring("def score_it(solution_str): ...").validate()
    one = scoring("import os\ndef compute_score(): return {'score': 1, 'pid': os.getpid()}")
    one.validate()
    assert not any(process.alive for process in one.pool.processes)
    result = asyncio.run(one.score(ROW, output(), ""))
    assert result.score == 1 and Path(f"/proc/{result.info['pid']}").exists()


def test_as_compute_score(scoring):
    one = scoring("def compute_score(ground_truth): return {'score': 1 / ground_truth, 'acc': 1, 'new_prompts': ['q']}")
    assert one(data_source="s", solution_str="", ground_truth=2) == {"score": 0.5, "acc": 1, "new_prompts": ["q"]}
    with pytest.raises(RewardError, match=r"data_source='s': (.|\n)*ZeroDivisionError"):
        one(data_source="s", solution_str="", ground_truth=0)
    assert Scoring(FunctionSpec())("gsm8k", "#### 7", "7") == 1.0


@pytest.mark.parametrize(
    ("parameters", "refused"),
    [("solution_str, ground_truth", True), ("ground_truth=None", False), ("extra_info", False), ("**rest", False)],
)
def test_check_row_knows_whether_the_function_insists_on_a_ground_truth(scoring, parameters, refused):
    one = scoring(f"def compute_score({parameters}): return 0.0")
    assert "at top level" in one.check_row({"ground_truth": "7"})  # not loaded yet
    one.validate()
    assert (one.check_row({"ground_truth": "7"}) is not None) is refused
    assert one.check_row({"data_source": "mystery"}) is None, "nothing else is asked of rows that it scores"
    assert one.check_row({"reward_model": {"ground_truth": "7"}, "ground_truth": "7"}) is None


# What the configuration tells the built-in scorers

SEARCH = {"data_source": "nq", "reward_model": {"ground_truth": {"target": ["Rome"]}}}
WELL_FORMED = "<think>I know it.</think><answer>Milan</answer>"


def test_rules_reach_the_scorers_that_name_them(scoring):
    config = finished()
    config.reward_model.structure_format_score = 0.2
    with closing(scoring_of(config)) as one:
        assert asyncio.run(one.score(SEARCH, output(), WELL_FORMED)).score == pytest.approx(0.2)
        assert asyncio.run(one.score(ROW, output(), "#### 7")).score == 1.0
    config.custom_reward_function.reward_kwargs = {"structure_format_score": 0.4}
    with closing(scoring_of(config)) as one:
        one.validate()
        assert asyncio.run(one.score(SEARCH, output(), WELL_FORMED)).score == pytest.approx(0.4)
        assert one.spec == Scoring.spec_of(config.custom_reward_function), "what the user named, without the rest"


# Programs

CODE = {
    "data_source": "mbpp",
    "reward_model": {"ground_truth": json.dumps(["assert double(2) == 4", "assert double(0) == 0"])},
    "index": 3,
}
RIGHT, WRONG = "```python\ndef double(x):\n    return 2 * x\n```", "```python\ndef double(x):\n    return 4\n```"


def test_programs_are_scored_in_separate_processes(caplog):
    rules, contest = RuleConfig(), CODE | {"data_source": "apps"}
    rules.sandbox.allow_unsafe = True  # these programs are ours
    with closing(Scoring(FunctionSpec(), rules=rules, num_workers=2)) as code, caplog.at_level(logging.INFO):
        assert [code.check_row(row) for row in (CODE, contest, contest)] == [None] * 3
        grading = "=apps: the score of a program is the share of its tests that pass (custom_reward_function.reward_kw"
        assert caplog.text.count(grading) == 1 and "=mbpp: the score of a program is 1 if all tests" in caplog.text
        assert asyncio.run(code.score(contest, output(), WRONG)).score == 0.5
        results = code.score_all([request_for(CODE, text, {}) for text in (RIGHT, WRONG) * 4])
        assert [result.score for result in results] == [1.0, 0.0] * 4, results[0].error
        assert asyncio.run(code.score(CODE, output(), RIGHT)).info["passed"] == 1.0
        assert code.pool.batch is None
        assert code.programs.timeout >= 310 and code.programs.at_once == 64
    rules.sandbox.max_concurrent = 1
    with closing(Scoring(FunctionSpec(reward_kwargs={"continuous": True}), rules=rules, num_workers=2)) as one:
        one.validate()
        assert asyncio.run(one.score(CODE, output(), WRONG)).score == 0.5
        assert (len(one.programs.processes), one.programs.at_once) == (1, 1)
        assert one.programs.spec.reward_kwargs["sandbox"]["max_concurrent"] == 1


def test_rows_that_need_a_sandbox_are_refused_where_there_is_none(monkeypatch):
    asked = []

    class Closed:
        async def unavailable_reason(self):
            asked.append(1)
            return "no namespaces; set reward_model.sandbox.allow_unsafe=true"

    monkeypatch.setattr("burnish.sandbox.open_sandbox", lambda config: Closed())
    one = Scoring(FunctionSpec())
    assert one.check_row(ROW) is None and not asked, "only where it is needed"
    for _ in range(2):
        with pytest.raises(ConfigError) as error:
            one.check_row(CODE)
        assert str(error.value) == (
            "data_source='mbpp' is scored by running programs, and none can be run: no namespaces; set "
            "reward_model.sandbox.allow_unsafe=true"
        )
    assert len(asked) == 1
    assert "reward_model" in one.check_row({**CODE, "reward_model": {}}), "the row's own problem comes first"


# Rows that a reward model scores

MODEL_ROW = {**ROW, "data_source": "chat", "reward_model": {"style": "model"}}


def test_rows_of_style_model_are_left_to_the_model(scoring):
    assert "asks for a reward model, but none is set" in scoring().check_row(MODEL_ROW)
    config = finished()
    config.reward_model.enable = True
    one = scoring_of(config)
    assert one.check_row(MODEL_ROW) is None
    assert asyncio.run(one.score(MODEL_ROW, output(), "words")) is None
    assert asyncio.run(one.score(MODEL_ROW, output(reward_score=0.5), "words")).score == 0.5
    both = {**ROW, "reward_model": {"style": "both", "ground_truth": "7"}}
    assert asyncio.run(one.score(both, output(), "#### 7")).score == 1.0
    custom = scoring("def compute_score(solution_str): return 0.5")
    assert custom.check_row(MODEL_ROW) is None, "a custom function scores them where there is no model"
    assert asyncio.run(custom.score(MODEL_ROW, output(), "words")).score == 0.5


# Time


def test_a_scorer_that_runs_in_place_is_a_registered_wait(monkeypatch):
    """One that hangs there blocks the event loop, which the watchdog ends with the process."""
    config, seen, score_here = finished(), [], module.score_here
    config.reward.timeout = 7.0

    def looked(*args):
        seen.extend((wait.kind, wait.subject, wait.seconds) for wait in longest())
        return score_here(*args)

    monkeypatch.setattr(module, "score_here", looked)
    with closing(scoring_of(config)) as one:
        assert asyncio.run(one.score(ROW, output(), "")).error is None
    assert seen == [("reward", "the scorer of gsm8k", 7.0)]


def test_a_slow_scorer_delays_no_generation(scoring, tmp_path):
    """It scores 1 when a coroutine, as a rollout engine is one, has continued since it was called, and 0 without."""
    begun, go = tmp_path / "begun", tmp_path / "go"
    one = scoring(f"""
        import time
        from pathlib import Path
        def compute_score(solution_str):
            Path({str(begun)!r}).touch()
            end = time.monotonic() + 60
            while not Path({str(go)!r}).exists() and time.monotonic() < end:
                sum(range(10_000))
            return float(Path({str(go)!r}).exists())
        """)

    async def score_some():
        scores = [asyncio.ensure_future(one.score(ROW, output(), "")) for _ in range(2)]
        while not begun.exists():
            await asyncio.sleep(0.01)
        for _ in range(50):
            await asyncio.sleep(0.01)
        assert not any(score.done() for score in scores)
        go.touch()
        return await asyncio.gather(*scores)

    assert [result.score for result in asyncio.run(score_some())] == [1.0, 1.0]


@pytest.mark.parametrize(
    "fields",
    [{"reward_score": -1e30}, {"turn_rewards": [1e308, 1e308]}, {"turn_rewards": [1e16], "add_score": True}],
)
def test_a_reward_of_an_agent_loop_that_is_too_large_is_the_failure_of_its_row(fields):
    result = loop_result(output(**fields), "toy", index=7)
    assert result.score is None and result.index == 7 and not result.of_tool
    assert re.search(r"^the agent loop gave a reward of -?1e\+\d+; scores are at most 1e\+15", result.error)
