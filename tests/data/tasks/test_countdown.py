import ast
import operator
from fractions import Fraction

import pytest

from burnish.data.tasks.countdown import TASK, parse_counts
from burnish.errors import ConfigError

OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def value_of(expression: str) -> tuple[Fraction, list[int]]:
    """What an expression is worth, and the numbers it uses."""

    def walk(node) -> tuple[Fraction, list[int]]:
        if isinstance(node, ast.Constant):
            return Fraction(node.value), [node.value]
        (a, used), (b, more) = walk(node.left), walk(node.right)
        return OPERATIONS[type(node.op)](a, b), used + more

    return walk(ast.parse(expression, mode="eval").body)


def made(split, count, seed, numbers="3,4"):
    return TASK.generate(split, count, seed, {"numbers": numbers})


def question(row):
    truth = row["reward_model"]["ground_truth"]
    return (*sorted(truth["numbers"]), truth["target"])


@pytest.mark.parametrize("numbers", ["2", "3,4", "8"])
def test_every_question_has_a_solution_that_uses_each_number_once(numbers):
    for row in made("train", 60, 0, numbers):
        truth = row["reward_model"]["ground_truth"]
        solution = row["extra_info"]["answer"].removeprefix("<answer>").removesuffix("</answer>")
        value, used = value_of(solution)
        assert value == truth["target"] and 1 <= value <= 100
        assert sorted(used) == sorted(truth["numbers"]) and all(1 <= number <= 99 for number in used)
        assert row["extra_info"]["difficulty"] == len(used) in parse_counts(numbers)
        content = row["prompt"][0]["content"]
        assert f"Make {truth['target']} out of the numbers {', '.join(map(str, truth['numbers']))}." in content
        assert row["data_source"] == "countdown" and solution not in content


def test_splits_never_share_a_question_whatever_the_seeds():
    """With two numbers there are few questions, so that both splits draw many of all there are."""
    train = {question(row) for seed in (1, 2) for row in made("train", 2000, seed, "2")}
    test = {question(row) for seed in (1, 3) for row in made("test", 300, seed, "2")}
    assert len(train) > 2000 and len(test) > 300 and not train & test


def test_questions_differ_and_follow_from_the_seed():
    rows = made("test", 200, 7)
    assert len({question(row) for row in rows}) == 200
    assert rows == made("test", 200, 7) != made("test", 200, 8)
    assert {row["extra_info"]["difficulty"] for row in rows} == {3, 4}
    assert made("test", 50, 7) == rows[:50]


def test_the_questions_do_not_change_between_versions():
    """A model trained with one version is tested with another on questions it has not seen."""
    answers = [row["extra_info"]["answer"] for row in made("test", 3, 1)]
    assert answers == [
        "<answer>(76 - 33) - (48 / 6)</answer>",
        "<answer>((91 + 45) - 8) - 34</answer>",
        "<answer>70 - (35 / 1)</answer>",
    ]


@pytest.mark.parametrize("typed", ["", "1", "9", "3;4", "three", "3,"])
def test_counts_that_cannot_be_read(typed):
    with pytest.raises(ConfigError, match=f"--numbers {typed}: write counts from 2 to 8 with commas between, e.g. 3,4"):
        made("train", 1, 0, typed)
