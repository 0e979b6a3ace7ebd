"""From a row and its finished trajectory to the request that is scored.

Consumes a completed row (`data/row.py`), an agent loop's output and the policy's own text; produces a ScoreRequest, or
the result that the agent loop itself gave. No torch.
"""

import math
from collections.abc import Mapping
from typing import Any, Protocol

from burnish.rewards.contract import ScoreRequest, ScoreResult
from burnish.rewards.routing import data_source_of, truth_of


class LoopOutput(Protocol):
    """What is read of an agent loop's output."""

    reward_score: float | None
    turn_rewards: list[float] | None
    add_score: bool
    num_turns: int
    metrics: dict[str, Any]
    extra_fields: dict[str, Any]


#: What agent loops may report of a trajectory: the passages of each search, the rewards of each turn, and what tools
#: and an interaction say of the whole.
TOLD = ("retrieved", "turn_scores", "tool_score", "interaction_score")
#: What a reward function learns about the trajectory in `extra_info`; in a batch, the columns of the same names, None
#: where it is not known.
FACTS = ("num_turns", "num_tool_calls", "truncated", *TOLD)


def facts_of(output: LoopOutput) -> dict[str, Any]:
    """The FACTS of a finished trajectory, as far as they are known."""
    return {
        "num_turns": output.num_turns,
        "num_tool_calls": output.metrics.get("num_tool_calls", 0),
        "truncated": output.extra_fields.get("finish_reason") == "length",
        **{name: output.extra_fields[name] for name in TOLD if name in output.extra_fields},
    }


def loop_result(output: LoopOutput, data_source: str) -> ScoreResult | None:
    """The reward that the agent loop itself gave its trajectory, or that it failed; None where it gave none."""
    if "failure" in output.extra_fields:
        return ScoreResult(None, error=output.extra_fields["failure"], data_source=data_source, of_tool=True)
    if output.add_score:
        return None
    if output.turn_rewards is not None:
        turns = (*output.turn_rewards[:-1], math.fsum((output.turn_rewards[-1], output.reward_score or 0.0)))
        return ScoreResult(math.fsum(turns), data_source=data_source, turn_rewards=turns)
    if output.reward_score is not None:
        return ScoreResult(output.reward_score, data_source=data_source)
    return None


def request_for(
    row: Mapping[str, Any], response_text: str, facts: Mapping[str, Any], reward_fn_key: str = "data_source"
) -> ScoreRequest:
    """The request for one response to `row`. `response_text` is the policy's own text only.

    `extra_info` holds the row's, the other fields of its `reward_model`, and on top the FACTS of the trajectory and
    `prompt` (the row's messages, unless the facts have one).
    """
    ground_truth, extra_info = truth_of(row)
    extra_info |= {"prompt": row.get("raw_prompt"), **facts}
    return ScoreRequest(data_source_of(row, reward_fn_key), response_text, ground_truth, extra_info, row.get("index"))
