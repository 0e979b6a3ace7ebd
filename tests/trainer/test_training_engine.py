"""The engine under a whole run: work that is skipped, packed lines and cuts change neither weights nor metrics."""

from pathlib import Path

import pytest
import torch

from burnish.algorithms import losses
from burnish.models.backbones import FusedBackbone, PaddedBackbone
from burnish.trainer.ppo import PPOTrainer
from tests.trainer.conftest import build, same, scores_of_six_steps

ACTOR, ROLLOUT, CORRECTION = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "algorithm.rollout_correction"
SHORT = ["data.val_files=null", "trainer.save_freq=-1", "trainer.total_training_steps=2"]
ONCE = [*SHORT, f"{ACTOR}.ppo_mini_batch_size=4"]  # one optimiser step a batch
GRPO = ["algorithm.adv_estimator=grpo", f"{ROLLOUT}.n=3"]
EVERY_ROW = [f"{ACTOR}.use_kl_loss=true", f"{ACTOR}.entropy_coeff=0.01"]  # terms that rows without advantage add to
LOSSES = [name for name in losses.TABLE.entries if losses.token_choice(name) is None]


@pytest.fixture
def ran(build_trainer, metrics_of):
    """Run the job under these keys: the weights of its models, and the metrics of each step."""

    def run(*keys):
        folder = f"run{len(list(Path().glob('run*')))}"
        trainer = build_trainer(*keys, f"trainer.default_local_dir={folder}")
        trainer.fit()
        models = {"actor": trainer.policy.worker.actor}
        if trainer.critic:
            models["critic"] = trainer.critic.worker.critic
        return {name: model.module.state_dict() for name, model in models.items()}, metrics_of(folder)

    return run


def assert_alike(found, expected, *, weights=1e-6, but=()):
    """The same metrics, to 1e-5, and the same weights; `but` names metrics that are left out."""
    for name, tensors in expected[0].items():
        torch.testing.assert_close(found[0][name], tensors, atol=weights, rtol=weights)
    assert len(found[1]) == len(expected[1]) > 0
    for line, wanted in zip(found[1], expected[1], strict=True):
        assert line.keys() - set(but) == wanted.keys() - set(but)
        for name in wanted.keys() - set(but):
            assert line[name] == pytest.approx(wanted[name], rel=1e-5, abs=1e-5), name


