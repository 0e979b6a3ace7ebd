"""Generation that runs ahead of training: which prompts make up a step, how old its tokens are, and going on after a
stop. The numbers of staleness 0 are those of the synchronous loop."""

import asyncio
import shutil
import time
from pathlib import Path

import pytest
import torch

from burnish.agents import AgentLoopBase, AgentLoopOutput, register
from burnish.errors import NothingToLearn, RewardError
from burnish.protocol import DataProto
from burnish.trainer.ppo import PPOTrainer
from burnish.trainer.report import off_policy_metrics
from burnish.workers.replica import Replica
from tests.trainer.conftest import events, rollouts, same_weights, state_of, validated

GRPO = ["algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=3", "data.val_files=null"]
SIX = ["trainer.total_epochs=2", "trainer.save_freq=1"]  # 12 rows in batches of 4: six steps
EVERY_PROMPT = [[(4 * step + i // 3, i % 3) for i in range(12)] for step in range(6)]


def ahead(staleness):
    return ["trainer.async_rollout.enable=true", f"trainer.async_rollout.staleness={staleness}"]


def drawn(run="run"):
    count = len(list(Path(run, "rollouts").iterdir()))
    return [[(row["uid"], row["sample"]) for row in rollouts(step, run)] for step in range(1, count + 1)]


def test_staleness_0_is_the_synchronous_loop(train, metrics_of):
    train(*GRPO, *SIX)
    shutil.move("run", "plain")
    train(*GRPO, *SIX, *ahead(0))
    assert metrics_of("plain") == metrics_of("run")
    assert same_weights(6, "plain", "run")


@pytest.mark.parametrize("staleness", [1, 2])
def test_every_prompt_is_trained_once_and_no_token_is_too_old(train, metrics_of, staleness):
    train(*GRPO, *SIX, *ahead(staleness))
    assert drawn() == EVERY_PROMPT
    lines = metrics_of("run")
    ages = [line["training/off_policy/age_max"] for line in lines]
    assert ages[0] == 0 and max(ages) <= staleness and max(ages) > 0
    for line in lines:
        shares = [value for name, value in line.items() if name.startswith("training/off_policy/tokens_")]
        assert sum(shares) == pytest.approx(1)
        assert line["rollout_corr/active"] == 1
        if "training/off_policy/kl_0" in line:
            assert abs(line["training/off_policy/kl_0"]) < 1e-6, "tokens of the newest weights have their log-probs"
    older = [line.get("training/off_policy/kl_1", 0.0) for line in lines]
    assert max(older) > 1e-6, "tokens of older weights have not"


def test_trajectories_continue_with_new_weights(train, metrics_of, monkeypatch):
    """The second turn of each waits for the weights that it trains; these come when all first turns are done."""
    newest, begun, publish = [0], [], Replica.publish

    @register("two_weights")
    class TwoWeights(AgentLoopBase):
        async def run(self, sampling_params, **row):
            prompt = self.chat.prompt_ids(row["messages"])
            few = {**sampling_params, "max_tokens": 3, "ignore_eos": True}
            first = await self.server_manager.generate(prompt_ids=prompt, sampling_params=few)
            begun.append(row["uid"])
            while newest[0] < row["uid"] // 4:
                await asyncio.sleep(0.001)
            seen = [*prompt, *first.token_ids, 10, 11]
            second = await self.server_manager.generate(prompt_ids=seen, sampling_params=few)
            ids = [*first.token_ids, 10, 11, *second.token_ids]
            log_probs = [*first.log_probs, 0.0, 0.0, *second.log_probs]
            return AgentLoopOutput(prompt, ids, [1, 1, 1, 0, 0, 1, 1, 1], log_probs, num_turns=4)

    def publish_then(self, version):
        end = time.monotonic() + 60
        while version and len(begun) < 12 * min(version + 1, 6):
            assert time.monotonic() < end, "the next round is not on its way"
            time.sleep(0.001)
        publish(self, version)
        newest[0] = version

    monkeypatch.setattr(Replica, "publish", publish_then)
    train(*GRPO, *SIX, *ahead(1), "actor_rollout_ref.rollout.agent.default_agent_loop=two_weights")
    lines = metrics_of("run")
    assert [line["training/off_policy/mixed_ratio"] for line in lines] == [0, 1, 1, 1, 1, 1]
    assert all(abs(line["training/off_policy/kl_0"]) < 1e-6 for line in lines), "versions and log-probs belong together"
    assert max(line.get("training/off_policy/kl_1", 0.0) for line in lines) > 1e-6
    for row in rollouts(3):
        assert row["token_versions"] == [1, 1, 1, 0, 0, 2, 2, 2] and row["policy_version"] == 1


def test_what_was_begun_and_not_trained_is_begun_again_after_a_stop(train, monkeypatch):
    describe = PPOTrainer.describe

    def die(self, batch):
        if self.step == 4:
            raise KeyboardInterrupt
        return describe(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(PPOTrainer, "describe", die)
        with pytest.raises(KeyboardInterrupt):
            train(*GRPO, *SIX, *ahead(2))
    assert state_of(3)["experience"]["position"] == 12, "the rounds that were ahead are not in it"
    train(*GRPO, *SIX, *ahead(2))
    assert drawn() == EVERY_PROMPT
    assert len(events("resume")) == 1


def test_rounds_of_dynamic_sampling_run_ahead_too(train, reward, metrics_of):
    reward("return float(len(solution_str) % 2)")
    keys = ["algorithm.filter_groups.enable=true", "algorithm.filter_groups.metric=seq_reward", "data.gen_batch_size=4"]
    train(*GRPO, *keys, *ahead(1), "trainer.total_training_steps=4")
    steps = [{uid for uid, _ in step} for step in drawn()]
    assert len(set.union(*steps)) == sum(map(len, steps)), "a prompt was trained twice"
    assert all(line["training/off_policy/age_max"] <= 1 for line in metrics_of("run"))


def test_dynamic_sampling_looks_at_a_whole_pass_before_it_gives_up(train, reward):
    reward("return 1.0")
    keys = ["algorithm.filter_groups.enable=true", "algorithm.filter_groups.metric=seq_reward", "data.gen_batch_size=4",
            "algorithm.filter_groups.max_num_gen_batches=0"]  # fmt: skip
    with pytest.raises(NothingToLearn, match="12 groups of 3 rounds"):
        train(*GRPO, *keys, *ahead(2), "trainer.total_training_steps=2")


def test_a_round_that_fails_ends_the_run_when_its_turn_comes(train, reward):
    reward("raise ValueError('no score')")
    with pytest.raises(RewardError, match="no score"):
        train(*GRPO, *SIX, *ahead(2))


def answers(run, step):
    return [row["response"] for row in validated(step, run)]


def test_validation_during_rounds_ahead_uses_the_newest_weights(train):
    keys = [*GRPO[:2], *SIX, "trainer.val_before_train=false", "actor_rollout_ref.actor.optim.lr=1e-2"]
    train(*keys, *ahead(2), "trainer.test_freq=1")
    for step in (2, 5):
        saved = ["trainer.resume_mode=resume_path", f"trainer.resume_from_path=run/global_step_{step}"]
        train(*keys, *saved, "trainer.val_only=true", f"trainer.default_local_dir=only{step}")
        assert answers("run", step) == answers(f"only{step}", step)
    assert answers("run", 2) != answers("run", 5)


def test_metrics_of_token_ages():
    batch = DataProto.from_dict(
        {
            "response_mask": torch.tensor([[1, 1, 0, 1], [1, 1, 0, 0], [0, 0, 0, 0]]),
            "token_versions": torch.tensor([[3, 3, 0, 4], [5, 5, 0, 0], [0, 0, 0, 0]]),
            "old_log_probs": torch.tensor([[-1.0, -1.0, 0, -1.0], [-1.0, -2.0, 0, 0], [0.0, 0, 0, 0]]),
            "rollout_log_probs": torch.tensor([[-1.0, -2.0, 0, -1.0], [-1.0, -2.0, 0, 0], [0.0, 0, 0, 0]]),
        }
    )
    found = {name.rpartition("/")[2]: value for name, value in off_policy_metrics(batch, 5).items()}
    assert found.pop("kl_2") == pytest.approx((torch.e - 2) / 2)
    ages = {"age_mean": 1.0, "age_max": 2.0, "mixed_ratio": 0.5, "kl_0": 0.0, "kl_1": 0.0}
    assert found == pytest.approx(ages | {"tokens_0": 0.4, "tokens_1": 0.2, "tokens_2": 0.4})
    assert off_policy_metrics(batch.select(["response_mask"]), 5) == {}
