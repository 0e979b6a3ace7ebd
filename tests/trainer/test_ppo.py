"""The loop, end to end on a small random model: what a run leaves, and that resuming equals not having stopped."""

import json
import logging
import math
import sys
import traceback
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

import burnish
from burnish.errors import BadStepError, ConfigError, RewardError
from burnish.rollout.native.runner import Runner

GRPO = ["algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=3"]
PPO = ["algorithm.adv_estimator=gae", "critic.optim.lr=1e-3", "algorithm.kl_ctrl.kl_coef=0.01",
       "algorithm.kl_ctrl.type=adaptive", "algorithm.kl_ctrl.horizon=100"]  # fmt: skip
ALGORITHMS = pytest.mark.parametrize("algorithm", [GRPO, PPO], ids=["grpo", "ppo"])


@ALGORITHMS
def test_a_run_learns_and_leaves_checkpoints(train, metrics_of, algorithm):
    train(*algorithm, "trainer.save_freq=2", "trainer.test_freq=2")
    lines = metrics_of("run")
    assert [line["step"] for line in lines] == [0, 1, 2, 3]
    assert "val-core/burnish/arithmetic/reward/mean@1" in lines[0] and "accuracy" not in lines[0]
    for name in ("critic/score/mean", "actor/pg_loss", "actor/grad_norm", "actor/entropy", "response_length/mean"):
        assert all(name in line for line in lines[1:]), name
    assert lines[1]["actor/grad_norm"] > 0
    for step in (2, 3):
        for folder in (f"run/global_step_{step}", f"run/global_step_{step}/actor"):
            weights = AutoModelForCausalLM.from_pretrained(folder).state_dict()
        assert all(torch.isfinite(tensor).all() for tensor in weights.values())
    assert Path("run/latest_checkpointed_iteration.txt").read_text().strip() == "3"
    assert sorted(p.name for p in Path("run/rollouts").iterdir()) == ["1.jsonl", "2.jsonl", "3.jsonl"]
    assert sorted(p.name for p in Path("run/validation").iterdir()) == ["0.jsonl", "2.jsonl", "3.jsonl"]


def test_weights_move_and_the_reference_does_not(build_trainer):
    trainer = build_trainer(*PPO)
    worker = trainer.policy.worker
    before = {name: tensor.clone() for name, tensor in worker.actor.module.state_dict().items()}
    trainer.fit()
    after = worker.actor.module.state_dict()
    assert any(not torch.equal(before[name], after[name]) for name in before)
    assert all(torch.equal(before[name], tensor) for name, tensor in worker.reference.module.state_dict().items())


def test_ppo_saves_a_critic_that_transformers_loads(train):
    train(*PPO, "trainer.total_training_steps=1")
    critic = AutoModelForTokenClassification.from_pretrained("run/global_step_1/critic")
    assert critic.config.num_labels == 1
    assert json.loads(Path("run/global_step_1/data/trainer.json").read_text())["kl"]["kl_coef"] > 0


def test_validation_cannot_change_training(train, metrics_of):
    train(*GRPO, "trainer.default_local_dir=often", "trainer.test_freq=1")
    train(*GRPO, "trainer.default_local_dir=never", "trainer.test_freq=-1", "trainer.val_before_train=False")
    often = [{k: v for k, v in line.items() if not k.startswith("val-")} for line in metrics_of("often")]
    assert [line for line in often if line["step"] > 0] == metrics_of("never")


def test_val_only_validates_and_stops(train, metrics_of):
    train(*GRPO, "trainer.val_only=True")
    assert [line["step"] for line in metrics_of("run")] == [0]
    assert not list(Path("run").glob("global_step_*"))


def test_the_last_partial_batch_is_trained(train, metrics_of):
    """12 rows in batches of 8: no row is dropped, and a short batch keeps the number of optimiser steps."""
    train(*GRPO, "data.train_batch_size=8", "actor_rollout_ref.actor.ppo_mini_batch_size=4", "data.val_files=null")
    assert [line["step"] for line in metrics_of("run")] == [1, 2]
    dumps = [Path(f"run/rollouts/{step}.jsonl").read_text().splitlines() for step in (1, 2)]
    seen = [json.loads(line)["uid"] for lines in dumps for line in lines]
    assert sorted(set(seen)) == list(range(12)) and len(seen) == 12 * 3


