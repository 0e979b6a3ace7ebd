"""The loop, end to end on a small random model: what a run leaves, and that resuming equals not having stopped."""

import gc
import math
import sys
import traceback
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

import burnish
from burnish.errors import BadStepError, ConfigError
from burnish.rollout.native.runner import Runner
from burnish.trainer.ppo import older_objects_kept
from tests.trainer.conftest import GRPO, PPO, events, same, state_of

ALGORITHMS = pytest.mark.parametrize("algorithm", [GRPO, PPO], ids=["grpo", "ppo"])


@ALGORITHMS
def test_a_run_learns_and_leaves_checkpoints(build_trainer, metrics_of, algorithm):
    trainer = build_trainer(*algorithm, "trainer.save_freq=2", "trainer.test_freq=2")
    worker = trainer.policy.worker
    before = {name: tensor.clone() for name, tensor in worker.actor.module.state_dict().items()}
    trainer.fit()
    assert not same(before, worker.actor.module.state_dict())
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
    if algorithm is PPO:
        assert same(before, worker.reference.module.state_dict())
        critic = AutoModelForTokenClassification.from_pretrained("run/global_step_3/critic")
        assert critic.config.num_labels == 1 and state_of(3)["kl"]["kl_coef"] > 0


def test_validation_cannot_change_training(train, metrics_of):
    keys = [*GRPO, "actor_rollout_ref.actor.shuffle=True"]
    train(*keys, "trainer.default_local_dir=often", "trainer.test_freq=1")
    train(*keys, "trainer.default_local_dir=never", "trainer.test_freq=-1", "trainer.val_before_train=False")
    often = [{k: v for k, v in line.items() if not k.startswith("val-")} for line in metrics_of("often")]
    assert [line for line in often if line["step"] > 0] == metrics_of("never")
    assert all(math.isfinite(value) for line in often for value in line.values())


def test_critic_warmup_leaves_the_actor_and_its_own_warmup_alone(train, metrics_of):
    train(*PPO, "trainer.critic_warmup=1", "actor_rollout_ref.actor.optim.lr_warmup_steps=2", "data.val_files=null")
    lines = metrics_of("run")
    assert ["actor/pg_loss" in line for line in lines] == [False, True, True]
    assert all("critic/vf_loss" in line for line in lines)
    assert 0 < lines[1]["actor/lr"] < lines[2]["actor/lr"] < 1e-3


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


@ALGORITHMS
def test_a_nan_gradient_is_not_applied_and_ends_the_run(build_trainer, algorithm):
    """Despite a good critic, where there is one."""
    trainer = build_trainer(*algorithm, "data.val_files=null", "trainer.max_bad_steps=2")
    before = {n: p.detach().clone() for n, p in trainer.policy.worker.actor.module.named_parameters()}
    trainer.policy.worker.policy_loss = lambda inputs: (inputs.aggregate(inputs.log_prob) * float("nan"), {})
    with pytest.raises(BadStepError, match="actor: loss or gradient was NaN or infinite in 2 updates in a row"):
        trainer.fit()
    assert same(before, dict(trainer.policy.worker.actor.module.named_parameters()))
    assert Path("run/rollouts/1.jsonl").exists(), "the message names it"
    assert {event["role"] for event in events("bad_step")} == {"actor"}


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


def test_each_of_several_reward_functions_has_a_curve(train, metrics_of, tmp_path):
    functions = "def letters(solution_str): return len(solution_str)\ndef a(solution_str): return 'a' in solution_str\n"
    (tmp_path / "parts.py").write_text(functions)
    keys = ["custom_reward_function.functions.letters.weight=0.5", "custom_reward_function.functions.a.weight=2"]
    train(*GRPO, "custom_reward_function.path=parts.py", *keys, "trainer.total_training_steps=1")
    metrics = metrics_of("run")[-1]
    letters, a = metrics["reward/letters/mean"], metrics["reward/a/mean"]
    assert letters > 0 and metrics["critic/score/mean"] == pytest.approx(0.5 * letters + 2 * a)
    assert metrics["val-aux/burnish/arithmetic/letters/mean@1"] > 0


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


