"""What a step draws: samples with a greedy row beside them, scores less a penalty, and what becomes of failures."""

import contextlib
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from burnish.agents import AgentLoopOutput
from burnish.agents.runner import Trajectory, TrajectoryRunner
from burnish.agents.settings import AgentSettings
from burnish.config import PPOConfig
from burnish.config.algorithm import OverlongBufferConfig
from burnish.config.reward import RewardConfig
from burnish.errors import RewardError
from burnish.models.tiny import byte_tokenizer
from burnish.protocol import DataProto
from burnish.rewards.contract import ScoreResult
from burnish.rewards.managers.naive import NaiveRewardManager
from burnish.rewards.managers.protocol import adapt_manager
from burnish.rollout.base import Completion, Sampling
from burnish.trainer import experience
from burnish.trainer.filter import GroupFilter
from burnish.trainer.process_reward import outcomes
from burnish.trainer.score import add_overlong_penalty, fold_baselines, score
from burnish.trainer.validate import validation_sampling
from burnish.workers.rollouts import RoundSettings
from burnish.workers.trajectories import to_batch

REMAX = ["algorithm.adv_estimator=remax", "data.val_files=null"]
# A score that hardly any two answers have in common, and no two prompts, should their answers be the same.
FINE = 'return float((sum(map(ord, solution_str)) + extra_info["a"]) % 97)'
OVERLONG = ["algorithm.overlong_buffer.enable=true", "algorithm.overlong_buffer.len=4",
            "algorithm.overlong_buffer.penalty_factor=2"]  # fmt: skip


def rollouts(step, run="run"):
    return [json.loads(line) for line in Path(run, "rollouts", f"{step}.jsonl").read_text().splitlines()]


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


# The greedy baseline


def test_a_baseline_is_the_score_of_the_greedy_answer(build_trainer, reward):
    reward(FINE)
    trainer, metrics = build_trainer(*REMAX, "actor_rollout_ref.rollout.n=2"), {}
    batch = trainer.experience.draw(1, metrics)[0]
    uids, baselines = batch.non_tensor_batch["uid"].tolist(), batch.batch["reward_baselines"]
    assert uids == [0, 0, 1, 1, 2, 2, 3, 3] and batch.non_tensor_batch["sample"].tolist() == [0, 1] * 4
    by_hand = [greedy_scores(trainer, range(4))[uid][0] for uid in uids]
    assert baselines.tolist() == by_hand and len(set(by_hand)) > 1
    sampled = batch.batch["token_level_scores"].sum(-1)
    assert not torch.equal(sampled, baselines), "the samples are greedy too"
    assert metrics["critic/greedy_baseline/mean"] == float(baselines.mean())
    assert "greedy" not in batch.non_tensor_batch
    trainer.close()


def test_the_baseline_has_the_penalty_that_its_samples_have(build_trainer, reward):
    reward(FINE)
    trainer = build_trainer(*REMAX, *OVERLONG)
    batch = trainer.experience.draw(1, {})[0]
    by_hand = greedy_scores(trainer, range(4))
    expected = [score - 2 * max(0, length - 4) / 4 for score, length in by_hand.values()]
    assert batch.batch["reward_baselines"].tolist() == expected
    assert any(length > 4 for _, length in by_hand.values())
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


@pytest.mark.parametrize("staleness", [0, 1])
def test_to_draw_prompts_is_no_generation(build_trainer, monkeypatch, staleness):
    ahead = ["trainer.async_rollout.enable=true", f"trainer.async_rollout.staleness={staleness}"]
    trainer = build_trainer("algorithm.adv_estimator=grpo", "data.val_files=null", *(ahead if staleness else ()))
    stages, during = [], []

    @contextlib.contextmanager
    def timed(metrics, name):
        stages.append(name)
        yield
        stages.pop()

    def seen(name, called):
        def call(*given):
            during.append((name, tuple(stages)))
            return called(*given)

        return call

    monkeypatch.setattr(experience, "timed", timed)
    drawing = trainer.experience
    monkeypatch.setattr(drawing, "_next_rows", seen("draw", drawing._next_rows))
    monkeypatch.setattr(drawing, "policy", policy := SimpleNamespace(**vars(drawing.policy)))
    monkeypatch.setattr(policy, "begin_sequences", seen("generate", policy.begin_sequences))
    drawing.draw(1, {})
    rounds = 1 + staleness
    assert during == [("draw", ())] * rounds + [("generate", ("gen",))] * rounds
    trainer.close()


def test_remax_trains_on_the_samples_alone(train, reward, metrics_of):
    reward(FINE)
    train(*REMAX, "trainer.total_training_steps=2")
    lines = metrics_of("run")
    assert len(lines) == 2 and all(line["actor/grad_norm"] > 0 for line in lines)
    for step, line in enumerate(lines, 1):
        rows = rollouts(step)
        assert [(row["uid"], row["sample"]) for row in rows] == [(4 * step - 4 + i, 0) for i in range(4)]
        assert line["critic/score/mean"] == pytest.approx(np.mean([row["score"] for row in rows]))
        advantages = [row["advantages"][-1] for row in rows]  # score - baseline
        mean = line["critic/score/mean"] - line["critic/greedy_baseline/mean"]
        assert np.mean(advantages) == pytest.approx(mean, abs=1e-4)


