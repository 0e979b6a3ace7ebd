"""What a caller scores with, as keys."""

import json

import pytest

from burnish.api.reward import read_reward
from burnish.rewards.contract import HERE

OWN = {"path": HERE, "name": "score"}
FILE = {"path": "mine.py", "name": "score"}
GSM8K = {"path": "burnish.rewards.scores.gsm8k"}
USUAL = {"name": "compute_score"}
MODULE = {"path": "json", "name": "dumps"}


def score(solution_str):
    return 1.0


score.__module__ = "__main__"  # as in a notebook


@pytest.mark.parametrize(
    ("reward", "place"),
    [
        (score, OWN),
        (lambda solution_str: 1.0, {"path": HERE, "name": "reward"}),
        (json.dumps, MODULE),
        ("mine.py:score", FILE),
        ("mine.py", {"path": "mine.py"}),
        ("gsm8k", GSM8K),
        ("openai/gsm8k", GSM8K),
        ("package.module:score", {"path": "package.module", "name": "score"}),
        ("module:score", {"path": "module", "name": "score"}),
        (None, {}),
    ],
)
def test_each_form_names_a_function(reward, place):
    found = read_reward(reward)
    assert found.keys == {f"custom_reward_function.{name}": value for name, value in place.items()}
    assert list(found.objects.values()) == ([reward] if place.get("path") == HERE else [])


@pytest.mark.parametrize(
    ("reward", "functions"),
    [
        ({"a": score, "b": ("mine.py:score", 0.2)}, {"a": {**OWN, "name": "a"}, "b": {**FILE, "weight": 0.2}}),
        ([score, json.dumps, "gsm8k"], {"score": OWN, "dumps": MODULE, "gsm8k": {**GSM8K, **USUAL}}),
        ({"exact": "gsm8k", "own": "mine.py"}, {"exact": {**GSM8K, **USUAL}, "own": {"path": "mine.py", **USUAL}}),
        (["mine.py", {"path": "own/more.py"}], {"mine": {"path": "mine.py", **USUAL}, "more": {"path": "own/more.py"}}),
        ({"a": {"path": "mine.py", "weight": 2.0}}, {"a": {"path": "mine.py", "weight": 2.0}}),
    ],
)
def test_several_have_names_and_weights(reward, functions):
    named = read_reward(reward).keys["custom_reward_function.functions"]
    assert named == {name: {"weight": 1.0, **place} for name, place in functions.items()}
