"""GRPO without a loop, and a loss with annotations, as files for verl 0.7 write them."""

from typing import Optional

import torch
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla, register_adv_est, register_policy_loss
from verl.utils import as_torch_index, group_mean_std
from verl.utils.device import get_device_id, get_device_name
from verl.utils.import_utils import deprecated
from verl.workers.config import ActorConfig


@register_adv_est("vectorised_grpo")
def vectorised_grpo(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index,
    epsilon: float = 1e-6,
    config: Optional[AlgoConfig] = None,  # noqa: UP045  as users write it
    **kwargs,
):
    with torch.no_grad():
        scores = token_level_rewards.sum(dim=-1)
        groups = as_torch_index(index, device=scores.device)
        mean, std, _ = group_mean_std(scores, groups, eps=epsilon)
        advantages = (scores - mean[groups]).unsqueeze(-1)
        if config.norm_adv_by_std_in_grpo:
            advantages = advantages / (std[groups].unsqueeze(-1) + epsilon)
        advantages = advantages * response_mask
    return advantages, advantages


@register_policy_loss("annotated_ppo")
@deprecated("verl.trainer.ppo.core_algos.compute_policy_loss_vanilla")
def annotated_ppo(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "token-mean",
    config: Optional[ActorConfig] = None,  # noqa: UP045
    rollout_is_weights: torch.Tensor | None = None,
):
    assert get_device_name() == "cuda" or str(get_device_id()) == log_prob.device.type
    given = (old_log_prob, log_prob, advantages, response_mask)
    return compute_policy_loss_vanilla(*given, loss_agg_mode, config, rollout_is_weights)