def test_greedy_answers_propose_no_prompts(train, reward, metrics_of):
    reward("""a = extra_info["a"] + 1
    row = dict(prompt=str(a) + "+1=?", extra_info=dict(a=a), data_source="next")
    return dict(score=float(len(set(solution_str))), new_prompts=[row])""")
    train(*REMAX, "data.augment.enable=true", "trainer.total_training_steps=1")
    line = metrics_of("run")[0]
    assert (line["augment/added"], line["augment/duplicates"]) == (4, 0)


class Engine:
    """Keeps how each request is to be sampled."""

    def __init__(self):
        self.asked = {}

    async def generate(self, request):
        self.asked[request.order[:2]] = request.sampling
        return Completion([5, 6], [-1.0, -1.0], "stop", None, 0)


def test_a_greedy_row_is_sampled_without_noise_and_without_cuts():
    config, engine = PPOConfig(), Engine()
    row = {"uid": 0, "raw_prompt": [{"role": "user", "content": "1+1="}]}
    rows = [{**row, "sample": 0, "greedy": False}, {**row, "sample": 1, "greedy": True}, {**row, "sample": 2}]
    asked = Sampling(temperature=0.7, top_k=5, top_p=0.9, min_p=0.1, max_tokens=9, stop=("#",))
    TrajectoryRunner(engine, byte_tokenizer(), AgentSettings.of(config)).run(rows, asked, namespace="train", seed=1)
    for sample in (0, 2):
        found = engine.asked[0, sample]
        assert (found.temperature, found.top_k, found.top_p, found.min_p) == (0.7, 5, 0.9, 0.1)
    found = engine.asked[0, 1]
    assert (found.temperature, found.top_k, found.top_p, found.min_p) == (0.0, -1, 1.0, 0.0)
    assert (found.max_tokens, found.stop) == (9, ("#",))


# What could not be scored, with a greedy row beside the samples


def scored(results, n, **options):
    """`results`: a score or None (it failed) for each row; every group has n samples and then its greedy row."""
    group = n + 1
    trajectories = [
        Trajectory({"data_source": "toy"}, AgentLoopOutput([7], [1, 2], [1, 1], [-0.5, -0.5]), "text") for _ in results
    ]
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
    batch = score(
        batch, NaiveRewardManager(None, 0, lambda solution_str: 0), config, metrics, needs_groups=needs_groups
    )
    batch = fold_baselines(batch)
    kept = list(zip(*(batch.non_tensor_batch[name].tolist() for name in ("uid", "sample")), strict=True))
    counts = [metrics[f"failures/{name}"] for name in ("reward", "dropped_samples", "dropped_groups")]
    return kept, batch.batch["reward_baselines"].tolist(), counts


def test_a_group_without_a_baseline_is_dropped_and_counted():
    kept, baselines, counts = scored([1, 2, 9, 3, 4, None, 5, 6, 8], n=2)
    assert kept == [(0, 0), (0, 1), (2, 0), (2, 1)] and baselines == [9, 9, 8, 8]
    assert counts == [1, 2, 1]


def test_a_sample_that_failed_leaves_the_others_their_baseline():
    kept, baselines, counts = scored([1, None, 9, 3, 4, 7], n=2)
    assert kept == [(0, 0), (1, 0), (1, 1)] and baselines == [9, 7, 7]
    assert counts == [1, 1, 0]


def test_the_greedy_row_is_no_sample_of_its_group():
    """Where samples are compared with one another, one that is left is too few, greedy row or not."""
    kept, _, counts = scored([1, None, 9, 3, 4, 7], n=2, needs_groups=True)
    assert kept == [(1, 0), (1, 1)] and counts == [1, 2, 1]
    kept, _, counts = scored([None, 9, 3, 7], n=1)
    assert kept == [(1, 0)] and counts == [1, 1, 1]


def test_on_error_zero_holds_for_the_greedy_row_too():
    kept, baselines, counts = scored([1, None, 3, 4], n=1, on_error="zero")
    assert kept == [(0, 0), (1, 0)] and baselines == [0, 4] and counts == [1, 0, 0]


def test_no_baseline_at_all_ends_the_run():
    with pytest.raises(RewardError, match="(?s)none of the 4 samples .* no group is left with a greedy answer.*boom"):
        scored([1, None, 3, None], n=1)


# Reward managers of one's own


class Manager:
    """Scores by itself: answers what it was made with."""

    def __init__(self, answer):
        self.answer = answer

    def __call__(self, data, return_dict=False):
        return self.answer