def is_timed(folder):
    return ["timing_s/old_log_prob" in line for line in Path(folder, "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("loss", LOSSES)
def test_an_update_that_computes_old_log_probs_itself_is_the_one_that_is_given_them(build_trainer, loss):
    """Over two steps of a run, a second actor from the same start is given them and takes the same updates."""
    trainer = build_trainer(*GRPO, *ONCE, f"{ACTOR}.policy_loss.loss_mode={loss}")
    worker, updates = trainer.policy.worker, []
    own, update = worker.actor, worker.update_actor
    worker.load_actor()
    twin, worker.actor = worker.actor, own

    def updated_twice(data, step):
        assert "old_log_probs" not in data.batch and "entropys" not in data.batch
        found = update(data, step)
        worker.actor = twin
        updates.append((found, update(data.union(worker.compute_log_prob(data)), step)))  # the union is in place
        worker.actor = own
        return found

    worker.update_actor = updated_twice
    trainer.fit()
    assert len(updates) == 2 and all(given["actor/grad_norm"][0] > 0 for _, given in updates)
    for found, given in updates:
        for name in given.keys() - {"perf/mfu/actor"}:
            assert found[name] == pytest.approx(given[name], rel=1e-5, abs=1e-5), name
    torch.testing.assert_close(own.module.state_dict(), twin.module.state_dict(), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("estimator", ["grpo", "rloo", "reinforce_plus_plus", "remax"])
def test_a_run_that_skips_them_is_the_run_that_does_not(ran, estimator, monkeypatch):
    samples = 1 if estimator == "remax" else 3
    keys = [f"algorithm.adv_estimator={estimator}", f"{ROLLOUT}.n={samples}", *ONCE, *EVERY_ROW]
    skipped = ran(*keys)
    monkeypatch.setattr(PPOTrainer, "reads_old_log_probs", lambda self: True)
    computed = ran(*keys)
    assert is_timed("run0") == [False, False] and is_timed("run1") == [True, True]
    assert_alike(skipped, computed)
    told = {"actor/entropy", "rollout_corr/k3_kl", "rollout_corr/active", "training/rollout_probs_diff_mean"}
    assert all(told <= line.keys() for line in skipped[1])


def test_what_the_update_measures_is_of_the_rows_that_it_trains_on(ran, reward, monkeypatch):
    """All else is the same; and `auto`, which acts on the gap, measures all rows."""
    reward("return float(len(solution_str) % 2)")
    skipped, auto = ran(*GRPO, *ONCE), ran(*GRPO, *ONCE, f"{CORRECTION}.mode=auto")
    monkeypatch.setattr(PPOTrainer, "reads_old_log_probs", lambda self: True)
    computed = ran(*GRPO, *ONCE)
    assert all(line["actor/skipped_tokens_ratio"] > 0 for line in skipped[1])
    measured = [name for name in computed[1][0] if name.startswith(("rollout_corr/", "training/rollout_probs"))]
    assert len(measured) > 10
    assert_alike(skipped, computed, but=["actor/entropy", *measured])
    assert_alike(auto, computed)
    for line, of_all in zip(skipped[1], computed[1], strict=True):
        assert line["actor/entropy"] == pytest.approx(of_all["actor/entropy"], rel=1e-3)
        assert line["rollout_corr/training_ppl"] != pytest.approx(of_all["rollout_corr/training_ppl"], rel=1e-5)


@pytest.mark.parametrize(
    "keys",
    [
        [f"{ACTOR}.ppo_epochs=2"],
        [f"{ACTOR}.ppo_mini_batch_size=2"],
        ["algorithm.use_kl_in_reward=true"],
        [f"{CORRECTION}.mode=on", f"{CORRECTION}.rollout_is=token"],
        [f"{CORRECTION}.mode=auto"],
        [f"{CORRECTION}.bypass_mode=true"],
        ["algorithm.pf_ppo.enable=true"],
        [f"{ACTOR}.policy_loss.loss_mode=clip_cov"],
        [f"{ACTOR}.policy_loss.loss_mode=kl_cov"],
        ["algorithm.adv_estimator=optimal_token_baseline"],
        ["algorithm.adv_estimator=tir_optimal_token_baseline"],
        ["algorithm.adv_estimator=mine.py:own"],
    ],
    ids=lambda keys: keys[0].rpartition(".")[2] if "mine" not in keys[0] else "an estimator of a user",
)
def test_they_are_computed_where_something_reads_them(job, reward, keys):
    Path("mine.py").write_text("def own(inputs):\n    return inputs.token_level_rewards, inputs.token_level_rewards\n")
    assert not build(*job, *GRPO, *ONCE).reads_old_log_probs()
    assert build(*job, *GRPO, *ONCE, *keys).reads_old_log_probs()


def test_a_user_estimator_is_given_them(ran):
    Path("mine.py").write_text(
        "def surprising(inputs):\n"
        "    advantages = -inputs.old_log_probs * inputs.response_mask\n"
        "    return advantages, advantages\n"
    )
    _, lines = ran(f"{ROLLOUT}.n=3", *ONCE, "algorithm.adv_estimator=mine.py:surprising")
    assert all(line["critic/advantages/mean"] > 1 for line in lines)


def test_a_gap_that_the_update_measured_is_warned_of(ran, caplog):
    ran(*GRPO, *ONCE, f"{CORRECTION}.gap_threshold=1e-30")
    assert is_timed("run0") == [False, False] and "rollout and training disagree by" in caplog.text


BY_ROW = [*GRPO, f"{ACTOR}.ppo_micro_batch_size_per_gpu=1", "data.val_files=null"]
SKIPPING = [name for name in losses.TABLE.entries if losses.needs_of(name).skips_zero_advantage]


def credited(trainer):
    metrics = {}
    batch, passes = trainer.experience.draw(1, metrics, trainer.begin_passes)
    return trainer.credit(passes.join(batch), metrics)


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
    moments = actor.optimizer.state_dict()["state"].items()
    state = {f"moments {i} {k}": torch.as_tensor(v) for i, s in moments for k, v in s.items()}
    return {**actor.module.state_dict(), **state}, metrics


@pytest.mark.parametrize("loss", SKIPPING)
def test_skipping_gives_the_same_update_to_the_bit(build_trainer, loss):
    trainer = build_trainer(*BY_ROW, f"{ACTOR}.policy_loss.loss_mode={loss}", f"{ACTOR}.ppo_epochs=2")
    batch = credited(trainer)
    batch.batch["advantages"][::2] = 0
    assert trainer.policy.worker.skips_zero_advantage
    with_all, without = updated(trainer, batch, skip=False), updated(trainer, batch, skip=True)
    assert same(with_all[0], without[0])
    assert with_all[1]["actor/skipped_tokens_ratio"] == [0.0] * 4
    assert all(0.3 < ratio < 0.7 for ratio in without[1]["actor/skipped_tokens_ratio"])
    assert with_all[1]["actor/pg_loss"] == pytest.approx(without[1]["actor/pg_loss"], abs=1e-7)
    assert with_all[1]["actor/grad_norm"] == without[1]["actor/grad_norm"]


def test_a_mini_batch_without_any_advantage_still_moves_the_moments(build_trainer):
    trainer = build_trainer(*BY_ROW, f"{ACTOR}.ppo_epochs=2")
    batch = credited(trainer)
    first_groups = torch.tensor([uid < 2 for uid in batch.non_tensor_batch["uid"]])
    batch.batch["advantages"][first_groups] = 0
    with_all, without = updated(trainer, batch, skip=False), updated(trainer, batch, skip=True)
    assert 0.7 < without[1]["actor/skipped_tokens_ratio"][0] < 1, "one row of the first mini-batch is left"
    assert without[1].keys() == with_all[1].keys() and without[1]["actor/pg_loss"][0] == 0
    assert without[1]["actor/bad_step"] == [0.0] * 4
    assert same(with_all[0], without[0])


@pytest.mark.parametrize(
    "term",
    [["use_kl_loss=true"], ["entropy_coeff=0.01"], ["policy_loss.loss_mode=dro"], ["policy_loss.loss_mode=kl_cov"],
     ["policy_loss.loss_mode=clip_cov"]],
    ids=lambda term: term[0],
)  # fmt: skip
def test_nothing_is_skipped_where_another_term_reads_the_rows(build_trainer, term):
    trainer = build_trainer(*BY_ROW, *(f"{ACTOR}.{key}" for key in term))
    batch = credited(trainer)
    batch.batch["advantages"][::2] = 0
    worker = trainer.policy.worker
    assert not worker.skips_zero_advantage
    assert worker.update_actor(batch, 1)["actor/skipped_tokens_ratio"] == [0.0, 0.0]


def test_a_custom_loss_skips_only_where_it_declares_it(build_trainer, tmp_path):
    source = "def plain(inputs):\n    return inputs.aggregate(-inputs.advantages * inputs.log_prob), {}\n"
    (tmp_path / "mine.py").write_text(source)
    trainer = build_trainer(*BY_ROW, f"{ACTOR}.policy_loss.loss_mode={tmp_path}/mine.py:plain")
    assert not trainer.policy.worker.skips_zero_advantage


PLAIN = [
    f"{model}.{key}=False" for model in ("actor_rollout_ref.model", "critic.model")
    for key in ("use_remove_padding", "use_fused_kernels")
]  # fmt: skip
SLOWLY = [f"{ACTOR}.optim.lr=2e-4", "critic.optim.lr=2e-4"]  # Adam's first steps make much of the least gradients
RUNS = {"grpo": [*GRPO, *EVERY_ROW, *SHORT, *SLOWLY], "ppo": ["algorithm.adv_estimator=gae", *SHORT, *SLOWLY]}
PASSES = {ACTOR: "ppo_", "critic": "ppo_", ROLLOUT: "log_prob_", "actor_rollout_ref.ref": "log_prob_"}


def sequences(count):
    by_count = [f"{section}.{prefix}micro_batch_size_per_gpu={count}" for section, prefix in PASSES.items()]
    return [f"{ACTOR}.use_dynamic_bsz=False", "critic.use_dynamic_bsz=False", *by_count]


def tokens(count):
    return [f"{section}.{prefix}max_token_len_per_gpu={count}" for section, prefix in PASSES.items()]


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_packed_and_fused_is_padded_and_plain_for_any_cut(ran, run):
    expected = ran(*run, *PLAIN)
    for cut in ([], sequences(1), sequences(3), tokens(64), tokens(100_000)):
        assert_alike(ran(*run, *cut), expected, weights=1e-5)


def test_the_keys_choose_the_way_through_actor_critic_and_reference(build_trainer):
    keys = [*RUNS["ppo"], "algorithm.use_kl_in_reward=true"]
    for more, kind in (([], FusedBackbone), (PLAIN, PaddedBackbone)):
        trainer = build_trainer(*keys, *more)
        policy, critic = trainer.policy.worker, trainer.critic.worker
        for forward in (policy.actor.forward, policy.reference, critic.critic.forward):
            assert type(forward.backbone) is kind and forward.fuses_head == (not more)


@pytest.mark.slow
def test_bfloat16_weights_with_masters_learn_what_float32_learns(tmp_path, monkeypatch):
    """The quickstart's task, from right once in ten times to right most of the time, along the same curve."""
    monkeypatch.chdir(tmp_path)
    curves = {
        dtype: scores_of_six_steps(dtype, f"actor_rollout_ref.model.dtype={dtype}", f"{ACTOR}.optim.lr=3e-4")
        for dtype in ("float32", "bfloat16")
    }
    assert all(curve[0] < 0.3 and min(curve[-2:]) > 0.75 for curve in curves.values()), curves
    assert curves["bfloat16"] == pytest.approx(curves["float32"], abs=0.1), curves  # of 128 answers a step
