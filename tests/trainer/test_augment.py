"""Augmentation in a run: prompts that reward functions and agent loops propose are drawn, traced, and kept."""

import logging
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from burnish.agents import AgentLoopOutput
from burnish.agents.runner import Trajectory
from burnish.config.data import AugmentConfig, DataConfig
from burnish.config.reward import RewardConfig
from burnish.data.augment import PromptBuffer
from burnish.models.loading import load_tokenizer
from burnish.protocol import DataProto, object_column
from burnish.rewards.managers import adapt_manager
from burnish.rewards.managers.naive import NaiveRewardManager
from burnish.rollout.base import Completion
from burnish.trainer.augment import Augmentation
from burnish.trainer.score import score
from burnish.workers.trajectories import to_batch
from tests.trainer.conftest import events, rollouts, state_of

GRPO = ["algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=3", "data.val_files=null"]
SCORE = "float(len(set(solution_str)) % 3)"
# Each sum leads to the next one, so that a prompt can be checked against the one it comes from.
NEXT = f"""a, b = extra_info["a"] + 1, extra_info["b"]
    row = dict(prompt=str(a) + "+" + str(b) + "=?", extra_info=dict(a=a, b=b), data_source="next")
    return dict(score={SCORE}, acc=1.0, new_prompts=[row])"""
LOOP = """import numpy as np
from burnish.agents import AgentLoopBase, AgentLoopOutput

class Curious(AgentLoopBase):
    async def run(self, sampling_params, **row):
        ids = self.prompt_ids(row["messages"])
        done = await self.server_manager.generate(prompt_ids=ids, sampling_params=sampling_params)
        new = {"prompt": row["messages"][0]["content"] + "!", "weight": np.float32(0.5)}
        if len(new["prompt"]) > 10:
            new["agent_name"] = "nobody"
        fields = {"new_prompts": [new]}
        return AgentLoopOutput(ids, done.token_ids, [1] * len(done.token_ids), done.log_probs, extra_fields=fields)
"""


def samples(run="run"):
    return [sample for step in range(len(list(Path(run, "rollouts").iterdir()))) for sample in rollouts(step + 1, run)]


def augment_figures(lines):
    names = ("share", "added", "duplicates", "refused", "dropped", "waiting")
    return [[line[f"augment/{name}"] for name in names] for line in lines]


def test_proposed_prompts_are_trained_on_and_lead_back_to_their_origin(train, reward, metrics_of):
    """12 rows in batches of 5, 5 and 2: at most half of each batch is proposed, and the steps do not become more."""
    reward(NEXT)
    batch = ["data.train_batch_size=5", "actor_rollout_ref.actor.ppo_mini_batch_size=5", "data.val_files=test.parquet"]
    train(*GRPO, *batch, "data.augment.enable=true", "data.augment.buffer_size=5", "trainer.test_freq=1")
    start, *lines = metrics_of("run")
    assert not [name for name in start if "augment" in name or "new_prompts" in name], "validation adds nothing"
    assert augment_figures(lines) == [[0, 5, 10, 0, 0, 5], [0.4, 5, 10, 0, 3, 5], [0.5, 2, 4, 0, 1, 5]]
    prompts = {sample["uid"]: sample for sample in samples()}
    assert sorted(prompts) == list(range(12)) and len(samples()) == 36
    proposed = {uid: sample["augmented"] for uid, sample in prompts.items() if "augmented" in sample}
    assert len(proposed) == 3
    for uid, origin in proposed.items():
        parent = prompts[origin["from_uid"]]
        assert total(prompts[uid]) == total(parent) + 1 and origin["from_uid"] < uid
        assert origin["by"] == "reward" and origin["depth"] == 1 + parent.get("augmented", {}).get("depth", 0)
        assert prompts[uid]["data_source"] == "next"
    assert all(set(sample["reward_info"]) == {"score", "acc"} for sample in prompts.values())
    state = state_of(3)["experience"]
    assert (state["position"], state["drawn"], len(state["augment"]["waiting"])) == (9, 12, 5)


def total(sample):
    return sum(map(int, re.search(r"(\d+)[+-](\d+)=\?", sample["prompt"]).groups()))


