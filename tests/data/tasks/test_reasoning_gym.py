import json
import re
import sys

import pytest

from burnish.data.tasks import reasoning_gym
from burnish.data.tasks.reasoning_gym import INSTRUCTION, TASK
from burnish.errors import ConfigError, DataError, install_command
from tests.data.conftest import refused


def made(split="train", count=6, seed=0, tasks="chain_sum,leg_counting"):
    return TASK.generate(split, count, seed, {"tasks": tasks})


@pytest.fixture(scope="module")
def gym():
    return pytest.importorskip("reasoning_gym")


def test_tasks_take_turns_and_the_package_verifies_an_answer_from_what_the_row_holds(gym):
    for row in made(count=4):
        info, name = row["extra_info"], row["data_source"].removeprefix("reasoning_gym/")
        entry = {"question": info["question"], "answer": row["reward_model"]["ground_truth"]}
        entry["metadata"] = json.loads(info["metadata"])
        verifier = gym.get_score_answer_fn(name)
        assert verifier(row["reward_model"]["ground_truth"], entry) == 1 > verifier("no idea", entry)
        assert info["answer"] == f"<answer>{entry['answer']}</answer>" and info["task"] == name
        assert row["prompt"][0]["content"] == f"{info['question']}\n\n{INSTRUCTION}"
    names = ("chain_sum", "leg_counting", "chain_sum", "leg_counting", "chain_sum")
    assert [row["data_source"] for row in made(count=5)] == [f"reasoning_gym/{name}" for name in names]


def test_many_answers_are_no_ground_truth_and_only_puzzles_of_the_split_are_verified(gym, monkeypatch):
    (row,) = made(count=1, tasks="graph_color")
    assert row["reward_model"]["ground_truth"] is None and "answer" not in row["extra_info"]
    assert json.loads(row["extra_info"]["metadata"])["puzzle"]
    made_rows = []
    real = reasoning_gym.make_row
    monkeypatch.setattr(reasoning_gym, "make_row", lambda *puzzle: made_rows.append(1) or real(*puzzle))
    assert len(made("test", 5)) == len(made_rows) == 5


def test_splits_never_share_a_question_and_seeds_give_others(gym):
    train = [row["extra_info"]["question"] for seed in (1, 2) for row in made("train", 200, seed, "leg_counting")]
    test = [row["extra_info"]["question"] for seed in (1, 3) for row in made("test", 40, seed, "leg_counting")]
    assert not set(train) & set(test)
    # Consecutive seeds of the package itself give almost the same puzzles.
    assert len(set(train[:200]) & set(train[200:])) < 20
    assert len(set(train[:200])) == 200
    assert made("test", 10, 1) == made("test", 10, 1)


@pytest.mark.parametrize(
    ("tasks", "error", "message"),
    [
        ("", ConfigError, "name tasks of reasoning-gym, e.g. --tasks chain_sum,leg_counting; there are: ab, acre, "),
        ("chain_sums", ConfigError, "--tasks chain_sums: reasoning-gym has no such task; did you mean chain_sum"),
        ("composite", ConfigError, "--tasks composite: reasoning-gym has no such task"),
        ("arc_agi", DataError, "--tasks arc_agi: its verifier refuses its own answer .*; leave this task out"),
    ],
)
def test_names_that_cannot_be_made(gym, tasks, error, message):
    refused(rf"^{message}[^\n]*$", made, count=1, tasks=tasks, error=error)


def test_without_the_package_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    command = re.escape(install_command("reasoning-gym"))
    refused(f"reasoning-gym is not installed .*{command}", made, error=ConfigError)
