"""The gap between rollout and training: measured every step, warned of, corrected when a mode says so, remembered."""

import json
import logging
import math

import pytest
import torch

from burnish.config.algorithm import RolloutCorrectionConfig
from burnish.errors import RolloutError
from burnish.protocol import DataProto
from burnish.trainer.credit import GAP, RolloutCorrection
from tests.trainer.conftest import events, state_of

GRPO = ["algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=3", "data.val_files=null"]


def batch(gap: float) -> DataProto:
    """Two rows whose training log-probs are `gap` away from the rollout's, to both sides."""
    rollout = -torch.rand(2, 4, generator=torch.Generator().manual_seed(0)) - 0.5
    sign = torch.tensor([[1.0, -1, 1, -1], [-1, 1, -1, 1]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    old = rollout + gap * sign
    return DataProto.from_dict({"rollout_log_probs": rollout, "old_log_probs": old, "response_mask": mask})


def correction(**keys) -> tuple[RolloutCorrection, list[tuple[str, dict]]]:
    told: list[tuple[str, dict]] = []
    made = RolloutCorrection(RolloutCorrectionConfig(**keys), lambda kind, **facts: told.append((kind, facts)))
    return made, told


def step(made: RolloutCorrection, gap: float, number: int = 1) -> tuple[DataProto, dict[str, float]]:
    metrics: dict[str, float] = {}
    out = made(batch(gap), metrics)
    made.watch(metrics, number)
    return out, metrics


def test_measure_reports_and_warns_once_and_changes_nothing(caplog):
    made, told = correction(mode="measure")
    with caplog.at_level(logging.WARNING):
        outs = [step(made, 0.3, number) for number in (1, 2, 3)]
    assert all(metrics[GAP] > 0.01 and metrics["rollout_corr/active"] == 0 for _, metrics in outs)
    assert all("rollout_is_weights" not in out.batch and "loss_mask" not in out.batch for out, _ in outs)
    assert [kind for kind, _ in told] == ["rollout_gap"] and told[0][1]["step"] == 1
    assert len(caplog.records) == 1 and "rollout_correction.mode=auto would" in caplog.text


@pytest.mark.parametrize(("mode", "gap"), [("measure", 0.01), ("off", 1.0)])
def test_a_small_gap_and_any_with_mode_off_are_measured_and_not_worth_a_word(caplog, mode, gap):
    made, told = correction(mode=mode)
    _, metrics = step(made, gap)
    assert metrics[GAP] > gap / 1e4 and not told and not caplog.records


def test_on_corrects_every_step():
    made, _ = correction(mode="on", rollout_is="token", rollout_rs="token_k3", rollout_rs_threshold="0.01")
    out, metrics = step(made, 0.05)
    assert metrics["rollout_corr/active"] == 1 and metrics["rollout_corr/rollout_is_mean"] > 0
    assert out.batch["rollout_is_weights"][1, 2:].tolist() == [0, 0]
    assert out.batch["loss_mask"].tolist() == out.batch["response_mask"].tolist()


def test_auto_follows_the_gap_of_the_step_before_and_logs_it(caplog):
    made, told = correction(mode="auto", rollout_is="token")
    gaps = [0.01, 0.3, 0.3, 0.12, 0.01, 0.3]  # as k3: past the threshold at 0.3, between it and its half at 0.12
    with caplog.at_level(logging.WARNING):
        active = [step(made, gap, number)[1]["rollout_corr/active"] for number, gap in enumerate(gaps, 1)]
    assert active == [0, 0, 1, 1, 1, 0]
    assert [(kind, facts["step"], facts["active"]) for kind, facts in told] == [
        ("rollout_correction", 2, True), ("rollout_correction", 5, False), ("rollout_correction", 6, True)
    ]  # fmt: skip
    assert "corrected from the next step on" in caplog.text and "no longer corrected" in caplog.text


def test_a_gap_that_is_no_number_is_past_any_threshold(caplog):
    for mode in ("auto", "measure"):
        made, told = correction(mode=mode, rollout_is="token")
        made.watch({GAP: math.nan}, 1)
        assert len(told) == 1 and made.active == (mode == "auto")


def test_auto_is_part_of_the_checkpoint_and_the_other_modes_are_the_configurations():
    made, _ = correction(mode="auto", rollout_is="token")
    step(made, 0.3)
    resumed, _ = correction(mode="auto", rollout_is="token")
    resumed.load_state_dict(json.loads(json.dumps(made.state_dict())))
    assert resumed.active
    switched_off, _ = correction(mode="measure")
    switched_off.load_state_dict(made.state_dict())
    assert not switched_off.active


def test_a_mask_that_rejects_everything_is_an_error_that_names_the_bound():
    made, _ = correction(mode="on", rollout_rs="token_k3", rollout_rs_threshold="0.001")
    with pytest.raises(RolloutError, match=r"rollout_rs=token_k3 rejected every token.*widen rollout_rs_threshold"):
        step(made, 2.0)


def test_nothing_to_measure_without_the_rollouts_log_probs(train, metrics_of):
    train(*GRPO, "actor_rollout_ref.rollout.calculate_log_probs=false", "trainer.total_training_steps=1")
    [line] = metrics_of("run")
    assert not [name for name in line if name.startswith("rollout_corr/")]


def test_auto_resumes_as_it_stood(resumes, metrics_of):
    """The correction starts at the second step; a run resumed after the first goes on with it."""
    smallest = "algorithm.rollout_correction.gap_threshold=1e-30"  # any rounding is past it
    resumes(1, *GRPO, "algorithm.rollout_correction.mode=auto", smallest)
    lines = metrics_of("whole")
    assert [line["rollout_corr/active"] for line in lines] == [0, 1, 1]
    assert "rollout_corr/rollout_is_mean" in lines[1] and "rollout_corr/rollout_is_mean" not in lines[0]
    assert [event["step"] for event in events("rollout_correction", "whole")] == [1]
    assert state_of(1, "whole")["correction"] == {"active": True}


def test_on_policy_the_bypass_is_the_same_run_up_to_the_engines_rounding(train, metrics_of):
    """The gap is measured in the update; there is no pass that would compute the entropy."""
    one_step = ["trainer.total_training_steps=2", "actor_rollout_ref.actor.ppo_mini_batch_size=4"]
    train(*GRPO, *one_step, "trainer.default_local_dir=plain")
    train(*GRPO, *one_step, "trainer.default_local_dir=bypass", "algorithm.rollout_correction.bypass_mode=true")
    for plain, bypassed in zip(metrics_of("plain"), metrics_of("bypass"), strict=True):
        assert plain["actor/grad_norm"] == pytest.approx(bypassed["actor/grad_norm"], rel=1e-3)
        assert bypassed["rollout_corr/k3_kl"] >= 0


def test_under_bypass_the_gap_is_that_of_the_first_update(train, metrics_of, caplog):
    """Later updates see a policy that has moved: how far it did is `actor/ppo_kl`, and no fault of the engine."""
    moving = ["algorithm.rollout_correction.bypass_mode=true", "actor_rollout_ref.actor.ppo_epochs=4",
              "actor_rollout_ref.actor.optim.lr=1e-2", "trainer.total_training_steps=1"]  # fmt: skip
    train(*GRPO, *moving)
    [line] = metrics_of("run")
    assert abs(line["actor/ppo_kl"]) > 1e-3 and line["rollout_corr/k3_kl"] < 1e-6
    assert "disagree" not in caplog.text and "actor/entropy" not in line


def test_tokens_that_a_correction_rejects_are_not_chosen_under_bypass(build_trainer):
    trainer = build_trainer(
        *GRPO, "algorithm.rollout_correction.bypass_mode=true", "algorithm.rollout_correction.rollout_rs=token_k3",
        "algorithm.rollout_correction.rollout_rs_threshold=0.1", "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "actor_rollout_ref.actor.policy_loss.loss_mode=kl_cov", "actor_rollout_ref.actor.policy_loss.kl_cov_ratio=1.0",
    )  # fmt: skip
    metrics: dict[str, float] = {}
    drawn = trainer.experience.draw(1, metrics)[0]
    drawn.batch["rollout_log_probs"][:, 0] -= 3  # the first token of every row is far off
    drawn = trainer.credit(trainer.begin_passes(drawn, metrics).join(drawn), metrics)
    worker, seen = trainer.policy.worker, []
    choose = worker.choose
    worker.choose = lambda inputs, random: seen.append(choose(inputs, random)) or seen[-1]
    worker.update_actor(drawn, 1)
    [chosen] = seen
    assert not chosen[:, 0].any() and chosen[:, 1:].any()