def test_a_resumed_run_draws_what_the_uninterrupted_one_did(resumes, reward, metrics_of):
    reward(NEXT)
    resumes(2, *GRPO, "data.augment.enable=true", "trainer.total_epochs=2")
    assert len(metrics_of("whole")) == 6 and metrics_of("whole")[-1]["augment/share"] == 0.5
    assert samples("whole") == samples("parts")
    assert {s["augmented"]["depth"] for s in samples("whole") if "augmented" in s} == {1, 2}


def test_off_it_is_said_once_and_changes_nothing(train, reward, metrics_of, caplog):
    reward(NEXT)
    train(*GRPO, "trainer.default_local_dir=proposing")
    said = [r for r in caplog.records if "data.augment.enable=true" in r.getMessage()]
    assert len(said) == 1 and "step 1: the reward function proposes new_prompts, and they are ignored" in caplog.text
    reward(f'return {{"score": {SCORE}, "acc": 1.0}}')
    train(*GRPO, "trainer.default_local_dir=silent")
    assert metrics_of("proposing") == metrics_of("silent")
    assert samples("proposing") == samples("silent")


def test_agent_loops_propose_and_what_could_not_run_is_refused(train, metrics_of, caplog, monkeypatch):
    monkeypatch.setattr("burnish.agents.base._registered", {})  # the loop's name is gone after the test
    Path("loops.py").write_text(LOOP)
    Path("loops.yaml").write_text("- {name: curious, _target_: 'loops.py:Curious'}\n")
    agent = "actor_rollout_ref.rollout.agent"
    train(*GRPO, "data.augment.enable=true", f"{agent}.agent_loop_config_path=loops.yaml",
          f"{agent}.default_agent_loop=curious", "trainer.total_training_steps=2")  # fmt: skip
    # `347+586=?!` has ten characters and enters; with another `!` the row names a loop that is not there.
    assert augment_figures(metrics_of("run")) == [[0, 4, 8, 0, 0, 4], [0.5, 2, 4, 6, 0, 4]]
    proposed = [sample for sample in samples() if "augmented" in sample]
    assert {sample["augmented"]["by"] for sample in proposed} == {"agent"} and "=?!" in proposed[0]["prompt"]
    assert "step 2: 6 new prompts are refused: agent_name=nobody: there is no such agent loop" in caplog.text
    (event,) = events("augment_refused")
    assert (event["step"], event["refused"]) == (2, 6) and "agent_name=nobody" in event["reasons"][0]
    waiting = state_of(2)["experience"]["augment"]["waiting"]
    assert [row["weight"] for row in waiting] == [0.5] * 4, "numbers of numpy are numbers"


class Words:
    def decode(self, ids, **options):
        return ",".join(str(int(i)) for i in ids)


def batch_of(*responses, **extra):
    """Rows of one group whose responses are these ids; `extra` are the extra fields of their loops."""
    trajectories = []
    for ids in responses:
        output = AgentLoopOutput([7], ids, [1] * len(ids), [-0.5] * len(ids), extra_fields=dict(extra))
        done = [Completion(ids, [-0.5] * len(ids), "stop", None, 0)]
        trajectories.append(Trajectory({"data_source": "toy"}, output, "", None, done))
    count = len(responses)
    rows = {"uid": [0] * count, "index": [np.int64(5)] * count, "extra_info": [{}] * count}
    return DataProto.from_dict(non_tensors=rows).union(to_batch(trajectories, 0))


def scored(batch, function, manager=NaiveRewardManager, **reward):
    config = RewardConfig(max_failure_ratio=0.9, **reward)
    return score(batch, adapt_manager(manager(Words(), 0, function)), config, {}, needs_groups=False)


@pytest.fixture
def augmentation(tiny_model):
    """With a buffer for batches of two; `augmentation.events` has what was recorded."""
    config = DataConfig(train_batch_size=2, augment=AugmentConfig(enable=True, share=1))
    buffer, told = PromptBuffer(config, load_tokenizer(tiny_model)), []
    made = Augmentation(buffer, lambda kind, **facts: told.append((kind, facts)))
    made.events = told
    return made


def propose(solution_str):
    if solution_str == "2":
        raise ValueError("no score")
    return {"score": 1.0, "new_prompts": [{"prompt": solution_str}]}


