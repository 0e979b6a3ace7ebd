"""Tools that tell the agent whether its answer is right: `calc_gsm8k_reward` and `calc_geo3k_reward`.

The right answer comes from the row, out of the model's sight, and the score (1 or 0) from the scorer of the same name.
An answer that is no better than the one before (at first, than none) costs 0.05, so that guessing does not pay; the
trajectory earns the score of the last answer.
"""

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from burnish.agents.tools.base import Answer, BaseTool, ToolResponse
from burnish.agents.tools.schema import Schema, function_schema
from burnish.errors import ToolFailure
from burnish.rewards.scores import geo3k, gsm8k

NO_BETTER = -0.05
CHECKS = "Checks your answer to the problem: 1.0 is right, 0.0 is wrong."


def _schema(name: str, answer: str) -> dict[str, Any]:
    return function_schema(name, CHECKS, {"answer": {"type": "string", "description": answer}}, ["answer"])


@dataclass
class _CheckedAnswer:
    ground_truth: Any
    score: float = 0.0  # of the last answer


class AnswerChecker(BaseTool):
    check: Callable[[Any, Mapping[str, Any]], object]  # of the scorer: ValueError where that is no right answer

    def __init__(self, config: dict[str, Any], tool_schema: Schema):
        super().__init__(config, tool_schema)
        self._trajectories: dict[str, _CheckedAnswer] = {}

    @abstractmethod
    def judge(self, answer: str, ground_truth: Any) -> tuple[float, str]:
        """The score of an answer, and what of it was read."""

    async def create(self, instance_id: str, ground_truth: Any = None, **kwargs: Any) -> None:
        if ground_truth is None:
            raise ToolFailure(
                f"tools_kwargs.{self.name}.create_kwargs.ground_truth is missing: give each row the right answer there"
            )
        type(self).check(ground_truth, {})
        self._trajectories[instance_id] = _CheckedAnswer(ground_truth)

    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> Answer:
        trajectory = self._trajectories[instance_id]
        score, read = await asyncio.to_thread(self.judge, parameters["answer"], trajectory.ground_truth)
        reward = 0.0 if score > trajectory.score else NO_BETTER
        trajectory.score = score
        verdict = f"The answer {read} is {'right' if score else 'wrong'}" if read else "There is no answer in it"
        return ToolResponse(f"{verdict}: score {score}"), reward, {"score": score}

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        return self._trajectories[instance_id].score

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        del self._trajectories[instance_id]


class Gsm8kTool(AnswerChecker):
    """By the last number of the answer."""

    check = staticmethod(gsm8k.check)
    SCHEMA = _schema("calc_gsm8k_reward", "Your answer, a number such as 42")

    def judge(self, answer: str, ground_truth: Any) -> tuple[float, str]:
        score = gsm8k.compute_score(answer, ground_truth, method="flexible")
        return score, gsm8k.extract_solution(answer, method="flexible") or ""


class Geo3kTool(AnswerChecker):
    """By mathematical equality."""

    check = staticmethod(geo3k.check)
    SCHEMA = _schema("calc_geo3k_reward", "Your answer alone, such as 42 or 3 \\sqrt{2}")

    def judge(self, answer: str, ground_truth: Any) -> tuple[float, str]:
        judged = geo3k.compute_score(answer, ground_truth, use_boxed="\\boxed" in answer)
        return float(judged["acc"]), str(judged["pred"])
