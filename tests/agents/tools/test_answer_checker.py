"""The answer checkers: each knows the answer from the row, and guessing does not pay."""

import asyncio
import json

import pytest

from burnish.agents.tools.answer_checker import Geo3kTool, Gsm8kTool
from burnish.data.tasks.geo3k import TOOL as GEO3K_TOOL
from burnish.data.tasks.gsm8k import TOOL
from burnish.errors import ToolFailure


@pytest.fixture
def tool():
    return Gsm8kTool({}, Gsm8kTool.SCHEMA)


@pytest.fixture
def answers(tool, run_calls):
    """What a trajectory with these answers is told and earns."""

    def run(*answers, tool=tool, **create_kwargs):
        calls = [(tool.name, json.dumps({"answer": answer})) for answer in answers]
        return run_calls({tool.name: tool}, *calls, reward=True, **{tool.name: {"create_kwargs": create_kwargs}})

    return run


def test_rewards_of_the_steps_and_of_the_trajectory(answers, tool):
    results, reward = answers("17", "18", "18", "19", "#### 18", ground_truth="18")
    assert [result.reward for result in results] == [-0.05, 0.0, -0.05, -0.05, 0.0]
    assert [result.metrics["score"] for result in results] == [0.0, 1.0, 1.0, 0.0, 1.0]
    assert reward == 1.0 and not tool._trajectories and tool.name == TOOL == "calc_gsm8k_reward"
    assert answers("18", "19", ground_truth="18")[1] == 0.0, "the last answer counts"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("18", "The answer 18 is right: score 1.0"),
        ("$18.00", "The answer 18.00 is right: score 1.0"),
        ("so it is 1,018 dollars", "The answer 1018 is wrong: score 0.0"),
        ("eighteen", "There is no answer in it: score 0.0"),
        ("", "There is no answer in it: score 0.0"),
    ],
)
def test_what_the_model_is_shown(answers, answer, text):
    assert answers(answer, ground_truth=18)[0][0].text == text


def test_trajectories_do_not_see_each_other(tool):
    async def both():
        for name, truth in (("a", "1"), ("b", "2")):
            await tool.create(name, ground_truth=truth)
        for name in "ab":
            await tool.execute(name, {"answer": "2"})
        return await tool.calc_reward("a"), await tool.calc_reward("b")

    assert asyncio.run(both()) == (0.0, 1.0)


def test_a_row_without_the_answer_is_named(answers):
    with pytest.raises(ToolFailure, match=r"tools_kwargs\.calc_gsm8k_reward\.create_kwargs\.ground_truth is missing"):
        answers("18")
    with pytest.raises(ToolFailure, match="gsm8k needs the answer, a number"):
        answers("18", ground_truth="eighteen")


@pytest.mark.parametrize(
    ("answer", "score"), [("1/2", 1.0), ("\\boxed{0.5}", 1.0), ("\\frac{1}{2}", 1.0), ("0.4", 0.0), ("", 0.0)]
)
def test_geometry_is_checked_by_mathematical_equality(answers, answer, score):
    tool = Geo3kTool({}, Geo3kTool.SCHEMA)
    (result,), _ = answers(answer, tool=tool, ground_truth="\\frac{1}{2}")
    assert (result.kind, result.metrics["score"]) == ("ok", score)
    assert tool.name == GEO3K_TOOL
