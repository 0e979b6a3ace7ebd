"""Rows whose advantages are all 0 are not computed where nothing could come of them, and the update is the same."""

import pytest
import torch

from burnish.algorithms import losses

ACTOR = "actor_rollout_ref.actor"
GRPO = ["algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=3", f"{ACTOR}.ppo_micro_batch_size_per_gpu=1",
        "data.val_files=null"]  # fmt: skip
SKIPPING = [name for name in losses.TABLE.entries if losses.needs_of(name).skips_zero_advantage]


def credited(trainer):
    """A real batch with its advantages."""
    metrics = {}
    batch = trainer.experience.draw(1, metrics)[0]
    batch = batch.union(trainer.policy.compute_log_prob(batch, trainer.credit.needs.outputs))
    if trainer.config.reads_reference:
        batch = batch.union(trainer.policy.compute_ref_log_prob(batch))
    return trainer.credit(batch, metrics)


def updated(trainer, batch, *, skip):
    """Weights, moments and metrics after one update from the same start; the trainer is as before afterwards."""
    worker = trainer.policy.worker
    kept = worker.actor
    worker.load_actor()
    actor, worker.skips_zero_advantage = worker.actor, skip
    try:
        metrics = worker.update_actor(batch, 1)
    finally:
        worker.actor = kept
    state = {f"moments {i} {k}": v for i, s in actor.optimizer.state_dict()["state"].items() for k, v in s.items()}
    return {**actor.module.state_dict(), **state}, metrics


@pytest.mark.parametrize("loss", SKIPPING)
def test_skipping_gives_the_same_update_to_the_bit(build_trainer, loss):
    trainer = build_trainer(*GRPO, f"{ACTOR}.policy_loss.loss_mode={loss}", f"{ACTOR}.ppo_epochs=2")
    batch = credited(trainer)
    batch.batch["advantages"][::2] = 0
    assert trainer.policy.worker.skips_zero_advantage
    with_all, without = updated(trainer, batch, skip=False), updated(trainer, batch, skip=True)
    for name, tensor in with_all[0].items():
        assert torch.equal(torch.as_tensor(tensor), torch.as_tensor(without[0][name])), name
    assert with_all[1]["actor/skipped_tokens_ratio"] == [0.0] * 4
    assert all(0.3 < ratio < 0.7 for ratio in without[1]["actor/skipped_tokens_ratio"])
    assert with_all[1]["actor/pg_loss"] == pytest.approx(without[1]["actor/pg_loss"], abs=1e-7)
    assert with_all[1]["actor/grad_norm"] == without[1]["actor/grad_norm"]


def test_a_mini_batch_without_any_advantage_still_moves_the_moments(build_trainer):
    trainer = build_trainer(*GRPO, f"{ACTOR}.ppo_epochs=2")
    batch = credited(trainer)
    first_groups = torch.tensor([uid < 2 for uid in batch.non_tensor_batch["uid"]])
    batch.batch["advantages"][first_groups] = 0
    with_all, without = updated(trainer, batch, skip=False), updated(trainer, batch, skip=True)
    assert 0.7 < without[1]["actor/skipped_tokens_ratio"][0] < 1, "one row of the first mini-batch is left"
    assert without[1].keys() == with_all[1].keys() and without[1]["actor/pg_loss"][0] == 0
    assert without[1]["actor/bad_step"] == [0.0] * 4
    for name, tensor in with_all[0].items():
        assert torch.equal(torch.as_tensor(tensor), torch.as_tensor(without[0][name])), name


def test_any_size_of_micro_batch_gives_the_same_gradient(build_trainer):
    trainer = build_trainer(*GRPO, f"{ACTOR}.ppo_micro_batch_size_per_gpu=5")
    batch = credited(trainer)
    batch.batch["advantages"][1::3] = 0
    with_all, without = updated(trainer, batch, skip=False), updated(trainer, batch, skip=True)
    assert with_all[1]["actor/grad_norm"] == pytest.approx(without[1]["actor/grad_norm"], rel=1e-5)


@pytest.mark.parametrize(
    "term",
    [["use_kl_loss=true"], ["entropy_coeff=0.01"], ["policy_loss.loss_mode=dro"], ["policy_loss.loss_mode=kl_cov"],
     ["policy_loss.loss_mode=clip_cov"]],
    ids=lambda term: term[0],
)  # fmt: skip
def test_nothing_is_skipped_where_another_term_reads_the_rows(build_trainer, term):
    trainer = build_trainer(*GRPO, *(f"{ACTOR}.{key}" for key in term))
    batch = credited(trainer)
    batch.batch["advantages"][::2] = 0
    worker = trainer.policy.worker
    assert not worker.skips_zero_advantage
    assert worker.update_actor(batch, 1)["actor/skipped_tokens_ratio"] == [0.0, 0.0]


def test_a_custom_loss_skips_only_where_it_declares_it(build_trainer, tmp_path):
    (tmp_path / "mine.py").write_text(
        "def plain(inputs):\n    return inputs.aggregate(-inputs.advantages * inputs.log_prob), {}\n"
    )
    trainer = build_trainer(*GRPO, f"{ACTOR}.policy_loss.loss_mode={tmp_path}/mine.py:plain")
    assert not trainer.policy.worker.skips_zero_advantage
