"""What a step draws: samples with a greedy row beside them, scores less a penalty, and what becomes of failures."""

import numpy as np
import pytest
import torch

from burnish.agents import AgentLoopOutput
from burnish.agents.runner import Trajectory
from burnish.config import PPOConfig
from burnish.config.algorithm import OverlongBufferConfig
from burnish.config.reward import RewardConfig
from burnish.errors import RewardError
from burnish.protocol import DataProto
from burnish.rewards.contract import ScoreResult
from burnish.rewards.managers import adapt_manager
from burnish.rewards.managers.naive import NaiveRewardManager
from burnish.trainer.filter import GroupFilter
from burnish.trainer.score import add_overlong_penalty, fold_baselines, outcomes, score
from burnish.trainer.validate import validation_sampling
from burnish.workers.rollouts import RoundSettings
from burnish.workers.trajectories import to_batch
from tests.trainer.conftest import rollouts, validated

REMAX = ["algorithm.adv_estimator=remax", "data.val_files=null"]
# A score that hardly any two answers have in common, and no two prompts, should their answers be the same.
FINE = 'return float((sum(map(ord, solution_str)) + extra_info["a"]) % 97)'
OVERLONG = ["algorithm.overlong_buffer.enable=true", "algorithm.overlong_buffer.len=4",
            "algorithm.overlong_buffer.penalty_factor=2"]  # fmt: skip


def greedy_scores(trainer, uids):
    """By hand: each prompt answered as in validation, one by one, and scored."""
    sampling = validation_sampling(trainer.config.actor_rollout_ref.rollout)
    scores = {}
    for uid in uids:
        row = {**trainer.train_rows[trainer.order.index(uid)], "uid": 1000 + uid, "sample": 0}
        answered = trainer.policy.generate_sequences([row], RoundSettings(0, sampling, "val", True))
        length = int(answered.batch["response_mask"].sum())
        scores[uid] = (answered.non_tensor_batch["score_result"][0].score, length)
    return scores


@pytest.mark.parametrize("penalty", [[], OVERLONG], ids=["plain", "overlong"])
def test_a_baseline_is_the_score_of_the_greedy_answer_less_the_same_penalty(build_trainer, reward, penalty):
    reward(FINE)
    trainer, metrics = build_trainer(*REMAX, *penalty, "actor_rollout_ref.rollout.n=2"), {}
    batch = trainer.experience.draw(1, metrics)[0]
    uids, baselines = batch.non_tensor_batch["uid"].tolist(), batch.batch["reward_baselines"]
    assert uids == [0, 0, 1, 1, 2, 2, 3, 3] and batch.non_tensor_batch["sample"].tolist() == [0, 1] * 4
    answers = greedy_scores(trainer, range(4))
    if penalty:
        assert any(length > 4 for _, length in answers.values())
        answers = {uid: (score - 2 * max(0, length - 4) / 4, length) for uid, (score, length) in answers.items()}
    by_hand = [answers[uid][0] for uid in uids]
    assert baselines.tolist() == by_hand and len(set(by_hand)) > 1
    sampled = batch.batch["token_level_scores"].sum(-1)
    assert not torch.equal(sampled, baselines), "the samples are greedy too"
    assert metrics["critic/greedy_baseline/mean"] == float(baselines.mean())
    assert "greedy" not in batch.non_tensor_batch
    trainer.close()


def test_a_greedy_row_changes_no_sample(build_trainer, reward):
    """The same noise, the same numbers, the same order as without it."""
    reward(FINE)
    drawn = []
    for estimator in ("remax", "reinforce_plus_plus"):
        keys = [f"algorithm.adv_estimator={estimator}", "actor_rollout_ref.rollout.n=3", "data.val_files=null"]
        trainer = build_trainer(*keys, f"trainer.default_local_dir={estimator}")
        drawn.append(trainer.experience.draw(1, {})[0])
        trainer.close()
    with_it, without = drawn
    for name in ("uid", "sample", "reward_info", "finish_reason"):
        assert with_it.non_tensor_batch[name].tolist() == without.non_tensor_batch[name].tolist()
    for name in ("responses", "rollout_log_probs", "response_mask", "token_level_scores"):
        width = int(without.batch["response_mask"].sum(-1).max())
        assert torch.equal(with_it.batch[name][:, :width], without.batch[name][:, :width]), name
    assert with_it.non_tensor_batch.keys() == without.non_tensor_batch.keys()


def test_greedy_answers_propose_no_prompts(train, reward, metrics_of):
    reward("""a = extra_info["a"] + 1
    row = dict(prompt=str(a) + "+1=?", extra_info=dict(a=a), data_source="next")
    return dict(score=float(len(set(solution_str))), new_prompts=[row])""")
    train(*REMAX, "data.augment.enable=true", "trainer.total_training_steps=1")
    line = metrics_of("run")[0]
    assert (line["augment/added"], line["augment/duplicates"]) == (4, 0)


