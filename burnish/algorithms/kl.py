"""The distance to the reference policy: how it is estimated, how it enters the reward, and what sets its weight.

With d = log π - log π_ref at the sampled token (Schulman, "Approximating KL divergence", 2020):

    kl, k1           d                   unbiased, noisy, can be negative
    abs              |d|
    mse, k2          d² / 2              low variance; its gradient is that of the KL divergence
    low_var_kl, k3   e^-d + d - 1        unbiased, never negative; -d clamped to ±20, the result to ±10

A `+` after any kind (`k3+`) keeps its value and takes k2's gradient, which is the unbiased one in a loss.

How we differ: the adaptive controller's coefficient cannot become negative or stick at 0, see `KLController`.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from burnish.algorithms.masked import masked_mean, zero_outside
from burnish.config.actor import KL_KINDS
from burnish.config.nearest import nearest
from burnish.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from burnish.config.algorithm import KLControlConfig


def kl_penalty(log_prob: torch.Tensor, ref_log_prob: torch.Tensor, kind: str) -> torch.Tensor:
    """The estimate at each token, in the shape of the log-probs."""
    d = log_prob - ref_log_prob
    k2 = d**2 / 2
    if kind.endswith("+"):
        return kl_penalty(log_prob, ref_log_prob, kind.removesuffix("+")).detach() + (k2 - k2.detach())
    if kind in ("kl", "k1"):
        return d
    if kind == "abs":
        return d.abs()
    if kind in ("mse", "k2"):
        return k2
    if kind in ("low_var_kl", "k3"):
        negative = (-d).clamp(-20, 20)
        return (negative.expm1() - negative).clamp(-10, 10)  # exp - 1 loses all digits of a small d
    if kind == "full":
        raise ConfigError("the KL kind 'full' needs every token's whole vocabulary; low_var_kl estimates it from one")
    hint = f"did you mean {near!r}? " if (near := nearest(kind, KL_KINDS)) else ""
    raise ConfigError(f"the KL kind {kind!r} is unknown: {hint}There is {', '.join(KL_KINDS)}, each also with a +")


@dataclass
class KLController:
    """Sets the weight of the KL penalty in the reward. Its state is part of the checkpoint.

    Without a target the coefficient is constant. With one it steers the KL towards it (Ziegler et al. 2019,
    arXiv:1909.08593):

        value ← value · max(1 + clip(kl / target - 1, ±0.2) · n_steps / horizon, MIN_FACTOR)

    The paper has no lower bound, and with n_steps above 5 · horizon one step below the target makes the coefficient
    negative: the penalty becomes a reward for leaving the reference. Here one step divides it by ten at most.
    """

    value: float
    target: float | None = None
    horizon: float = 1.0

    MIN_FACTOR = 0.1

    def update(self, current_kl: float, n_steps: int) -> None:
        """One step after `n_steps` sequences whose mean KL was `current_kl`."""
        if self.target is not None:
            error = min(max(current_kl / self.target - 1, -0.2), 0.2)
            self.value *= max(1 + error * n_steps / self.horizon, self.MIN_FACTOR)

    def state_dict(self) -> dict[str, float]:
        """Empty for a constant one: a resumed run takes the coefficient from its configuration."""
        return {} if self.target is None else {"kl_coef": self.value}

    def load_state_dict(self, state: dict[str, float]) -> None:
        value = state.get("kl_coef", self.value)  # a checkpoint of a fixed run has none: start from the configured one
        if self.target is None:
            return
        if not (math.isfinite(value) and value >= 0):
            raise CheckpointError(f"the checkpoint's adaptive KL coefficient is {value}, not a number of at least 0")
        self.value = float(value)


def kl_controller(config: "KLControlConfig") -> KLController:
    """The controller that `algorithm.kl_ctrl` describes; its numbers are checked where keys are read."""
    if config.type == "fixed":
        return KLController(config.kl_coef)
    if config.type == "adaptive":
        return KLController(config.kl_coef, config.target_kl, config.horizon)
    raise ConfigError(f"algorithm.kl_ctrl.type={config.type} is unknown: there is fixed and adaptive")


def apply_kl_penalty(
    token_level_scores: torch.Tensor,
    old_log_probs: torch.Tensor,
    ref_log_prob: torch.Tensor,
    response_mask: torch.Tensor,
    kind: str,
    controller: KLController,
) -> tuple[torch.Tensor, dict[str, float]]:
    """token_level_rewards = scores - coefficient · kl on policy tokens, all (B, R); then one step of the controller.

    The KL that is reported and steered by is the mean over sequences of their mean over tokens.
    """
    mask, coefficient = response_mask.bool(), controller.value
    kl = kl_penalty(zero_outside(old_log_probs, mask), zero_outside(ref_log_prob, mask), kind)
    rewards = zero_outside(token_level_scores - coefficient * kl, mask)

    current = masked_mean(masked_mean(kl, mask, dim=-1), mask.any(-1)).item()
    controller.update(current, n_steps=int(mask.any(-1).sum()))
    return rewards, {"actor/reward_kl_penalty": current, "actor/reward_kl_penalty_coeff": coefficient}
