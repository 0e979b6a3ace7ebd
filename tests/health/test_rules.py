"""Each rule finds its situation in a series of metrics, with evidence and a remedy, and nothing in healthy ones."""

import math
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from burnish.config import PPOConfig
from burnish.config.key import keys_of
from burnish.errors import ConfigError
from burnish.health import rule
from burnish.health.history import History, noise, trend
from burnish.health.rule import BROKEN, NOTE, WARNING, Finding, all_rules, register_rule
from burnish.health.watch import Health

KEYS = {
    "data": {"train_batch_size": 16, "max_response_length": 512},
    "actor_rollout_ref": {
        "actor": {"optim": {"lr": 1e-5}, "grad_clip": 1.0, "ppo_mini_batch_size": 4, "ppo_epochs": 1},
        "rollout": {"n": 8, "multi_turn": {"max_assistant_turns": 4}},
    },
    "critic": {"optim": {"lr": 1e-5}},
    "optim": {"lr": 1e-5},
    "custom_reward_function": {"functions": {"right": {"weight": 1.0}, "long": {"weight": 0.5}}},
}


def healthy(step: int, noisy: random.Random) -> dict[str, float]:
    """A run that learns: the reward rises with noise, losses fall, everything else drifts."""
    score = 0.2 + 0.6 * step / (step + 30) + noisy.gauss(0, 0.03)
    return {
        "critic/score/mean": score, "critic/score/min": 0.0, "critic/score/max": 1.0,
        "groups/useful_ratio": 0.6 + noisy.gauss(0, 0.05),
        "response/entropy": 1.5 - step / (step + 200) + noisy.gauss(0, 0.02),
        "response_length/mean": 200 + step + noisy.gauss(0, 5), "response_length/clip_ratio": 0.02,
        "response_length/score_correlation": noisy.gauss(0, 0.2), "response/aborted_ratio": 0.0,
        "response/repeated_ratio": 0.01, "accuracy": score, "actor/kl_loss": 0.01,
        "actor/grad_norm": 0.4 + noisy.random() / 5, "actor/pg_clipfrac": 0.0, "actor/lr": 1e-5,
        "training/rollout_probs_diff_mean": 0.003, "rollout_corr/k3_kl": 1e-3,
        "reward/right/weighted_std": 0.3, "reward/right/useful_ratio": 0.5,
        "reward/long/weighted_std": 0.2, "reward/long/useful_ratio": 1.0,
        "tools/calls": 2.0, "tools/error": 0.05, "env/ratio_of_valid_action": 0.9, "training/num_turns/mean": 3.0,
        "critic/vf_explained_var": 0.4, "critic/vf_loss": 0.1, "failures/reward": 0.0,
        "timing_s/step": 10.0, "timing_s/gen": 6 + noisy.random(), "timing_s/update_actor": 3 + noisy.random() / 3,
        "perf/max_memory_allocated_gb": 60.0, "perf/device_memory_gb": 80.0,
        "actor/ppo_kl": noisy.gauss(0, 1e-4),
        "train/loss": 1.0 + 1 / (1 + step / 30) + noisy.gauss(0, 0.05), "train/grad_norm": 0.8, "train/bad_step": 0.0,
        "train/accuracy": 0.5 + 0.3 * step / (step + 30), "val/loss": 1.1 + 1 / (1 + step / 30),
    }  # fmt: skip


def run(steps: int, change: Callable[[int, dict[str, float]], dict[str, float]], keys=KEYS) -> Health:
    health, noisy = Health(keys), random.Random(0)
    for step in range(1, steps + 1):
        metrics = healthy(step, noisy)
        health.observe(metrics | change(step, metrics), step)
    return health