def test_dropped_samples_propose_nothing():
    kept = scored(batch_of([1], [2], [3], new_prompts=[{"prompt": "loop"}]), propose)
    assert kept.non_tensor_batch["new_prompts"].tolist() == [
        {"agent": [{"prompt": "loop"}], "reward": [{"prompt": "1"}]},
        {"agent": [{"prompt": "loop"}], "reward": [{"prompt": "3"}]},
    ]
    zeroed = scored(batch_of([1], [2]), propose, on_error="zero")
    assert zeroed.non_tensor_batch["new_prompts"].tolist() == [{"reward": [{"prompt": "1"}]}, {}]


def test_only_rows_that_the_buffer_handed_out_are_children(augmentation):
    batch = scored(batch_of([1], [3]), propose)
    batch.non_tensor_batch["extra_info"][:] = [{"augmented": {"depth": 7}}] * 2  # a file may have such a field
    augmentation.collect(batch, 1, {})
    child, _ = augmentation.take(2)
    assert child["augmented"] == child["extra_info"]["augmented"] and child["augmented"]["depth"] == 1
    batch = scored(batch_of([1], [3]), propose)
    batch.non_tensor_batch["augmented"] = object_column([child["augmented"], None])
    augmentation.collect(batch, 2, {})
    assert [row["augmented"]["depth"] for row in augmentation.take(2)] == [2, 1]


def test_the_rounds_of_a_step_add_up(augmentation):
    metrics = {}
    for proposed in ("ab", "bcd"):
        rows = [{"prompt": text} for text in proposed]
        batch = scored(batch_of([1]), lambda solution_str, rows=rows: {"score": 1, "new_prompts": [*rows, "no row"]})
        augmentation.collect(batch, 1, metrics)
    assert metrics == {"augment/added": 4, "augment/duplicates": 1, "augment/refused": 2, "augment/dropped": 0,
                       "augment/waiting": 4}  # fmt: skip
    assert augmentation.share(8, 6) == {"augment/share": 0.25}
    assert Augmentation(None, print).share(8, 8) == {}


def nested(levels):
    return [nested(levels - 1)] if levels else []


def test_what_is_nested_too_deeply_is_refused_and_the_sample_stays(augmentation):
    deep = [{"prompt": "a", "extra_info": {"deep": nested(500)}}]
    circle = []
    circle += [circle, circle]
    result = {"score": 1, "trace": nested(500), "circle": circle, "acc": 1.0, "new_prompts": deep}
    batch = scored(batch_of([1], [3], new_prompts=deep), lambda solution_str: result)
    said = "nested more than 100 levels deep"
    assert batch.non_tensor_batch["reward_info"][0] == {"score": 1.0, "trace": said, "circle": said, "acc": 1.0}
    metrics = {}
    augmentation.collect(batch, 1, metrics)
    assert len(batch) == 2 and (metrics["augment/refused"], metrics["augment/waiting"]) == (4, 0)


def test_a_custom_manager_returns_new_prompts():
    class Own:
        def __init__(self, *_):
            pass

        def __call__(self, data, return_dict=False):
            extra = {"acc": [1.0, 0.0], "new_prompts": [[{"prompt": "own"}], None]}
            return {"reward_tensor": torch.zeros(data.batch["response_mask"].shape), "reward_extra_info": extra}

    batch = scored(batch_of([1], [2]), None, Own)
    assert batch.non_tensor_batch["new_prompts"].tolist() == [{"reward": [{"prompt": "own"}]}, {}]
    assert batch.non_tensor_batch["reward_info"].tolist() == [{"acc": 1.0}, {"acc": 0.0}]


def test_refusals_are_logged_a_few_times_and_recorded_each_time(augmentation, caplog):
    for step in range(1, 6):
        batch = scored(batch_of([1], [3]), lambda solution_str: {"score": 1, "new_prompts": [solution_str, "x", 4, 5]})
        metrics = {}
        augmentation.collect(batch, step, metrics)
        assert metrics["augment/refused"] == 8 and "new_prompts" not in batch.non_tensor_batch
    assert [facts["step"] for kind, facts in augmentation.events if kind == "augment_refused"] == [1, 2, 3, 4, 5]
    reasons = augmentation.events[0][1]["reasons"]
    assert len(reasons) == 3 and "(by the reward, from uid 0)" in reasons[0]
    warned = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warned) == 4 and warned[0].startswith("step 1: 8 new prompts are refused: a new prompt is a str ('1')")
    assert "and 2 other reasons" in warned[0] and "further refusals are counted (augment/refused)" in warned[3]
