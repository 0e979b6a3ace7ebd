"""KL estimates, controllers, and the KL penalty in the reward."""

import json
from pathlib import Path

import pytest
import torch

from burnish.algorithms.kl import AdaptiveKL, FixedKL, apply_kl_penalty, kl_controller, kl_penalty
from burnish.config.algorithm import KLControlConfig
from burnish.errors import CheckpointError, ConfigError

GOLDEN = Path(__file__).parents[1] / "golden"
CASES = json.loads((GOLDEN / "kl_penalty.json").read_text())
PENALTIES = [case for case in CASES if case["params"]["function"] == "kl_penalty"]
REWARDS = [case for case in CASES if case["params"]["function"] == "compute_rewards"]
CONTROLLERS = json.loads((GOLDEN / "kl_controllers.json").read_text())


@pytest.mark.parametrize("case", PENALTIES, ids=lambda case: case["name"])
def test_penalty_golden(case, assert_close):
    log_prob = torch.tensor(case["inputs"]["logprob"], requires_grad=True)
    reference, kind = torch.tensor(case["inputs"]["ref_logprob"]), case["params"]["kind"]
    if "raises" in case["expected"]:
        with pytest.raises(ConfigError, match=f"'{kind}'"):
            kl_penalty(log_prob, reference, kind)
        return
    kl = kl_penalty(log_prob, reference, kind)
    kl.sum().backward()
    assert_close(kl.detach(), case["expected"]["kl"])
    assert_close(log_prob.grad, case["expected"]["grad_logprob"])


def test_refused_and_unknown_kinds_name_what_to_use():
    one = torch.zeros(1, 1)
    with pytest.raises(ConfigError, match="'full' needs every token's whole vocabulary; low_var_kl"):
        kl_penalty(one, one, "full")
    with pytest.raises(ConfigError, match=r"'low_var_k' is unknown: did you mean 'low_var_kl'\?"):
        kl_penalty(one, one, "low_var_k")


@pytest.mark.parametrize("case", REWARDS, ids=lambda case: case["name"])
def test_reward_golden(case, assert_close):
    scores, old, reference = (torch.tensor(values) for values in case["inputs"].values())
    rewards, _ = apply_kl_penalty(
        scores, old, reference, torch.ones_like(scores), "kl", FixedKL(case["params"]["kl_ratio"])
    )
    assert_close(rewards, case["expected"]["token_level_rewards"])


@pytest.mark.parametrize("kind", ["kl", "low_var_kl", "mse+"])
def test_reward_does_not_read_observation_tokens(kind, junk):
    random = torch.Generator().manual_seed(0)
    scores, old, reference = torch.randn(3, 4, 6, generator=random)
    mask = torch.rand(4, 6, generator=random) < 0.6
    clean, clean_metrics = apply_kl_penalty(scores, old, reference, mask, kind, FixedKL(0.1))
    dirty = (tensor.masked_fill(~mask, junk) for tensor in (scores, old, reference))
    rewards, metrics = apply_kl_penalty(*dirty, mask, kind, FixedKL(0.1))
    assert torch.equal(rewards, clean) and metrics == clean_metrics
    assert not rewards[~mask].any()


def test_reward_metrics_and_the_step_of_the_controller():
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 0, 0]])  # the last row has no policy tokens: it is no sample
    old, reference = torch.tensor([[0.0, -1.0, 9.0], [-2.0, 9.0, 9.0], [9.0, 9.0, 9.0]]), torch.full((3, 3), -3.0)
    controller = AdaptiveKL(0.5, target=1.0, horizon=4)
    rewards, metrics = apply_kl_penalty(torch.zeros(3, 3), old, reference, mask, "kl", controller)
    assert rewards.tolist() == [[-1.5, -1.0, 0.0], [-0.5, 0.0, 0.0], [0.0, 0.0, 0.0]]
    assert metrics == {"actor/reward_kl_penalty": 1.75, "actor/reward_kl_penalty_coeff": 0.5}  # (2.5 + 1) / 2
    assert controller.value == pytest.approx(0.5 * (1 + 0.2 * 2 / 4))  # too far away: the next step costs more


@pytest.mark.parametrize("case", CONTROLLERS, ids=lambda case: case["name"])
def test_controller_golden(case, assert_close):
    params = {name: value for name, value in case["params"].items() if name != "function"}
    if "raises" in case["expected"]:
        with pytest.raises((ConfigError, ZeroDivisionError), match=r"type=cosine is unknown|by zero"):
            kl_controller(KLControlConfig(**params)).update(0.1, 1)
        return
    controller, values = kl_controller(KLControlConfig(**params)), []
    for kl, n_steps in zip(case["inputs"]["current_kl"], case["inputs"]["n_steps"], strict=True):
        values.append(controller.value)
        controller.update(kl, n_steps)
    values.append(controller.value)
    wanted = case["expected"]["values"]
    agree = next((i for i, value in enumerate(wanted) if value < 0), len(wanted))  # there the reference has gone wrong
    assert_close(values[:agree], wanted[:agree])
    assert min(values) > 0


def test_one_step_divides_the_coefficient_by_ten_at_most():
    controller = AdaptiveKL(0.1, target=0.1, horizon=100)
    controller.update(0.0, n_steps=10_000)
    assert controller.value == pytest.approx(0.01)
    controller.update(5.0, n_steps=500)
    assert controller.value == pytest.approx(0.02)  # it did not stick at 0


def test_the_adaptive_coefficient_survives_a_checkpoint():
    controller = AdaptiveKL(0.1, target=0.1, horizon=100)
    controller.update(0.05, n_steps=64)
    state = json.loads(json.dumps(controller.state_dict()))  # checkpoints hold it as JSON
    resumed = AdaptiveKL(0.1, target=0.1, horizon=100)
    resumed.load_state_dict(state)
    assert resumed.value == controller.value != 0.1


def test_switching_the_controller_on_resume_starts_from_the_configuration():
    adaptive, fixed = AdaptiveKL(0.3, target=0.1, horizon=100), FixedKL(0.2)
    adaptive.load_state_dict(fixed.state_dict())
    fixed.load_state_dict(AdaptiveKL(0.7, target=0.1, horizon=100).state_dict())
    assert (adaptive.value, fixed.value) == (0.3, 0.2)


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf")])
def test_a_broken_coefficient_in_a_checkpoint_is_refused(value):
    with pytest.raises(CheckpointError, match=f"coefficient is {value}, not a number of at least 0"):
        AdaptiveKL(0.1, target=0.1, horizon=100).load_state_dict({"kl_coef": value})