def test_rewards_that_never_differ_are_logged_once(reward, train, metrics_of, caplog):
    reward("return {'score': 0.5, 'acc': 'yes'}")
    train(*GRPO, "data.val_files=null")
    found = [(event["step"], event["rule"], event["severity"]) for event in events("finding")]
    assert found == [(3, "equal_rewards", "warning")] and "have the reward 0.5" in caplog.text
    assert "accuracy" not in metrics_of("run")[0], "'yes' is no number"


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ("inputs.token_level_rewards", r"returned a Tensor; \(advantages, returns\) is needed"),
        ("(inputs.scores, inputs.scores)", r"returned \(12,\) as advantages; a tensor of \(12, "),
        ("(inputs.token_level_rewards * float('nan'),) * 2", "returned adv.* are NaN or infinite, first in row 0"),
    ],
)
def test_what_an_estimator_returns_is_checked(train, tmp_path, monkeypatch, result, message):
    (tmp_path / "my_estimator.py").write_text(f"def wrong(inputs):\n    return {result}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_estimator", raising=False)
    overrides = ["algorithm.adv_estimator=my_estimator:wrong", "actor_rollout_ref.rollout.n=3", "data.val_files=null"]
    with pytest.raises((ConfigError, BadStepError), match=f"adv_estimator=my_estimator:wrong {message}"):
        train(*overrides)


OWN_LOSS = [*GRPO, "data.val_files=null", "trainer.total_training_steps=1",
            "actor_rollout_ref.actor.policy_loss.loss_mode=mine.py:mine"]  # fmt: skip
PLAIN = "inputs.aggregate(-inputs.advantages * inputs.policy_log_prob)"
WRONG = {
    "nothing": ("None", "returned a NoneType; (loss, dictionary of metrics) is needed"),
    "a loss alone": (PLAIN, "returned a Tensor; (loss, dictionary of metrics) is needed"),
    "a loss per token": ("inputs.log_prob, {}", "returned a tensor of shape"),
    "a number": ("3.0, {}", "returned a float as its loss; a scalar made from inputs.log_prob is needed"),
    "no gradient": ("inputs.aggregate(inputs.advantages), {}", "a scalar made from inputs.log_prob is needed"),
    "a bare metric": (f"{PLAIN}, {{'actor/mine': 1.0}}", "returned a float as metric 'actor/mine'; a tally is needed"),
}


@pytest.mark.parametrize(("returned", "message"), WRONG.values(), ids=WRONG)
def test_what_a_loss_returns_is_checked(train, returned, message):
    Path("mine.py").write_text(f"def mine(inputs):\n    return {returned}\n")
    with pytest.raises(ConfigError) as error:
        train(*OWN_LOSS)
    assert message in str(error.value) and "loss_mode=mine.py:mine" in str(error.value)


def test_a_loss_of_the_user_reports_what_every_loss_does(train, metrics_of):
    Path("mine.py").write_text(f"def mine(inputs):\n    return {PLAIN}, {{}}\n")
    train(*OWN_LOSS)
    [line] = metrics_of("run")
    assert line["actor/pg_loss"] == line["actor/loss"] != 0 and math.isfinite(line["actor/ppo_kl"])


PF_PPO = ["algorithm.adv_estimator=gae", "algorithm.pf_ppo.enable=true", "actor_rollout_ref.rollout.n=2",
          "actor_rollout_ref.actor.ppo_mini_batch_size=1", "data.val_files=null",
          "trainer.total_training_steps=1"]  # fmt: skip


def test_the_number_of_updates_stays_when_one_prompt_is_all_that_is_drawn(build_trainer, reward):
    reward("return float(str(ground_truth)[-1] in '05') * (1 + len(solution_str) % 2)")
    trainer = build_trainer(*PF_PPO)
    trainer.fit()
    assert trainer.policy.worker.actor.step == trainer.critic.worker.critic.step == 4


def test_a_step_draws_the_same_rows_again_and_another_step_others(build_trainer):
    trainer, metrics = build_trainer(*PF_PPO), {}
    batch = trainer.experience.draw(1, metrics)[0]
    trainer.step = 1
    one, again = trainer.resampled(batch, metrics), trainer.resampled(batch, metrics)
    trainer.step = 2
    other = trainer.resampled(batch, metrics)
    scores = [drawn.batch["token_level_scores"].sum(-1) for drawn in (one, again, other)]
    assert np.array_equal(one.batch["responses"], again.batch["responses"]) and (scores[0] > 0).all()
    assert not np.array_equal(one.batch["responses"], other.batch["responses"])
    assert len(one) == len(batch) and 0 < metrics["pf_ppo/distinct_ratio"] < 1


class Node:
    def __init__(self):
        self.itself = self  # a cycle, which only a collection can free


def test_only_what_the_block_makes_is_collected_until_its_end():
    gc.disable()  # no collection but ours
    try:
        garbage, old = weakref.ref(Node()), Node()
        with pytest.raises(KeyError), older_objects_kept():
            assert garbage() is None  # what was garbage already is not kept
            held, young = weakref.ref(old), weakref.ref(Node())
            del old
            gc.collect()
            assert young() is None and held() is not None
            raise KeyError
        gc.collect()
        assert held() is None and gc.get_freeze_count() == 0
    finally:
        gc.enable()
