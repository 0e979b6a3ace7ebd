"""Trajectories to a batch: the columns, whose names are kept free in rows, and batches of several workers as one."""

import pytest
import torch

from burnish.agents import AgentLoopOutput
from burnish.agents.runner import GREEDY, Trajectory
from burnish.config.algorithm import AlgorithmConfig
from burnish.config.reward import RewardConfig
from burnish.data.dataset import TAKEN
from burnish.engine.forward import OUTPUTS
from burnish.protocol import DataProto, object_column
from burnish.rewards.contract import ScoreResult
from burnish.rewards.managers.naive import NaiveRewardManager
from burnish.rollout.base import Completion
from burnish.trainer.credit import Credit
from burnish.trainer.score import score
from burnish.workers.trajectories import GROUPED_ROLLOUTS, joined, to_batch


def trajectory(uid=0, prompt=2, response=3, result=None, versions=(4,), **output):
    ids = list(range(1, response + 1))
    output = {"response_mask": [1] * response, "response_logprobs": [-0.5] * response, **output}
    completions = [Completion(ids, [-0.5] * response, "stop", None, version) for version in versions]
    row = {"uid": uid, "data_source": "toy"}
    return Trajectory(row, AgentLoopOutput([7] * prompt, ids, **output), "text", result, completions)


def test_tensors():
    batch = to_batch([trajectory(prompt=1, response=2), trajectory(prompt=3, response=1)], 0).batch
    assert batch["input_ids"].tolist() == [[0, 0, 7, 1, 2], [7, 7, 7, 1, 0]]
    assert batch["attention_mask"].tolist() == [[0, 0, 1, 1, 1], [1, 1, 1, 1, 0]]
    assert batch["position_ids"].tolist() == [[0, 0, 0, 1, 2], [0, 1, 2, 3, 3]]
    assert batch["response_mask"].tolist() == [[1, 1], [1, 0]]
    assert batch["rollout_log_probs"].tolist() == [[-0.5, -0.5], [-0.5, 0.0]]
    assert "rollout_log_probs" not in to_batch([trajectory()], 0, log_probs=False).batch


def test_versions_of_tokens():
    """Of two turns with an observation between them; the second went on under new weights, and is cut."""
    turns = [
        Completion([5, 6], [-0.5] * 2, "stop", None, 3, [3, 3]),
        Completion([7, 8, 9], [-0.5] * 3, "stop", None, 3, [3, 4, 4]),
    ]

    def of(ids, mask):
        output = AgentLoopOutput([1], ids, mask, [-0.5 * sampled for sampled in mask])
        return Trajectory({"uid": 0, "data_source": "toy"}, output, "text", None, turns)

    batch = to_batch([of([5, 6, 2, 2, 7, 8], [1, 1, 0, 0, 1, 1]), of([6, 7], [1, 1])], 0, versions=True)
    assert batch.batch["token_versions"].tolist() == [[3, 3, 0, 0, 3, 4], [3, 3, 0, 0, 0, 0]], "else the oldest"
    assert batch.non_tensor_batch["policy_version"].tolist() == [3, 3]
    assert "token_versions" not in to_batch([of([5], [1])], 0).batch


def test_facts_of_the_trajectory():
    metrics = {"num_tool_calls": 2, "seconds": 1.5}
    one = trajectory(versions=(6, 5), num_turns=4, metrics=metrics, extra_fields={"finish_reason": "length"})
    columns = to_batch([one, trajectory(versions=())], 0).non_tensor_batch
    assert {name: column[0] for name, column in columns.items()} == {
        "score_result": None,
        "num_turns": 4,
        "num_tool_calls": 2,
        "truncated": True,
        "retrieved": None,
        "turn_scores": None,
        "tool_score": None,
        "interaction_score": None,
        "added_turn_rewards": None,
        "finish_reason": "length",
        "policy_version": 5,
        "agent_metrics": metrics,
        "new_prompts": {},
    }
    assert [columns[name][1] for name in ("num_tool_calls", "truncated", "policy_version")] == [0, False, None]


def test_rewards_of_the_loop_are_carried_where_nothing_else_scored():
    mask = [1, 0, 1]
    batch = to_batch(
        [
            trajectory(reward_score=0.25),
            trajectory(turn_rewards=[0.5, 1.0], response_mask=mask),
            trajectory(reward_score=0.25, result=ScoreResult(1.0)),
            trajectory(),
        ],
        0,
    )
    assert batch.non_tensor_batch["score_result"].tolist() == [
        ScoreResult(0.25, data_source="toy"),
        ScoreResult(1.5, data_source="toy", turn_rewards=(0.5, 1.0)),
        ScoreResult(1.0),
        None,
    ]
    scores = NaiveRewardManager(tokenizer=Nothing(), num_examine=0, compute_score=lambda solution_str: 9)(batch)
    assert scores.tolist() == [[0, 0, 0.25], [0.5, 0, 1.0], [0, 0, 1], [0, 0, 9]]


