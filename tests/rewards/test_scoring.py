"""Scoring as a run uses it: from the configuration to results."""

import asyncio
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from burnish.config import PPOConfig
from burnish.errors import ConfigError, RewardError
from burnish.rewards.contract import FunctionSpec, ScoreRequest
from burnish.rewards.scoring import Scoring, request_for

ROW = {
    "data_source": "gsm8k",
    "raw_prompt": [{"role": "user", "content": "3+4?"}],
    "reward_model": {"style": "rule", "ground_truth": "7", "test_cases": [1], "index": "hidden"},
    "extra_info": {"index": 5, "split": "train", "num_turns": "stale"},
}


def output(**fields) -> SimpleNamespace:
    """An agent loop's output, as far as scoring reads it."""
    defaults = {"reward_score": None, "turn_rewards": None, "num_turns": 2, "metrics": {}, "extra_fields": {}}
    return SimpleNamespace(**{**defaults, **fields})


@pytest.fixture
def scoring(reward_file):
    made = []

    def make(source: str | None = None, **reward_kwargs) -> Scoring:
        config = PPOConfig()
        config.custom_reward_function.path = reward_file(source) if source else None
        config.custom_reward_function.reward_kwargs = reward_kwargs
        config.reward.retries = 0
        made.append(Scoring.from_config(config))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_numbers_come_from_the_configuration():
    config = PPOConfig()
    config.reward.timeout, config.reward.retries, config.reward.num_workers = 3.5, 4, 5
    config.data.reward_fn_key = "task"
    made = Scoring.from_config(config)
    assert (made.pool.timeout, made.pool.retries, len(made.pool._workers), made.reward_fn_key) == (3.5, 4, 5, "task")


def test_extra_info_is_assembled():
    request = request_for(ROW, "#### 7", {"num_turns": 2, "truncated": False})
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


def test_a_bare_row():
    request = request_for({"data_source": "s", "reward_model": None, "extra_info": None}, "x", {})
    assert request == ScoreRequest("s", "x", None, {"prompt": None})


def test_built_in_scorers_need_no_process(scoring):
    one = scoring()
    one.validate()
    result = asyncio.run(one.score(ROW, output(), "#### 7"))
    assert (result.score, result.error, result.data_source) == (1.0, None, "gsm8k")
    assert one.pool._thread is None


def test_a_built_in_scorer_that_fails_is_a_failed_sample(scoring):
    row = {**ROW, "data_source": "burnish/arithmetic", "reward_model": {"ground_truth": "x"}}
    result = asyncio.run(scoring().score(row, output(), "answer: 7"))
    assert result.score is None and "arithmetic needs an integer" in result.error


def test_options_of_built_in_scorers(scoring):
    one = scoring(method="flexible")
    one.validate()
    assert asyncio.run(one.score(ROW, output(), "it is 7")).score == 1.0
    with pytest.raises(ConfigError) as error:
        scoring(metod="flexible").validate()
    assert "reward_kwargs.metod" in str(error.value) and "did you mean method?" in str(error.value)


def test_a_custom_function_sees_the_facts_of_the_trajectory(scoring):
    one = scoring("""
        def compute_score(data_source, solution_str, ground_truth, extra_info):
            names = ("num_turns", "num_tool_calls", "truncated", "index")
            return {"score": 1, "text": solution_str, **{name: extra_info[name] for name in names}}
        """)
    one.validate()
    loop_output = output(num_turns=4, metrics={"num_tool_calls": 2}, extra_fields={"finish_reason": "length"})
    result = asyncio.run(one.score({**ROW, "data_source": "anything"}, loop_output, "words"))
    assert result.info == {"text": "words", "num_turns": 4, "num_tool_calls": 2, "truncated": True, "index": 5}


def test_a_reward_that_the_agent_loop_gave_is_taken(scoring):
    one = scoring()
    assert asyncio.run(one.score(ROW, output(reward_score=0.25), "")).score == 0.25
    turns = asyncio.run(one.score(ROW, output(turn_rewards=[0.5, 1.0]), ""))
    assert (turns.score, turns.turn_rewards, turns.data_source) == (1.5, (0.5, 1.0), "gsm8k")


def test_validate_finds_a_bad_function_before_training(scoring):
    with pytest.raises(ConfigError, match="has no such name; it defines score_it"):
        scoring("def score_it(solution_str): ...").validate()


def test_validate_leaves_no_process_and_scoring_starts_one_again(scoring):
    one = scoring("import os\ndef compute_score(): return {'score': 1, 'pid': os.getpid()}")
    one.validate()
    assert not any(worker.alive for worker in one.pool._workers)
    result = asyncio.run(one.score(ROW, output(), ""))
    assert result.score == 1 and Path(f"/proc/{result.info['pid']}").exists()


def test_as_compute_score(scoring):
    one = scoring("def compute_score(ground_truth): return {'score': 1 / ground_truth, 'acc': 1}")
    assert one(data_source="s", solution_str="", ground_truth=2) == {"score": 0.5, "acc": 1}
    with pytest.raises(RewardError, match=r"data_source='s': (.|\n)*ZeroDivisionError"):
        one(data_source="s", solution_str="", ground_truth=0)
    assert Scoring(FunctionSpec())("gsm8k", "#### 7", "7") == 1.0


def test_check_row_asks_nothing_of_rows_that_a_custom_function_scores(scoring):
    row = {"data_source": "mystery"}
    assert "has no built-in scorer" in scoring().check_row(row)
    assert scoring("def compute_score(): ...").check_row(row) is None


@pytest.mark.parametrize(
    ("parameters", "refused"),
    [("solution_str, ground_truth", True), ("ground_truth=None", False), ("extra_info", False), ("**rest", False)],
)
def test_check_row_knows_whether_the_function_insists_on_a_ground_truth(scoring, parameters, refused):
    one = scoring(f"def compute_score({parameters}): return 0.0")
    assert "at top level" in one.check_row({"ground_truth": "7"})  # not loaded yet
    one.validate()
    assert (one.check_row({"ground_truth": "7"}) is not None) is refused
    assert one.check_row({"reward_model": {"ground_truth": "7"}, "ground_truth": "7"}) is None


def test_an_empty_path_is_no_path(scoring):
    config = PPOConfig()
    config.custom_reward_function.path = ""
    assert Scoring.spec_of(config).path is None


def test_a_manager_gets_new_prompts_with_the_score(tmp_path):
    file = tmp_path / "reward.py"
    file.write_text("def compute_score(solution_str):\n    return {'score': 1, 'new_prompts': [{'prompt': 'q'}]}\n")
    with closing(Scoring(FunctionSpec(str(file)))) as scoring:
        assert scoring("s", "text", None) == {"score": 1.0, "new_prompts": [{"prompt": "q"}]}
