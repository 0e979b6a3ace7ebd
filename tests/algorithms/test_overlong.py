"""The penalty for responses near the length limit."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from burnish.algorithms.overlong import overlong_penalty
from burnish.config.algorithm import OverlongBufferConfig
from burnish.errors import ConfigError
from burnish.protocol import DataProto, object_column
from burnish.trainer.score import add_overlong_penalty
from tests.algorithms.helpers import assert_close
from tests.recorded import each, golden

CASES = golden("overlong_reward")
assert len(CASES) == 12


@each(CASES)
def test_golden(case):
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


@each([c for c in CASES if "raises" not in c["expected"]])
def test_it_joins_the_score_on_the_last_token(case):
    inputs, params, expected = case["inputs"], case["params"], case["expected"]
    lengths, width = torch.tensor(inputs["valid_response_lengths"]), params["response_tensor_width"]
    mask = (torch.arange(width) < lengths[:, None]).long()
    scores, last = torch.zeros(mask.shape), lengths - 1  # an empty response has no token: the score stays where it was
    scores[range(len(lengths)), last] = torch.tensor(inputs["base_scores"])
    batch = DataProto.from_dict(
        {"response_mask": mask, "attention_mask": mask, "token_level_scores": scores},
        non_tensors={"reward_info": object_column([{}] * len(lengths))},
    )
    config = OverlongBufferConfig(params["enable"], params["overlong_buffer_len"], params["penalty_factor"])
    add_overlong_penalty(batch, params["max_resp_len"], config)

    wanted = torch.zeros(mask.shape)
    for row, (position, reward) in enumerate(zip(expected["reward_position"], expected["total_reward"], strict=True)):
        assert (position is None) == (reward == 0)  # a total of 0 leaves no trace of where it stands
        wanted[row, position or 0] = reward
    assert_close(batch.batch["token_level_scores"], wanted)


@given(limit=st.integers(1, 50), factor=st.floats(0.01, 10), data=st.data())
def test_it_grows_from_nothing_to_the_factor(limit, factor, data):
    buffer = data.draw(st.integers(1, limit))
    penalty = overlong_penalty(torch.arange(limit + 1), limit, OverlongBufferConfig(True, buffer, factor))
    assert not penalty[: limit - buffer + 1].any()
    steps = penalty[limit - buffer :].diff()
    assert torch.allclose(steps, torch.full_like(steps, -factor / buffer), rtol=1e-3)
    assert float(penalty[-1]) == pytest.approx(-factor, rel=1e-6)