def managed(answer):
    """Two samples of a prompt, scored by a manager that answers so."""
    outputs = [AgentLoopOutput([7], [1, 2], [1, 1], [-0.5, -0.5]) for _ in range(2)]
    batch = to_batch([Trajectory({}, output, "text") for output in outputs], 0)
    facts = {"uid": [5, 5], "sample": [0, 1], "data_source": ["toy", "toy"]}
    batch = batch.union(DataProto.from_dict(non_tensors=facts))
    return score(batch, adapt_manager(Manager(answer)), RewardConfig(), {}, needs_groups=False)


REWARDS = torch.tensor([[0.0, 1.0], [0.0, 0.5]])


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


def test_acc_in_an_array_is_the_accuracy_of_a_run(train, metrics_of):
    Path("manager.py").write_text("""import torch
class Mine:
    def __init__(self, tokenizer, num_examine, compute_score, reward_fn_key):
        pass
    def __call__(self, data, return_dict=False):
        mask = data.batch["response_mask"]
        lengths, rewards = mask.sum(-1), torch.zeros(mask.shape)
        rewards[torch.arange(len(mask)), lengths - 1] = lengths.float()
        return {"reward_tensor": rewards, "reward_extra_info": {"acc": (lengths % 2 == 0).numpy(), "length": lengths}}
""")
    train("algorithm.adv_estimator=gdpo", "algorithm.gdpo_reward_keys=[acc,length]", "data.val_files=null",
          "reward_model.reward_manager=manager.py:Mine", "trainer.total_training_steps=1")  # fmt: skip
    rows, line = rollouts(1), metrics_of("run")[0]
    assert all(row["reward_info"] == {"acc": row["score"] % 2 == 0, "length": row["score"]} for row in rows)
    assert line["accuracy"] == pytest.approx(np.mean([row["reward_info"]["acc"] for row in rows]))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (REWARDS, r'Manager\(data, return_dict=True\) returned a Tensor; return \{"reward_tensor": a tensor \(B, R\)'),
        ({"rewards": REWARDS}, r"returned a dict with \['rewards'\]; return"),
        (None, "returned a NoneType; return"),
        ({"reward_tensor": REWARDS[:1]}, r"returned \(1, 2\) as reward_tensor; a tensor of \(2, 2\) is needed"),
        (
            {"reward_tensor": torch.tensor([[0, 1], [0, torch.nan]])},
            r"NaN or infinite for row 1 of the batch \(uid 5, sample 1, data_source toy\); return a finite one",
        ),
        (
            {"reward_tensor": REWARDS, "reward_extra_info": {"acc": [1]}},
            r"returned 1 values as .*\['acc'\]; a value for",
        ),
        ({"reward_tensor": REWARDS, "reward_extra_info": {"acc": 0.5}}, r"returned 0.5 as .*each of the 2 samples"),
        ({"reward_tensor": REWARDS, "reward_extra_info": {"acc": np.array(0.5)}}, r"returned array\(0.5\) as"),
    ],
)
def test_an_answer_that_is_none_is_named_with_what_is_needed(answer, said):
    with pytest.raises(RewardError, match=said):
        managed(answer)


# The overlong penalty


def test_the_penalty_is_part_of_the_score_in_training_only(train, reward, metrics_of):
    reward("return dict(score=float(sum(map(ord, solution_str)) % 97), acc=1.0)")
    train("algorithm.adv_estimator=grpo", *OVERLONG, "trainer.total_training_steps=1", "trainer.test_freq=1")
    rows, line = rollouts(1), metrics_of("run")[-1]
    for row in rows:
        penalty = -2 * max(0, len(row["response_mask"]) - 4) / 4
        assert row["reward_info"]["overlong_reward"] == penalty
        assert row["reward_info"]["overlong"] is (penalty < 0)
        assert row["score"] == row["reward_info"]["score"] + penalty
    shares = [row["reward_info"]["overlong"] for row in rows]
    assert any(shares) and line["overlong/share"] == np.mean(shares)
    assert line["overlong/penalty_mean"] == np.mean([row["reward_info"]["overlong_reward"] for row in rows])
    validated = [json.loads(text) for text in Path("run/validation/1.jsonl").read_text().splitlines()]
    assert validated and all(set(row["reward_info"]) == {"score", "acc"} for row in validated)
    assert all(row["score"] == row["reward_info"]["score"] for row in validated)


def test_without_it_nothing_is_said_of_it(train, reward, metrics_of):
    reward(FINE)
    train("algorithm.adv_estimator=grpo", "data.val_files=null", "trainer.total_training_steps=1")
    assert not [name for name in metrics_of("run")[0] if "overlong" in name or "filter_groups" in name]
    assert all(row["score"] == row["reward_info"]["score"] for row in rollouts(1))


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


def test_the_dapo_manager_is_the_naive_one(train, reward, metrics_of):
    reward(FINE)
    keys = ["algorithm.adv_estimator=grpo", "data.val_files=null", "trainer.total_training_steps=1"]
    for name in ("naive", "dapo"):
        train(*keys, *OVERLONG, f"reward_model.reward_manager={name}", f"trainer.default_local_dir={name}")
    assert metrics_of("naive") == metrics_of("dapo") and metrics_of("dapo")[0]["overlong/share"] > 0