def scored(results, n, **options):
    """`results`: a score or None (it failed) for each row; every group has n samples and then its greedy row."""
    group = n + 1
    output = AgentLoopOutput([7], [1, 2], [1, 1], [-0.5, -0.5])
    trajectories = [Trajectory({"data_source": "toy"}, output, "text") for _ in results]
    stream = {
        "uid": [i // group for i in range(len(results))],
        "sample": [i % group for i in range(len(results))],
        "greedy": [i % group == n for i in range(len(results))],
        "data_source": ["toy"] * len(results),
    }
    batch = DataProto.from_dict(non_tensors=stream).union(to_batch(trajectories, 0))
    found = [ScoreResult(None, error="boom") if value is None else ScoreResult(value) for value in results]
    batch.non_tensor_batch["score_result"][:] = found
    metrics, needs_groups = {}, options.pop("needs_groups", False)
    config = RewardConfig(max_failure_ratio=1.0, **options)
    manager = NaiveRewardManager(None, 0, lambda solution_str: 0)
    batch = fold_baselines(score(batch, manager, config, metrics, needs_groups=needs_groups))
    kept = list(zip(*(batch.non_tensor_batch[name].tolist() for name in ("uid", "sample")), strict=True))
    counts = [metrics[f"failures/{name}"] for name in ("reward", "dropped_samples", "dropped_groups")]
    return kept, batch.batch["reward_baselines"].tolist(), counts


@pytest.mark.parametrize(
    ("results", "n", "options", "kept", "baselines", "counts"),
    [
        # A group without a baseline is dropped and counted.
        ([1, 2, 9, 3, 4, None, 5, 6, 8], 2, {}, [(0, 0), (0, 1), (2, 0), (2, 1)], [9, 9, 8, 8], [1, 2, 1]),
        # A sample that failed leaves the others their baseline.
        ([1, None, 9, 3, 4, 7], 2, {}, [(0, 0), (1, 0), (1, 1)], [9, 7, 7], [1, 1, 0]),
        # The greedy row is no sample: where they are compared with one another, one that is left is too few.
        ([1, None, 9, 3, 4, 7], 2, {"needs_groups": True}, [(1, 0), (1, 1)], [7, 7], [1, 2, 1]),
        ([None, 9, 3, 7], 1, {}, [(1, 0)], [7], [1, 1, 1]),
        ([1, None, 3, 4], 1, {"on_error": "zero"}, [(0, 0), (1, 0)], [0, 4], [1, 0, 0]),
    ],
)
def test_failures_with_a_greedy_row(results, n, options, kept, baselines, counts, caplog):
    assert scored(results, n, **options) == (kept, baselines, counts)
    done = "got 0" if options.get("on_error") == "zero" else "are dropped"
    assert f"{counts[0]} of {len(results)} samples could not be scored and {done}\n" in caplog.text
    assert "boom" in caplog.text


def test_no_baseline_at_all_ends_the_run():
    with pytest.raises(RewardError, match="(?s)none of the 4 samples .* no group is left with a greedy answer.*boom"):
        scored([1, None, 3, None], n=1)


def managed(answer):
    class Manager:
        def __call__(self, data, return_dict=False):
            return answer

    outputs = [AgentLoopOutput([7], [1, 2], [1, 1], [-0.5, -0.5]) for _ in range(2)]
    batch = to_batch([Trajectory({}, output, "text") for output in outputs], 0)
    facts = {"uid": [5, 5], "sample": [0, 1], "data_source": ["toy", "toy"]}
    batch = batch.union(DataProto.from_dict(non_tensors=facts))
    return score(batch, adapt_manager(Manager()), RewardConfig(), {}, needs_groups=False)


REWARDS, NAN = torch.tensor([[0.0, 1.0], [0.0, 0.5]]), torch.tensor([[0, 1], [0, torch.nan]])


@pytest.mark.parametrize(
    "given",
    [
        [True, False],
        np.array([True, False]),
        torch.tensor([True, False]),
        torch.tensor([[1.0], [0.0]])[:, 0],
        (np.float32(1), np.bool_(False)),
        [torch.tensor(1), np.array(0.0)],
    ],
)
def test_what_a_manager_returns_is_plain_for_all_who_read_it(given):
    """Arrays of numpy and torch hold numbers too: for metrics, the filter and outcomes alike."""
    batch = managed({"reward_tensor": REWARDS, "reward_extra_info": {"acc": given, "note": np.array(["a", "b"])}})
    infos = batch.non_tensor_batch["reward_info"].tolist()
    assert infos == [{"acc": 1, "note": "a"}, {"acc": 0, "note": "b"}]
    assert {type(value) for info in infos for value in info.values()} <= {bool, int, float, str}
    config = PPOConfig()
    config.algorithm.filter_groups.metric = "acc"
    assert GroupFilter(config, print).values(batch).tolist() == [1.0, 0.0]
    assert outcomes(batch).tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (REWARDS, r'Manager\(data, return_dict=True\) returned a Tensor; return \{"reward_tensor": a tensor \(B, R\)'),
        ({"rewards": REWARDS}, r"returned a dict with \['rewards'\]; return"),
        (None, "returned a NoneType; return"),
        ({"reward_tensor": REWARDS[:1]}, r"returned \(1, 2\) as reward_tensor; a tensor of \(2, 2\) is needed"),
        ({"reward_tensor": NAN}, r"NaN or infinite for row 1 of the batch \(uid 5, sample 1, data_source toy\); ret"),
        ({"reward_tensor": NAN.nan_to_num(-1e16)}, r"too large for row 1 of the batch \(uid 5, .*of at most 1e\+15"),
        ({"reward_tensor": REWARDS, "reward_extra_info": {"acc": [1]}}, r"returned 1 values as .*\['acc'\]; a value"),
        ({"reward_tensor": REWARDS, "reward_extra_info": {"acc": 0.5}}, r"returned 0.5 as .*each of the 2 samples"),
        ({"reward_tensor": REWARDS, "reward_extra_info": {"acc": np.array(0.5)}}, r"returned array\(0.5\) as"),
    ],
)
def test_an_answer_that_is_none_is_named_with_what_is_needed(answer, said):
    with pytest.raises(RewardError, match=said):
        managed(answer)


