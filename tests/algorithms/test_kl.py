"""KL estimates, controllers, and the KL penalty in the reward."""

import json
import operator
from itertools import accumulate, pairwise

import pytest
import torch

from burnish.algorithms.kl import KLController, apply_kl_penalty, kl_controller, kl_penalty
from burnish.config.actor import KL_KINDS
from burnish.config.algorithm import KLControlConfig
from burnish.errors import CheckpointError, ConfigError
from tests.algorithms.helpers import assert_close
from tests.recorded import each, golden

PENALTIES = golden("kl_penalty", function="kl_penalty")
REWARDS = golden("kl_penalty", function="compute_rewards")
CONTROLLERS = golden("kl_controllers")
assert (len(PENALTIES), len(REWARDS), len(golden("kl_penalty")), len(CONTROLLERS)) == (48, 4, 52, 20)
EVERY_KIND = pytest.mark.parametrize("kind", [*KL_KINDS, *(kind + "+" for kind in KL_KINDS)])


@each(PENALTIES)
def test_penalty_golden(case):
    log_prob = torch.tensor(case["inputs"]["logprob"], requires_grad=True)
    reference, kind = torch.tensor(case["inputs"]["ref_logprob"]), case["params"]["kind"]
    if "raises" in case["expected"]:
        with pytest.raises(ConfigError, match=f"'{kind}'"):
            kl_penalty(log_prob, reference, kind)
        with pytest.raises(ConfigError, match="'full' needs every token's whole vocabulary; low_var_kl"):
            kl_penalty(log_prob, reference, "full")
        with pytest.raises(ConfigError, match=r"'low_var_k' is unknown: did you mean 'low_var_kl'\?"):
            kl_penalty(log_prob, reference, "low_var_k")
        return
    kl = kl_penalty(log_prob, reference, kind)
    kl.sum().backward()
    assert_close(kl.detach(), case["expected"]["kl"])
    assert_close(log_prob.grad, case["expected"]["grad_logprob"])


@pytest.mark.parametrize("scale", [1e-2, 1e-3, 1e-4, 1e-6])
def test_k3_keeps_its_digits_where_the_policies_are_close(scale):
    d = scale * torch.randn(100_000, generator=torch.Generator().manual_seed(0))
    k3 = kl_penalty(d, torch.zeros_like(d), "k3")
    assert (k3 >= 0).all()
    exact = d.double().neg().expm1() + d.double()
    assert k3.double().mean().item() == pytest.approx(exact.mean().item(), rel=1e-2)


@EVERY_KIND
def test_far_from_the_reference_estimate_and_gradient_are_finite(kind):
    log_prob = torch.tensor([200.0, -200.0], requires_grad=True)
    kl = kl_penalty(log_prob, torch.zeros(2), kind)
    kl.sum().backward()
    assert kl.isfinite().all() and log_prob.grad.isfinite().all()
    if kind in ("k3", "low_var_kl"):
        assert kl.tolist() == [10, 10] and not log_prob.grad.any()


@each(REWARDS)
def test_reward_golden(case):
    scores, old, reference = (torch.tensor(values) for values in case["inputs"].values())
    rewards, _ = apply_kl_penalty(
        scores, old, reference, torch.ones_like(scores), "kl", KLController(case["params"]["kl_ratio"])
    )
    assert_close(rewards, case["expected"]["token_level_rewards"])


@EVERY_KIND
def test_reward_does_not_read_observation_tokens(kind, junk):
    random = torch.Generator().manual_seed(0)
    scores, old, reference = torch.randn(3, 4, 6, generator=random)
    mask = torch.rand(4, 6, generator=random) < 0.6
    clean, clean_metrics = apply_kl_penalty(scores, old, reference, mask, kind, KLController(0.1))
    dirty = (tensor.masked_fill(~mask, junk) for tensor in (scores, old, reference))
    rewards, metrics = apply_kl_penalty(*dirty, mask, kind, KLController(0.1))
    assert torch.equal(rewards, clean) and metrics == clean_metrics
    assert not rewards[~mask].any()


def test_reward_metrics_and_the_step_of_the_controller():
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 0, 0]])  # the last row has no policy tokens: it is no sample
    old, reference = torch.tensor([[0.0, -1.0, 9.0], [-2.0, 9.0, 9.0], [9.0, 9.0, 9.0]]), torch.full((3, 3), -3.0)
    controller = KLController(0.5, target=1.0, horizon=4)
    rewards, metrics = apply_kl_penalty(torch.zeros(3, 3), old, reference, mask, "kl", controller)
    assert rewards.tolist() == [[-1.5, -1.0, 0.0], [-0.5, 0.0, 0.0], [0.0, 0.0, 0.0]]
    assert metrics == {"actor/reward_kl_penalty": 1.75, "actor/reward_kl_penalty_coeff": 0.5}  # (2.5 + 1) / 2
    assert controller.value == pytest.approx(0.5 * (1 + 0.2 * 2 / 4))  # too far away: the next step costs more
    controller = KLController(0.1, target=0.1, horizon=100)
    controller.update(0.0, n_steps=10_000)
    assert controller.value == pytest.approx(0.01), "one step divides it by ten at most"
    controller.update(5.0, n_steps=500)
    assert controller.value == pytest.approx(0.02)  # it did not stick at 0


@each(CONTROLLERS)
def test_controller_golden(case):
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
    factors = [max(after / before, KLController.MIN_FACTOR) for before, after in pairwise(wanted)]  # theirs go below 0
    assert_close([after / before for before, after in pairwise(values)], factors)
    assert_close(values, [*accumulate(factors, operator.mul, initial=wanted[0])])
    assert min(values) > 0


def test_the_adaptive_coefficient_survives_a_checkpoint():
    """Where fixed and adaptive are switched on resume, it starts from the configuration."""

    def adaptive(value=0.1):
        return KLController(value, target=0.1, horizon=100)

    controller, resumed, fixed = adaptive(), adaptive(), KLController(0.2)
    controller.update(0.05, n_steps=64)
    resumed.load_state_dict(json.loads(json.dumps(controller.state_dict())))  # checkpoints hold it as JSON
    assert resumed.value == controller.value != 0.1
    switched = adaptive(0.3)
    switched.load_state_dict(fixed.state_dict())
    fixed.load_state_dict(adaptive(0.7).state_dict())
    assert (switched.value, fixed.value) == (0.3, 0.2)
    for value in (-0.1, float("nan"), float("inf")):
        with pytest.raises(CheckpointError, match=f"coefficient is {value}, not a number of at least 0"):
            adaptive().load_state_dict({"kl_coef": value})