class Nothing:
    def decode(self, ids, **options):
        return ""


def test_every_column_a_step_adds_is_kept_free_in_rows():
    """A file's column of the same name would be overwritten, or end the run after the first generation."""
    stream = DataProto.from_dict(non_tensors={"uid": [0, 0], "sample": [0, 1], GREEDY: [False, True]})
    batch = stream.union(to_batch([trajectory(), trajectory()], 0))
    manager = NaiveRewardManager(Nothing(), 0, lambda solution_str: {"score": 1.0, "acc": 1.0})
    batch = score(batch, manager, RewardConfig(), {}, needs_groups=False)
    batch.batch["old_log_probs"] = torch.zeros(2, 3)
    batch = Credit(AlgorithmConfig(adv_estimator="grpo"), print)(batch, {})
    added = {*batch.batch.keys(), *batch.non_tensor_batch}
    assert {"reward_info", "score_result", "num_turns", "advantages", "token_level_scores"} <= added
    assert added <= TAKEN, f"not in data/dataset.py: {sorted(added - TAKEN)}"
    assert set(OUTPUTS) - {"log_prob", "entropy"} <= TAKEN


@pytest.mark.parametrize(
    ("uids", "workers", "parts"),
    [
        ([0, 0, 1, 1, 2, 2, 3, 3], 2, [[0, 0, 1, 1], [2, 2, 3, 3]]),
        ([0, 0, 0, 1, 1, 1, 2, 2, 2], 2, [[0, 0, 0], [1, 1, 1, 2, 2, 2]]),
        ([0, 1, 2, 3, 4], 3, [[0], [1, 2], [3, 4]]),
        ([4, 4, 3, 3], 5, [[4, 4], [3, 3]]),  # the last three are not asked
        ([0, 1, 0, 2, 3], 3, [[0, 1, 0], [2], [3]]),  # a prompt whose rows stand apart takes what is between them
        ([0, 1, 0, 1], 2, [[0, 1, 0, 1]]),
        ([0], 3, [[0]]),
        ([], 2, [[]]),
    ],
)
def test_a_batch_is_split_between_prompts(uids, workers, parts):
    rows = [{"uid": uid, "row": row} for row, uid in enumerate(uids)]
    split = GROUPED_ROLLOUTS.dispatch(workers, rows, "sampling", score=True)
    assert [[row["uid"] for row in call.args[0]] for call in split.calls] == parts
    assert [row for call in split.calls for row in call.args[0]] == rows
    assert all(call.args[1:] == ("sampling",) for call in split.calls)
    assert all(call.kwargs == {"score": True, "total": len(uids)} for call in split.calls)
    assert split.padding == 0


def test_scored_batches_of_different_width_and_columns_are_joined():
    first, second = to_batch([trajectory(0, 1, 4), trajectory(0, 1, 4)], 0), to_batch([trajectory(1, 3, 2)], 0)
    for batch, scores in ((first, [[0, 0, 0, 1.0], [0, 0, 0, 2.0]]), (second, [[0, 3.0]])):
        batch.batch["token_level_scores"] = torch.tensor(scores)
        batch.batch["reward_baselines"] = torch.tensor(scores).sum(-1)
    first.non_tensor_batch["level"] = object_column(["easy", "hard"])
    second.non_tensor_batch["augmented"] = object_column([{"depth": 1}])
    whole = joined([first, second])
    assert whole.batch["token_level_scores"].tolist() == [[0, 0, 0, 1], [0, 0, 0, 2], [0, 3, 0, 0]]
    assert whole.batch["reward_baselines"].tolist() == [1, 2, 3]
    assert whole.batch["response_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 0, 0]]
    assert whole.batch["attention_mask"].tolist()[0] == [0, 0, 1, 1, 1, 1, 1]
    assert whole.batch["attention_mask"].tolist()[2] == [1, 1, 1, 1, 1, 0, 0]
    assert whole.non_tensor_batch["level"].tolist() == ["easy", "hard", None]
    assert whole.non_tensor_batch["augmented"].tolist() == [None, None, {"depth": 1}]
    assert second.batch["token_level_scores"].shape == (1, 2) and "level" not in second.non_tensor_batch
    assert joined([second]).batch["token_level_scores"].tolist() == [[0, 3]]