def test_micro_batches_change_nothing(train, metrics_of):
    for size in (1, 5):
        train(*GRPO, f"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu={size}",
              f"actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu={size}",
              f"trainer.default_local_dir=micro{size}", "data.val_files=null")  # fmt: skip
    for one, other in zip(metrics_of("micro1"), metrics_of("micro5"), strict=True):
        assert one == pytest.approx(other, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize(
    "term",
    [["algorithm.use_kl_in_reward=True"], ["actor_rollout_ref.actor.use_kl_loss=True"],
     ["actor_rollout_ref.actor.entropy_coeff=0.01"], ["actor_rollout_ref.actor.ppo_epochs=2"],
     ["actor_rollout_ref.actor.use_dynamic_bsz=True", "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=64"],
     ["actor_rollout_ref.actor.shuffle=True"], ["algorithm.norm_adv_by_std_in_grpo=False"]],
    ids=lambda term: term[0].split(".")[-1],
)  # fmt: skip
def test_variants_train(train, metrics_of, term):
    train(*GRPO, *term, "data.val_files=null", "trainer.total_training_steps=2")
    lines = metrics_of("run")
    assert len(lines) == 2 and all(math.isfinite(value) for line in lines for value in line.values())
    expected = {"use_kl_in_reward": "actor/reward_kl_penalty", "use_kl_loss": "actor/kl_loss"}
    key = expected.get(term[0].split(".")[-1].split("=")[0])
    assert key is None or key in lines[0]


def test_critic_warmup_leaves_the_actor_alone(train, metrics_of):
    train(*PPO, "trainer.critic_warmup=2", "data.val_files=null")
    lines = metrics_of("run")
    assert ["actor/pg_loss" in line for line in lines] == [False, False, True]
    assert all("critic/vf_loss" in line for line in lines)


def frames_from_fit():
    """All frames of the package between `fit` and the caller, by name, both ends included."""
    package = str(Path(burnish.__file__).parent)
    names = [frame.name for frame in traceback.extract_stack()[:-1] if frame.filename.startswith(package)]
    return names[names.index("fit") :]


def test_frames_from_fit_to_the_loss_and_to_a_decode_step(train, monkeypatch):
    to_loss, to_decode, decode = [], [], Runner.decode

    def loss(inputs):
        to_loss.append([*frames_from_fit(), "loss"])
        return inputs.aggregate(-inputs.advantages * inputs.log_prob), {}

    def decoded(*args):
        to_decode.append([*frames_from_fit(), "decode"])
        return decode(*args)

    monkeypatch.setattr("burnish.algorithms.losses.vanilla.vanilla", loss)
    monkeypatch.setattr(Runner, "decode", decoded)
    train(*GRPO, "trainer.total_training_steps=1", "data.val_files=null")
    assert max(map(len, to_loss)) <= 7, to_loss[0]
    assert max(map(len, to_decode)) <= 12, to_decode[0]


def test_failed_samples_are_dropped_counted_and_logged(reward, train, metrics_of, caplog):
    reward("return 1 / (sum(map(ord, solution_str)) % 4)")
    with caplog.at_level(logging.WARNING):
        train(*GRPO, "reward.max_failure_ratio=0.9", "reward.retries=0", "data.val_files=null")
    assert "samples could not be scored and are dropped" in caplog.text and "ZeroDivisionError" in caplog.text
    lines = metrics_of("run")
    dropped = sum(line["failures/dropped_samples"] for line in lines)
    assert sum(line["failures/reward"] for line in lines) > 0
    kept = sum(len(Path(f"run/rollouts/{line['step']}.jsonl").read_text().splitlines()) for line in lines)
    assert kept + dropped == 3 * 4 * 3


def test_too_many_failures_stop_the_run_with_their_cause(reward, train):
    reward("raise KeyError('missing thing')")
    with pytest.raises(RewardError, match=r"(?s)max_failure_ratio.*KeyError: 'missing thing'"):
        train(*GRPO, "reward.retries=0", "data.val_files=null")


def test_a_nan_gradient_is_not_applied_and_ends_the_run(build_trainer, monkeypatch):
    trainer = build_trainer(*GRPO, "data.val_files=null", "trainer.max_bad_steps=2")
    before = {n: p.detach().clone() for n, p in trainer.policy.worker.actor.module.named_parameters()}

    def poison(inputs):
        return inputs.aggregate(inputs.log_prob) * float("nan"), {}

    trainer.policy.worker.policy_loss = poison
    with pytest.raises(BadStepError, match="actor: loss or gradient was NaN or infinite in 2 updates in a row"):
        trainer.fit()
    after = dict(trainer.policy.worker.actor.module.named_parameters())
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert Path("run/rollouts/1.jsonl").exists(), "the message names it"
    assert '"bad_step"' in Path("run/events.jsonl").read_text()


def test_a_custom_reward_manager_is_used(build_trainer, metrics_of):
    """What is handed to the constructor scores, whatever the configuration names."""
    from burnish.rewards.managers.naive import NaiveRewardManager

    trainer = build_trainer(*GRPO, "trainer.total_training_steps=1", "data.val_files=null")
    own = NaiveRewardManager(trainer.tokenizer, 0, compute_score=lambda solution_str: 7.0)
    trainer = type(trainer)(
        trainer.config, trainer.tokenizer, trainer.role_worker_mapping, trainer.resource_pool_manager,
        trainer.worker_group_cls, reward_fn=own,
    )  # fmt: skip
    trainer.init_workers()
    trainer.fit()
    assert metrics_of("run")[0]["critic/score/mean"] == 7.0


def test_a_bad_actor_ends_the_run_despite_a_good_critic(build_trainer):
    trainer = build_trainer(*PPO, "data.val_files=null", "trainer.max_bad_steps=2")
    trainer.policy.worker.policy_loss = lambda inputs: (inputs.aggregate(inputs.log_prob) * float("nan"), {})
    with pytest.raises(BadStepError, match="actor: loss or gradient was NaN"):
        trainer.fit()


def test_critic_warmup_does_not_eat_the_actors_warmup(train, metrics_of):
    train(*PPO, "trainer.critic_warmup=1", "actor_rollout_ref.actor.optim.lr_warmup_steps=2", "data.val_files=null")
    rates = [line["actor/lr"] for line in metrics_of("run") if "actor/lr" in line]
    assert len(rates) == 2 and 0 < rates[0] < rates[1] < 1e-3


def test_an_accuracy_that_is_no_number_is_left_out(reward, train, metrics_of):
    reward("return {'score': 0.5, 'acc': 'yes'}")
    train(*GRPO, "data.val_files=null", "trainer.total_training_steps=1")
    assert "accuracy" not in metrics_of("run")[0]


def test_an_estimator_may_ask_for_the_entropy(train, metrics_of, monkeypatch):
    from burnish.algorithms import advantages
    from burnish.config import Needs

    monkeypatch.setattr(advantages.TABLE, "entries", dict(advantages.TABLE.entries))
    seen = []

    @advantages.register_adv_est("nosy", needs=Needs(outputs=("entropy", "log_prob", "sum_pi_squared")))
    def nosy(inputs):
        seen.append(set(inputs.outputs))
        return inputs.on_tokens(inputs.scores), inputs.on_tokens(inputs.scores)

    train("algorithm.adv_estimator=nosy", "data.val_files=null", "trainer.total_training_steps=1")
    assert seen == [{"entropy", "log_prob", "sum_pi_squared"}]


def test_rewards_that_never_differ_are_logged_once(reward, train, caplog):
    reward("return 1.0")
    train(*GRPO, "data.val_files=null")
    assert caplog.text.count("nothing to learn") == 1


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ("inputs.token_level_rewards", r"returned a Tensor; \(advantages, returns\) is needed"),
        ("(inputs.scores, inputs.scores)", r"returned \(12,\) as advantages; a tensor of \(12, "),
        (
            "(inputs.token_level_rewards * float('nan'),) * 2",
            "returned advantages that are NaN or infinite, first in row 0",
        ),
    ],
)
def test_what_an_estimator_returns_is_checked(train, tmp_path, monkeypatch, result, message):
    (tmp_path / "my_estimator.py").write_text(f"def wrong(inputs):\n    return {result}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_estimator", raising=False)
    overrides = ["algorithm.adv_estimator=my_estimator:wrong", "actor_rollout_ref.rollout.n=3", "data.val_files=null"]
    with pytest.raises((ConfigError, BadStepError), match=f"adv_estimator=my_estimator:wrong {message}"):
        train(*overrides)
