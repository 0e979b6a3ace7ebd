"""PRIME, end to end: the process reward model is trained along, rewards tokens, and is part of the checkpoint."""

import math
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from burnish.errors import CheckpointError, RewardError
from burnish.models.tiny import write_tiny_model
from tests.trainer.conftest import same

PRIME = ["algorithm.adv_estimator=prime", "actor_rollout_ref.rollout.n=3", "process_reward.optim.lr=1e-3",
         "data.val_files=null"]  # fmt: skip
WHEN = pytest.mark.parametrize("when", ["before", "after"])


@pytest.fixture(autouse=True)
def outcomes(reward):
    """A score that is right or wrong, and that a random model sometimes earns."""
    reward("return float(len(set(solution_str)) % 2)")


def weights(module):
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def estimated(trainer):
    """Run the trainer; returns what each step gave to the estimator, and the advantages that came back."""
    seen, estimator = [], trainer.credit.estimator

    def watched(inputs):
        advantages, returns = estimator(inputs)
        seen.append((inputs, advantages))
        return advantages, returns

    trainer.credit.estimator = watched
    trainer.fit()
    return seen


@WHEN
def test_policy_and_process_reward_model_move_and_the_start_stays(build_trainer, metrics_of, when):
    trainer = build_trainer(*PRIME, f"process_reward.update={when}", "trainer.total_training_steps=2")
    policy, judge = trainer.policy.worker, trainer.process_reward.worker
    actor, model, start = weights(policy.actor.module), weights(judge.model.module), weights(judge.start.module)
    assert same(model, start) and same(actor, start), "both start from the policy's model where none is named"
    first, second = (inputs.process_rewards for inputs, _ in estimated(trainer))
    assert first.any() == (when == "before"), "as it starts, the model gives no token anything"
    assert second.any()
    assert not same(actor, weights(policy.actor.module)) and not same(model, weights(judge.model.module))
    assert same(start, weights(judge.start.module))

    lines = metrics_of("run")
    assert [line["step"] for line in lines] == [1, 2]
    for line in lines:
        for name in ("loss", "accuracy", "reward_mean", "grad_norm", "lr"):
            assert math.isfinite(line[f"process_reward/{name}"]), name
        assert line["process_reward/grad_norm"] > 0 and line["actor/grad_norm"] > 0
        assert all(math.isfinite(value) for value in line.values() if isinstance(value, float)), line

    folder = Path("run/global_step_2/process_reward")
    saved, of_policy = (AutoModelForCausalLM.from_pretrained(path) for path in (folder, "run/global_step_2"))
    assert not same(weights(saved), weights(of_policy)), "the checkpoint itself is the policy"
    assert AutoTokenizer.from_pretrained(folder).eos_token == "<|end|>"


@pytest.mark.parametrize("weight", [0, 1])
def test_process_rewards_are_what_tells_equal_outcomes_apart(build_trainer, reward, weight):
    reward("return 1.0")
    trainer = build_trainer(*PRIME, f"algorithm.reward_dpo_coef={weight}", "trainer.total_training_steps=1")
    ((inputs, advantages),) = estimated(trainer)
    outside = inputs.response_mask == 0
    assert not inputs.process_rewards[outside].any() and not advantages[outside].any()
    assert inputs.process_rewards.any() and advantages.any() == bool(weight)


@WHEN
def test_resume_gives_the_run_that_was_never_stopped(resumes, when):
    files = [f"{role}/{name}.safetensors" for role in ("actor", "process_reward") for name in ("model", "optimizer")]
    resumes(2, *PRIME, f"process_reward.update={when}", "process_reward.optim.lr_scheduler_type=cosine",
            "trainer.total_training_steps=4", files=files)  # fmt: skip


def test_the_model_can_be_another_one_than_the_policy(build_trainer, tmp_path):
    other = write_tiny_model(tmp_path / "other", hidden_size=16, seed=5)
    trainer = build_trainer(*PRIME, f"process_reward.model.path={other}", "trainer.total_training_steps=1")
    judge = trainer.process_reward.worker
    trainer.fit()
    assert judge.start.module.config.hidden_size == 16 and trainer.policy.worker.actor.module.config.hidden_size == 32
    assert same(weights(judge.start.module), weights(AutoModelForCausalLM.from_pretrained(other)))
    saved = AutoModelForCausalLM.from_pretrained("run/global_step_1/process_reward")
    assert saved.config.hidden_size == 16 and not same(weights(saved), weights(judge.start.module))


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ("3.0", r"between 0 \(wrong\) and 1 \(right\), and uid 0.* has 3\.0; return .*acc"),
        ("dict(score=1.0, acc='right')", r"uid 0 .* has 'right'; return such a number"),
    ],
)
def test_an_outcome_that_is_none_stops_the_run_and_is_named(train, reward, returned, said):
    reward(f"return {returned}")
    with pytest.raises(RewardError, match=said):
        train(*PRIME, "trainer.total_training_steps=1")


def test_an_overlong_penalty_changes_no_outcome(build_trainer):
    """It is a fact about length, not about right and wrong; a third of a token's worth is not exact in float32."""
    overlong = [f"algorithm.overlong_buffer.{key}" for key in ("enable=true", "len=7", "penalty_factor=3")]
    trainer = build_trainer(*PRIME, *overlong, "trainer.total_training_steps=2")
    update, seen = trainer.process_reward.update_process_reward, []
    trainer.process_reward.update_process_reward = lambda batch, step: seen.append(batch) or update(batch, step)
    trainer.fit()
    assert len(seen) == 2
    for batch in seen:
        infos = batch.non_tensor_batch["reward_info"]
        assert batch.batch["outcomes"].tolist() == [info["score"] for info in infos]
        assert {info["score"] for info in infos} == {0, 1} and any(info["overlong"] for info in infos)
        penalised = batch.batch["token_level_scores"].sum(-1)
        assert (penalised < batch.batch["outcomes"]).any()


def test_another_start_of_the_process_reward_model_is_refused_on_resume(train, tmp_path):
    """Its rewards are distances to that start."""
    start = write_tiny_model(tmp_path / "start", hidden_size=32)
    keys = [*PRIME, f"process_reward.model.path={start}"]
    train(*keys, "trainer.total_training_steps=1")
    write_tiny_model(tmp_path / "start", hidden_size=32, seed=7)
    with pytest.raises(CheckpointError, match=r"another model: the weights at process_reward.model.path"):
        train(*keys, "trainer.total_training_steps=2")
