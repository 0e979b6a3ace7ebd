"""PF-PPO in the loop: what is trained on, and that the number of updates stays."""

import numpy as np

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