# rule: steps, how its situation differs from a healthy run, severity, words of the evidence and of the remedy
SITUATIONS = {
    "equal_rewards": (
        12, lambda k, m: {"critic/score/mean": 0.0, "critic/score/max": 0.0},
        BROKEN, "all responses of the last 12 steps have the reward 0", "--reward",
    ),
    "useful_groups": (
        20, lambda k, m: {"groups/useful_ratio": 0.04, "critic/score/mean": 0.02},
        WARNING, "4% of the groups", "rollout.n from 8 to 16",
    ),
    "cut_responses": (
        6, lambda k, m: {"response_length/clip_ratio": 0.97},
        BROKEN, "97% of the responses of the last 5 steps were cut at 512 tokens", "_length from 512 to 2048",
    ),
    "empty_responses": (6, lambda k, m: {"response_length/mean": 1.2}, BROKEN, "1.2 tokens", "chat template"),
    "repeated_text": (6, lambda k, m: {"response/repeated_ratio": 0.7}, WARNING, "70%", "optim.lr from 1e-05 to 1e-06"),
    "reward_fell": (
        60, lambda k, m: {"critic/score/mean": m["critic/score/mean"] * (1 if k < 40 else 0.1)},
        BROKEN, "up to step 39", "optim.lr from 1e-05 to 3.3e-06",
    ),
    "entropy_collapse": (
        40, lambda k, m: {"response/entropy": 1.5 * math.exp(-k / 4), "critic/score/mean": 0.3},
        BROKEN, "with a mean reward of 0.3", "clip_ratio_high",
    ),
    "entropy_explosion": (
        40, lambda k, m: {"response/entropy": 1.0 + k / 5}, BROKEN, "entropy rose from 1.3 to 8.6", "optim.lr",
    ),
    "kl_too_large": (10, lambda k, m: {"actor/kl_loss": k * 1.0}, BROKEN, "actor/kl_loss is 8", "kl_loss_coef"),
    "gradient_norm": (
        20, lambda k, m: {"actor/grad_norm": 50.0 if k > 15 else 0.5}, WARNING, "at least 50, usually 0.5", "optim.lr",
    ),
    "ratio_clipping": (6, lambda k, m: {"actor/pg_clipfrac": 0.45}, WARNING, "45% of the tokens", "ppo_epochs"),
    "updates_without_effect": (
        20, lambda k, m: {"actor/ppo_kl": 2e-8 * (-1) ** k},
        WARNING, "the 4 updates of a step moved the policy by a KL of 2e-08", "optim.lr from 1e-05 to 0.0001",
    ),
    "nothing_moves": (
        40, lambda k, m: {
            "critic/score/mean": 0.3 + 0.02 * (-1) ** k, "response/entropy": 1.0 + 0.01 * (-1) ** (k // 2),
            "response_length/mean": 200 + (-1) ** k,
        },
        WARNING, "neither reward, entropy nor length", "optim.lr from 1e-05 to 0.0001",
    ),
    "reward_without_trend": (
        80, lambda k, m: {"critic/score/mean": 0.3 + 0.02 * (-1) ** k}, WARNING, "has not risen", "score one twice",
    ),
    "length_only": (
        40, lambda k, m: {"response_length/score_correlation": 0.99, "accuracy": 0.5},
        WARNING, "correlate with 0.99: the reward pays for length", "overlong_buffer",
    ),
    "reward_part_dominates": (
        10, lambda k, m: {"reward/long/weighted_std": 29.7}, WARNING,
        "right 1.0% (weight 1), long 99.0% (weight 0.5), though right differs in 50%", "long.weight from 0.5 to 0.0051",
    ),
    "rollout_gap": (4, lambda k, m: {"training/rollout_probs_diff_mean": 0.2}, WARNING, "by 0.200", "rollout_is"),
    "tool_failures": (10, lambda k, m: {"tools/malformed": 1.5}, WARNING, "most as malformed", "multi_turn.format"),
    "invalid_actions": (10, lambda k, m: {"env/ratio_of_valid_action": 0.1}, WARNING, "10% of the", "burnish sft"),
    "tool_loops": (10, lambda k, m: {"training/num_turns/mean": 8.0}, WARNING, "max_assistant_turns=4", "=8"),
    "trajectory_failures": (10, lambda k, m: {"failures/tool": 64.0}, WARNING, "50% of the", "burnish status"),
    "critic_explains_nothing": (
        30, lambda k, m: {"critic/vf_explained_var": -0.5}, WARNING, "critic is -0.50", "critic.optim.lr",
    ),
    "slow_phase": (
        40, lambda k, m: {"timing_s/gen": 20.0 if k > 36 else 6.0}, NOTE, "gen takes 3.3 times as long", "top",
    ),
    "memory": (2, lambda k, m: {"perf/max_memory_allocated_gb": 79.0}, WARNING, "79.0 of 80.0 GB", "gpu_memory"),
    "loss_rises": (
        60, lambda k, m: {"train/loss": m["train/loss"] + (1.5 if k > 40 else 0)},
        BROKEN, "rose from 1.45 (up to step 40) to 2.87", "optim.lr from 1e-05 to 3.3e-06",
    ),
    "overfitting": (
        60, lambda k, m: {"val/loss": m["val/loss"] + max(0, k - 30) / 50},
        WARNING, "rose from 1.6 (step 30) to 2.03", "a checkpoint near step 30",
    ),
    "pairs_at_chance": (
        110, lambda k, m: {"train/accuracy": 0.5 + 0.02 * (-1) ** k}, WARNING, "50% of the pairs", "1e-05 to 0.0001",
    ),
    "loss_stays": (
        110, lambda k, m: {"train/loss": 1.5 + 0.02 * (-1) ** k}, WARNING, "what it was, 1.5", "1e-05 to 0.0001",
    ),
    "bad_updates": (8, lambda k, m: {"failures/bad_steps": 1.0}, BROKEN, "updates of 8 steps", "burnish replay"),
    "unscored": (6, lambda k, m: {"failures/reward": 100.0}, BROKEN, "78% of the responses", "--reward"),
}  # fmt: skip


@pytest.mark.parametrize("name", all_rules())
def test_rule_finds_its_situation(name):
    steps, change, severity, evidence, remedy = SITUATIONS[name]
    found = run(steps, change).found[name]
    assert found.worst.severity == severity
    assert evidence in found.newest.evidence and remedy in found.newest.remedy


@pytest.mark.parametrize("name", all_rules())
def test_rule_does_without_any_of_its_metrics(name):
    """As in the folder of a run that another program wrote."""
    steps, change, *_ = SITUATIONS[name]
    for left_out in all_rules()[name].watches:
        health, noisy = Health(KEYS, rules={name: all_rules()[name]}), random.Random(0)
        for step in range(1, steps + 1):
            metrics = healthy(step, noisy)
            metrics |= change(step, metrics)
            health.observe({key: value for key, value in metrics.items() if not key.startswith(left_out)}, step)
        assert name in health.rules, f"failed without {left_out}"


@pytest.mark.parametrize("steps", [5, 30, 200, 1000])
def test_healthy_run_has_no_findings_and_learned(steps):
    health = run(steps, lambda step, metrics: {})
    assert not health.found
    assert health.verdict().startswith(
        "learned" if steps > 30 else f"{steps} steps are too few" if steps < 12 else "learned"
    )


def test_solved_task_is_a_note_not_a_failure():
    """All rewards are 1 after a climb."""
    health = run(60, lambda k, m: dict.fromkeys(("critic/score/mean", "critic/score/min"), 1.0) if k > 40 else {})
    assert [(name, found.worst.severity) for name, found in health.found.items()] == [("equal_rewards", NOTE)]
    assert health.verdict().startswith("learned")


@pytest.mark.parametrize(("share", "score", "severity"), [(0.97, 0.6, NOTE), (0.97, 0.4, BROKEN), (0.6, 0.6, WARNING)])
def test_cut_responses_that_are_rewarded_are_a_note(share, score, severity):
    """At a share of 0.6 the right ones may be those that are not cut."""
    changed = {"response_length/clip_ratio": share, "critic/score/mean": score}
    found = run(6, lambda k, m: changed).found["cut_responses"]
    assert found.worst.severity == severity
    assert ("with a mean reward of 0.6 (best response: 1)" in found.newest.evidence) == (severity == NOTE)


def test_rules_of_all_commands_read_the_metrics_and_name_the_keys_of_supervised_runs():
    def supervised(step, metrics):
        bad = {"train/bad_step": 1.0} if step > 15 else {}
        return {"train/loss": 2.0 - step / 20, "train/grad_norm": 50.0 if step > 15 else 0.5} | bad

    health = Health({"optim": {"lr": 1e-3, "grad_clip": 1.0}})
    for step in range(1, 21):
        health.observe(supervised(step, {}), step)
    assert "optim.lr from 0.001 to 0.00033); look" in health.found["gradient_norm"].newest.remedy
    remedy = health.found["bad_updates"].newest.remedy
    assert "(optim.lr from 0.001 to 0.0001), or float32 (model.dtype=float32)" in remedy
    assert health.verdict().startswith("broke at step 16")
    del health.found["bad_updates"]
    assert health.verdict().startswith("learned: training loss 1.85 in the first quarter, 1.1 in the last")


def test_finding_is_reported_once_and_again_when_it_worsens():
    """Three steps with one reward are a warning, ten are broken."""
    health, noisy, news = Health(KEYS), random.Random(0), []
    for step in range(1, 21):
        metrics = healthy(step, noisy) | dict.fromkeys(
            ("critic/score/mean", "critic/score/min", "critic/score/max"), 0.0
        )
        news += [(step, found.rule, found.newest.severity) for found in health.observe(metrics, step)]
    assert news == [(3, "equal_rewards", WARNING), (10, "equal_rewards", BROKEN)]
    assert health.found["equal_rewards"].steps == 18
    assert health.verdict().startswith("broke at step 3")


def test_higher_limit_is_no_remedy_for_responses_that_repeat_themselves():
    health = run(6, lambda k, m: {"response_length/clip_ratio": 0.97, "response/repeated_ratio": 0.9})
    assert health.found["repeated_text"] and health.found["cut_responses"].newest.remedy.startswith("no higher limit")


def test_finding_that_is_over_is_not_part_of_the_verdict():
    health = run(60, lambda k, m: {"response_length/clip_ratio": 0.97} if k < 20 else {})
    assert health.found["cut_responses"].last_step < 30 and health.verdict().startswith("learned")
    assert "cut_responses" not in health.verdict()


def test_memory_does_not_grow_with_the_run():
    """At most 256 points of a curve, which cover it from its first step to its last."""
    history = History({}, ["x"])
    for step in range(1, 10_001):
        history.add({"x": float(step), "other": 1.0}, step)
    points = history.points("x")
    assert 128 <= len(points) < 256 and points[0][1] < 100 < 9900 < points[-1][1]
    assert history.recent("x", 64)[-1] == 10_000 and history.recent("other", 1) == []


def test_values_that_are_not_finite_are_left_out():
    history = History({}, ["x"])
    for step, value in enumerate([1.0, math.nan, math.inf, 2.0], start=1):
        history.add({"x": value}, step)
    assert history.recent("x", 2) == [1.0, 2.0]


def test_trend_is_zero_for_flat_and_noisy_series_and_large_for_a_climb():
    noisy = random.Random(1)
    assert trend([1.0] * 50) == 0 and abs(trend([noisy.random() for _ in range(50)])) < 2.5
    assert trend([i + noisy.random() for i in range(50)]) > 20 and trend([float(-i) for i in range(50)]) == -99
    assert noise([i + noisy.gauss(0, 0.5) for i in range(200)]) < 1.5


def test_registered_rule_is_asked_and_a_failing_one_is_left_out(monkeypatch, caplog):
    monkeypatch.setattr(rule, "REGISTERED", {})

    @register_rule("mine", watches=("env/cheats",), symptom="The agent cheats")
    def check(history):
        cheats = history.recent("env/cheats", 2)
        return Finding(WARNING, f"{cheats[-1]:g} cheats", "look at it") if cheats else None

    @register_rule("wrong", watches=("env/cheats",), symptom="It fails")
    def fails(history):
        return 1 / 0

    with pytest.raises(ConfigError, match="has a rule of this name"):
        register_rule("equal_rewards", watches=(), symptom="")
    health = run(3, lambda k, m: {"env/cheats": 3.0})
    assert str(health.found["mine"]) == "warning [mine] 3 cheats. Try: look at it"
    assert caplog.text.count("health rule wrong failed and is left out: ZeroDivisionError") == 1


def test_keys_that_remedies_name_exist():
    known = keys_of(PPOConfig)
    for name, (steps, change, *_) in SITUATIONS.items():
        remedy = run(steps, change).found[name].newest.remedy
        for key in re.findall(
            r"\b(?:actor_rollout_ref|data|trainer|algorithm|critic|reward_model)\.[a-z_.]+[a-z]", remedy
        ):
            assert key in known, f"{name}: {key}"


def test_troubleshooting_page_is_made_from_the_rules():
    from tests.health.page import page

    made = Path(__file__).parents[2] / "docs" / "troubleshooting.md"
    assert made.read_text() == page(), "write it again: python -m tests.health.page > docs/troubleshooting.md"


def test_samples_of_a_finding_are_shown_as_they_are_on_one_line():
    row = {"response": "x" * 80 + "\\frac{1}{2}\n\x1b[2J", "ground_truth": "1\n2", "score": 0.5}
    (line,) = History({}, [], lambda count: [row]).scored_samples(1)
    assert line.endswith("x\\frac{1}{2}\\n\\x1b[2J' (ground truth '1\\n2') → 0.5") and line.startswith("'…")