def test_the_penalty_is_part_of_the_score_in_training_only(train, reward, metrics_of):
    reward("return dict(score=float(sum(map(ord, solution_str)) % 97), acc=1.0)")
    keys = ["algorithm.adv_estimator=grpo", *OVERLONG, "trainer.total_training_steps=1", "trainer.test_freq=1"]
    train(*keys)
    rows, line = rollouts(1), metrics_of("run")[-1]
    for row in rows:
        penalty = -2 * max(0, len(row["response_mask"]) - 4) / 4
        assert row["reward_info"]["overlong_reward"] == penalty
        assert row["reward_info"]["overlong"] is (penalty < 0)
        assert row["score"] == row["reward_info"]["score"] + penalty
    shares = [row["reward_info"]["overlong"] for row in rows]
    assert any(shares) and line["overlong/share"] == np.mean(shares)
    assert line["overlong/penalty_mean"] == np.mean([row["reward_info"]["overlong_reward"] for row in rows])
    answers = validated(1)
    assert answers and all(set(row["reward_info"]) == {"score", "acc"} for row in answers)
    assert all(row["score"] == row["reward_info"]["score"] for row in answers)
    train(*keys, "reward_model.reward_manager=dapo", "trainer.default_local_dir=dapo")
    assert metrics_of("dapo") == metrics_of("run"), "the manager dapo is naive"


@pytest.mark.hostile
def test_a_run_with_an_odd_reward_function_drops_what_is_no_score_and_keeps_the_rest(train, reward, metrics_of):
    """Rewards that float32 or their statistics do not hold, and keys as burnish names its own."""
    reward(
        "own = {'overlong_reward': 'x', 'rm_score': 'x', 'reward': 'x', 'acc': 2**70}; "
        "odd = {'score': len(solution_str), 'big': 10**400, 'a\\x1b[2J/..//@': 1, **own}; "
        "return 1e308 if sum(map(ord, solution_str)) % 2 else odd"
    )
    train(
        "algorithm.adv_estimator=grpo",
        "reward.max_failure_ratio=0.9",
        "trainer.total_training_steps=1",
        "trainer.test_freq=1",
    )
    line, rows = metrics_of("run")[-1], rollouts(1)
    assert 0 < line["failures/reward"] < 1e9 and all(0 <= row["score"] < 1e6 for row in rows)
    assert {row["reward_info"]["big"] for row in rows} == {"a whole number of 1329 bits"}
    assert any(name.endswith(r"a\x1b[2J/..//@/mean@1") for name in line), sorted(line)


def test_the_penalty_stands_on_the_last_policy_token_and_counts_every_token():
    """Turn rewards stay where they are; observations at the end are part of the length, but carry no reward."""
    outputs = [
        AgentLoopOutput([7], [1, 2, 3, 4, 5], [1, 0, 1, 0, 0], [-0.5] * 5, turn_rewards=[0.25, 1.0]),
        AgentLoopOutput([7, 7], [1, 2], [1, 1], [-0.5] * 2, reward_score=3.0),
    ]
    batch = to_batch([Trajectory({"data_source": "toy"}, output, "text") for output in outputs], 0)
    batch.non_tensor_batch["uid"] = np.array([0, 0], dtype=object)
    batch = score(batch, NaiveRewardManager(None, 0), RewardConfig(), {}, needs_groups=False)
    add_overlong_penalty(batch, 6, OverlongBufferConfig(True, 4, 1.0))
    assert batch.batch["token_level_scores"].tolist() == [[0.25, 0, 1.0 - 0.75, 0, 0], [0, 3.0, 0, 0, 0]]
    assert [info["overlong_reward"] for info in batch.non_tensor_batch["reward_info"]] == [-0.75, 0.0]
    assert [info["overlong"] for info in batch.non_tensor_batch["reward_info"]] == [True, False]
