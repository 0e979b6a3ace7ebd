"""Finished trajectories → the rollout columns of a batch.

Prompts are padded on the left and responses on the right to the batch's own maxima P and R. Nothing is tokenised here:
ids, masks and log-probs are the engine's own. `token_versions` (B, R) is the version of the weights that sampled each
token, where generation runs ahead of training.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from burnish.agents.runner import Trajectory
from burnish.controller import DispatchPair
from burnish.controller.dispatch import CallSplit, WorkerCall, as_list, joined_rows, same_to_all
from burnish.data.files import Row
from burnish.protocol import DataProto, object_column
from burnish.rewards.contract import NEW_PROMPTS, TURN_REWARDS, proposed_by
from burnish.rewards.routing import data_source_of
from burnish.rewards.scoring import FACTS, facts_of, loop_result

VERSIONS = "token_versions"


def to_batch(
    trajectories: Sequence[Trajectory], pad_token_id: int, *, log_probs: bool = True, versions: bool = False
) -> DataProto:
    """The columns that "rollout" adds to a batch; `rollout_log_probs` and `token_versions` where they are wanted."""
    outputs = [trajectory.output for trajectory in trajectories]
    prompts, prompt_present = _pad([output.prompt_ids for output in outputs], pad_token_id, left=True)  # (B, P)
    responses, response_present = _pad([output.response_ids for output in outputs], pad_token_id)  # (B, R)
    tensors = _sequences(prompts, responses, torch.cat([prompt_present, response_present], dim=-1))
    tensors["response_mask"], _ = _pad([output.response_mask for output in outputs], 0)
    if log_probs:
        tensors["rollout_log_probs"], _ = _pad([output.response_logprobs or [] for output in outputs], 0.0)
    if versions:
        tensors[VERSIONS], _ = _pad([_token_versions(trajectory) for trajectory in trajectories], 0)
    facts = [facts_of(output) for output in outputs]
    columns = {
        "score_result": [  # of the trajectory, or of the reward its agent loop gave; None: not scored yet
            one.score_result or loop_result(one.output, data_source_of(one.row), one.row.get("index"))
            for one in trajectories
        ],
        **{name: [fact.get(name) for fact in facts] for name in FACTS},
        # what its turns earn besides its score, None where that is nothing
        TURN_REWARDS: [output.turn_rewards if output.add_score else None for output in outputs],
        "finish_reason": [output.extra_fields.get("finish_reason") for output in outputs],
        "policy_version": [  # the oldest weights that sampled any of it; None where no engine was asked
            min((done.policy_version for done in trajectory.completions), default=None) for trajectory in trajectories
        ],
        "agent_metrics": [output.metrics for output in outputs],
        NEW_PROMPTS: [proposed_by("agent", output.extra_fields.get(NEW_PROMPTS)) for output in outputs],
    }
    return DataProto.from_dict(tensors, non_tensors=columns)


def joined(batches: Sequence[DataProto]) -> DataProto:
    """The batches as one. Each has its own P and R, and is padded to the largest; where a batch lacks a column of plain
    values that another has, its rows have None there."""
    names = dict.fromkeys(name for batch in batches for name in batch.non_tensor_batch)
    whole = []
    for batch in _of_one_width(batches):
        absent = object_column([None] * len(batch))
        columns = {name: batch.non_tensor_batch.get(name, absent) for name in names}
        whole.append(DataProto(batch.batch, columns, batch.meta_info))
    return DataProto.concat(whole)


def groups_to_each(world_size: int, /, rows: Sequence[Row], *args: Any, **kwargs: Any) -> CallSplit:
    """`rows` is cut where no uid has rows on both sides, into parts of about as many prompts; with fewer prompts than
    workers, the last workers get no call. Other arguments go to all, and with them `total`, the rows of all parts."""
    uids = [row["uid"] for row in rows]
    last = {uid: row for row, uid in enumerate(uids)}
    ends = itertools.accumulate((last[uid] for uid in uids), max)  # of all that has begun by each row
    cuts = [row + 1 for row, end in enumerate(ends) if row == end]  # after each prompt, the last one included
    count = max(min(world_size, len(cuts)), 1)
    edges = [0, *(cuts[len(cuts) * part // count - 1] for part in range(1, count)), len(uids)]
    rest = {**kwargs, "total": len(uids)}
    parts = [rows[start:stop] for start, stop in itertools.pairwise(edges)]
    return CallSplit([WorkerCall((part, *args), dict(rest)) for part in parts], rows=len(uids))


def join_begun(split: CallSplit, outputs: list[Any]) -> DataProto | None:
    """The batches that workers had begun, as one; a worker that was given no rows has none."""
    there = [output for output in outputs if output is not None]
    complete = all(isinstance(output, DataProto) and output.batch is not None for output in there)
    return joined_rows(split, _of_one_width(there) if complete and there else there)


GROUPED_ROLLOUTS = DispatchPair(groups_to_each, as_list)  # rows are split over several workers, between prompts only
BEGUN_ROLLOUTS = DispatchPair(same_to_all, join_begun)  # joins the batches of what such calls began
ROLLOUTS = DispatchPair(groups_to_each, join_begun)  # both


def _of_one_width(batches: Sequence[DataProto]) -> list[DataProto]:
    """Each padded to the largest P and R. The ids of this are 0: nothing reads an id where attention_mask is 0."""
    prompt_width, response_width = (
        max(batch.batch[name].shape[1] for batch in batches) for name in ("prompts", "responses")
    )
    widened = []
    for data in batches:
        columns = dict(data.batch.items())
        left = prompt_width - columns["prompts"].shape[1]
        right = response_width - columns["responses"].shape[1]
        for name in ("responses", "response_mask", "rollout_log_probs", VERSIONS, "token_level_scores"):
            if name in columns:
                columns[name] = F.pad(columns[name], (0, right))
        attention_mask = F.pad(columns["attention_mask"], (left, right))
        columns |= _sequences(F.pad(columns["prompts"], (left, 0)), columns["responses"], attention_mask)
        widened.append(DataProto.from_dict(columns, data.non_tensor_batch, data.meta_info))
    return widened


def _sequences(prompts: torch.Tensor, responses: torch.Tensor, attention_mask: torch.Tensor) -> dict[str, torch.Tensor]:
    """prompts (B, P), responses (B, R), attention_mask (B, P+R), and the columns (B, P+R) that follow from them."""
    return {
        "prompts": prompts,
        "responses": responses,
        "input_ids": torch.cat([prompts, responses], dim=-1),
        "attention_mask": attention_mask,
        "position_ids": (attention_mask.cumsum(-1) - 1).clamp(min=0),
    }


def _token_versions(trajectory: Trajectory) -> list[int]:
    """Of each token of the response: 0 where nobody sampled it; all the oldest where it is not what was sampled."""
    output, turns = trajectory.output, trajectory.completions
    ids = [token for turn in turns for token in turn.token_ids]
    versions = [version for turn in turns for version in turn.token_versions()]
    own = output.policy_ids
    if own != ids[: len(own)]:
        versions = [min(versions, default=0)] * len(own)
    sampled = iter(versions)
    return [next(sampled) if mask else 0 for mask in output.response_mask]


def _pad(rows: Sequence[Sequence[float]], value: float, *, left: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows as one table, and 1 where it holds them; the type of `value` is the type of the table."""
    lengths = np.array([len(row) for row in rows])[:, None]  # (B, 1)
    places = np.arange(lengths.max(initial=1))
    there = places >= len(places) - lengths if left else places < lengths  # (B, width)
    table = np.full(there.shape, value, dtype=np.int64 if isinstance(value, int) else np.float32)
    table[there] = np.fromiter(itertools.chain.from_iterable(rows), table.dtype, lengths.sum())
    return torch.from_numpy(table), torch.from_numpy(there).long()
