"""Batches of token ids for workers that train a model."""

import pytest
import torch

from burnish.protocol import DataProto


@pytest.fixture
def token_batch():
    """`token_batch(prompts, responses, samples)`: all columns of a rollout, in groups; every third row is shorter."""

    def make(prompts, responses, samples, **columns):
        input_ids = torch.cat([prompts, responses], 1)
        attention = torch.ones_like(input_ids)
        attention[::3, -2:] = 0
        rollout = {
            "prompts": prompts,
            "responses": responses,
            "input_ids": input_ids,
            "attention_mask": attention,
            "position_ids": (attention.cumsum(-1) - 1).clamp(min=0),
            "response_mask": attention[:, prompts.shape[1] :].clone(),
        }
        uids = [row // samples for row in range(len(prompts))]
        return DataProto.from_dict(rollout | columns, non_tensors={"uid": uids})

    return make
