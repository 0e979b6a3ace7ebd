"""The penalty for responses near the length limit."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from burnish.algorithms.overlong import overlong_penalty
from burnish.config.algorithm import OverlongBufferConfig
from burnish.errors import ConfigError

CASES = json.loads((Path(__file__).parents[1] / "golden" / "overlong_reward.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_golden(case, assert_close):
    inputs, params, expected = case["inputs"], case["params"], case["expected"]
    config = OverlongBufferConfig(params["enable"], params["overlong_buffer_len"], params["penalty_factor"])
    lengths, limit = torch.tensor(inputs["valid_response_lengths"]), params["max_resp_len"]
    if "raises" in expected:
        with pytest.raises(ConfigError, match=rf"overlong_buffer\.len={config.len}: .*max_response_length={limit} "):
            overlong_penalty(lengths, limit, config)
        return
    penalty = overlong_penalty(lengths, limit, config)
    assert penalty.dtype == torch.float32
    assert_close(penalty + torch.tensor(inputs["base_scores"]), expected["total_reward"])
    if params["enable"]:  # otherwise nothing was recorded of the penalty itself
        assert_close(penalty, expected["overlong_reward"])
        assert (penalty < 0).tolist() == expected["overlong"]


@given(limit=st.integers(1, 50), factor=st.floats(0.01, 10), data=st.data())
def test_it_grows_from_nothing_to_the_factor(limit, factor, data):
    buffer = data.draw(st.integers(1, limit))
    penalty = overlong_penalty(torch.arange(limit + 1), limit, OverlongBufferConfig(True, buffer, factor))
    assert not penalty[: limit - buffer + 1].any()
    steps = penalty[limit - buffer :].diff()
    assert torch.allclose(steps, torch.full_like(steps, -factor / buffer), rtol=1e-3)
    assert float(penalty[-1]) == pytest.approx(-factor, rel=1e-6)
