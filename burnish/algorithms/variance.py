"""How noisy the policy gradient is, estimated from probabilities alone: no second backward pass.

The gradient of log π(y_t) with respect to the logits is onehot(y_t) - π, so its squared norm needs no gradient:

    w_t = 1 - 2 π(y_t) + Σ_v π_v²        over the vocabulary v; `sum_pi_squared` is that sum

`logit_gradient_power` is w_t; the optimal token baselines weigh samples by it. `variance_proxy_metrics` reports, over
the N samples that have policy tokens, with Ā_i and ρ̄_i the means of a sample's advantages and rollout weights:

    variance_proxy/proxy1_signal_strength   g², g the norm of the update's gradient
    variance_proxy/proxy2_total_power       mean_i ρ̄_i² Ā_i² Σ_t w_t
    variance_proxy/proxy3_pure_noise        (proxy2 - proxy1) / (N - 1), the variance of the mean gradient
    variance_proxy/expected_a_squared       mean_i Ā_i²
    variance_proxy/expected_w               mean_i Σ_t ρ_t² w_t
Paper: The Optimal Token Baseline (Li et al. 2026, arXiv:2602.07078).

How we differ: samples without a policy token are not counted; w is kept from falling below 0, where float32 puts it
when the policy is certain. As usual, proxy1 and proxy3 are 0 where no gradient norm is known, and proxy3 also where the
difference is negative: power is measured at the logits and the norm at the parameters. Read them as curves.
"""

from collections.abc import Mapping

import torch

from burnish.algorithms.masked import masked_mean, zero_outside


def logit_gradient_power(
    log_probs: torch.Tensor, sum_pi_squared: torch.Tensor, mask: torch.Tensor, weights: torch.Tensor | None = None
) -> torch.Tensor:
    """(B, R) float64: w_t, times the square of the weights where there are any; 0 outside the mask."""
    chosen = zero_outside(log_probs, mask).double().exp()
    power = zero_outside(1 - 2 * chosen + sum_pi_squared, mask).clamp(min=0)
    return power if weights is None else power * zero_outside(weights, mask) ** 2


def variance_proxy_metrics(batch: Mapping[str, torch.Tensor], gradient_norm: float | None) -> dict[str, float]:
    """The proxies of one batch; empty where it has no policy token.

    batch: old_log_probs, sum_pi_squared, advantages, response_mask and, where the rollout is corrected for,
    rollout_is_weights, all (B, R).
    """
    present = batch["response_mask"].bool().any(-1)  # (B,) an aborted response has no gradient
    samples = int(present.sum())
    if samples == 0:
        return {}
    columns = {name: batch[name][present] for name in ("old_log_probs", "sum_pi_squared", "advantages")}
    mask = batch["response_mask"][present]
    weights = batch["rollout_is_weights"][present] if "rollout_is_weights" in batch.keys() else None  # noqa: SIM118

    def power(weights: torch.Tensor | None = None) -> torch.Tensor:
        return logit_gradient_power(columns["old_log_probs"], columns["sum_pi_squared"], mask, weights).sum(-1)  # (N,)

    squared = masked_mean(columns["advantages"].double(), mask, dim=-1) ** 2  # (N,)
    factor = 1 if weights is None else masked_mean(weights.double(), mask, dim=-1) ** 2
    signal = 0.0 if gradient_norm is None else gradient_norm**2
    total = float((factor * squared * power()).mean())
    known = gradient_norm is not None and samples > 1
    return {
        "variance_proxy/proxy1_signal_strength": signal,
        "variance_proxy/proxy2_total_power": total,
        "variance_proxy/proxy3_pure_noise": max(0.0, total - signal) / (samples - 1) if known else 0.0,
        "variance_proxy/expected_a_squared": float(squared.mean()),
        "variance_proxy/expected_w": float(power(weights).mean()),
    }
