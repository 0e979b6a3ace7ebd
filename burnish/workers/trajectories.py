"""Finished trajectories → the rollout columns of a batch.

Consumes what the agent runner hands back, one `Trajectory` per row, and hands on a `DataProto` with prompts padded on
the left and responses on the right to the batch's own maxima P and R. Nothing is tokenised here: the ids, masks and
log-probs are the engine's own.
"""

from collections.abc import Sequence

import torch

from burnish.agents.runner import Trajectory
from burnish.protocol import DataProto


def to_batch(trajectories: Sequence[Trajectory], pad_token_id: int, *, log_probs: bool = True) -> DataProto:
    """The columns that "rollout" adds to a batch; without `rollout_log_probs` where they are not wanted."""
    outputs = [trajectory.output for trajectory in trajectories]
    prompts = _pad([output.prompt_ids for output in outputs], pad_token_id, left=True)  # (B, P)
    responses = _pad([output.response_ids for output in outputs], pad_token_id)  # (B, R)
    prompt_present = _pad([[1] * len(output.prompt_ids) for output in outputs], 0, left=True)
    response_present = _pad([[1] * len(output.response_ids) for output in outputs], 0)
    attention_mask = torch.cat([prompt_present, response_present], dim=-1)  # (B, P+R)
    tensors = {
        "prompts": prompts,
        "responses": responses,
        "input_ids": torch.cat([prompts, responses], dim=-1),
        "attention_mask": attention_mask,
        "position_ids": (attention_mask.cumsum(-1) - 1).clamp(min=0),
        "response_mask": _pad([output.response_mask for output in outputs], 0),
    }
    if log_probs:
        tensors["rollout_log_probs"] = _pad([output.response_logprobs or [] for output in outputs], 0.0)
    columns = {
        "score_result": [trajectory.score_result for trajectory in trajectories],
        "num_turns": [output.num_turns for output in outputs],
        "finish_reason": [output.extra_fields.get("finish_reason") for output in outputs],
    }
    return DataProto.from_dict(tensors, non_tensors=columns)


def _pad(rows: Sequence[Sequence[float]], value: float, *, left: bool = False) -> torch.Tensor:
    width = max(1, *(len(row) for row in rows))
    table = torch.full((len(rows), width), value)  # the type of `value` is the type of the column
    for i, row in enumerate(rows):
        if len(row):
            table[i, slice(width - len(row), None) if left else slice(len(row))] = torch.tensor(row, dtype=table.dtype)
    return table
