"""Where a request ends, and the response mask that follows from it, against the recorded figures."""

import asyncio
import json
from pathlib import Path

import pytest
import torch

from burnish.agents import AgentLoopOutput
from burnish.agents.runner import Trajectory
from burnish.rollout.admission import RequestState
from burnish.rollout.base import Sampling
from burnish.workers.trajectories import to_batch

RECORDED = json.loads((Path(__file__).parents[1] / "golden" / "masked_ops.json").read_text())
CASES = [case for case in RECORDED if case["params"]["function"] == "get_response_mask"]
assert [case["name"] for case in CASES] == [f"get_response_mask/{i}" for i in range(4)]


def answer(offered, stop_ids):
    """The completion of a request that is offered these tokens, one by one, until it is done."""
    loop = asyncio.new_event_loop()
    request = RequestState("0", [9], Sampling(), len(offered), stop_ids, matcher=None, future=loop.create_future())
    for token_id in offered:
        if not request.done:
            request.accept(token_id, -0.5, version=0)
    loop.close()
    return request.future.result()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_response_ends_with_its_first_end_token(case):
    """The reference cuts finished rows at the token that ends them; here nothing is sampled beyond it."""
    ends = case["params"]["eos_token"]
    stop_ids = frozenset([ends] if isinstance(ends, int) else ends)
    wanted = torch.tensor(case["expected"]["response_mask"])
    completions = [answer(row, stop_ids) for row in case["inputs"]["response_id"]]
    outputs = [
        AgentLoopOutput([9], done.token_ids, [1] * len(done.token_ids), done.log_probs)  # as single_turn_agent does
        for done in completions
    ]
    mask = to_batch([Trajectory({}, output, "") for output in outputs], 0).batch["response_mask"]
    width = mask.shape[1]
    assert mask.tolist() == wanted[:, :width].tolist() and not wanted[:, width:].any()
    for done, row in zip(completions, case["inputs"]["response_id"], strict=True):
        assert (done.finish_reason, done.stop) == (
            ("stop", done.token_ids[-1]) if stop_ids & set(row) else ("length", None)
        )
