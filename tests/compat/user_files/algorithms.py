"""An estimator and losses as verl's users write them: GRPO by a loop, PPO's loss in the older and the newer form."""

from collections import defaultdict

import torch
import verl.utils.torch_functional as verl_F
from verl.trainer.ppo.core_algos import agg_loss, register_adv_est, register_policy_loss


@register_adv_est("loop_grpo")
def loop_grpo(token_level_rewards, response_mask, index, epsilon=1e-6, config=None, **kwargs):
    scores = token_level_rewards.sum(dim=-1)
    groups = defaultdict(list)
    with torch.no_grad():
        for row, prompt in enumerate(index):
            groups[prompt].append(scores[row])
        normalised = scores.clone()
        for row, prompt in enumerate(index):
            group = torch.stack(groups[prompt])
            if len(group) > 1:
                normalised[row] = scores[row] - group.mean()
            if len(group) > 1 and config.get("norm_adv_by_std_in_grpo", True):
                normalised[row] = normalised[row] / (group.std() + epsilon)
        advantages = normalised.unsqueeze(-1) * response_mask
    return advantages, advantages


def clipped(old_log_prob, log_prob, advantages, response_mask, config):
    log_ratio = torch.clamp(log_prob - old_log_prob, -20, 20)
    ratio = torch.exp(log_ratio)
    low = config.clip_ratio_low if config.clip_ratio_low is not None else config.clip_ratio
    high = config["clip_ratio_high"] if config["clip_ratio_high"] is not None else config["clip_ratio"]
    first = -advantages * ratio
    second = -advantages * torch.clamp(ratio, 1 - low, 1 + high)
    above = torch.maximum(first, second)
    third = -advantages * config.get("clip_ratio_c", 3.0)
    losses = torch.where(advantages < 0, torch.min(third, above), above)
    clipfrac = verl_F.masked_mean(torch.gt(second, first).float(), response_mask)
    lower = verl_F.masked_mean(torch.gt(above, third) * (advantages < 0).float(), response_mask)
    return losses, clipfrac, verl_F.masked_mean(-log_ratio, response_mask), lower


@register_policy_loss("older_ppo")
def older_ppo(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode="token-mean", config=None):
    losses, clipfrac, kl, lower = clipped(old_log_prob, log_prob, advantages, response_mask, config)
    loss = agg_loss(loss_mat=losses, loss_mask=response_mask, loss_agg_mode=loss_agg_mode)
    return loss, clipfrac, kl, lower


@register_policy_loss("newer_ppo")
def newer_ppo(
    old_log_prob,
    log_prob,
    advantages,
    response_mask,
    loss_agg_mode="token-mean",
    config=None,
    rollout_is_weights=None,
):
    losses, clipfrac, kl, lower = clipped(old_log_prob, log_prob, advantages, response_mask, config)
    if rollout_is_weights is not None:
        losses = losses * rollout_is_weights
    loss = agg_loss(losses, response_mask, loss_agg_mode, **config.global_batch_info)
    metrics = {
        "actor/pg_clipfrac": clipfrac.detach().item(),
        "actor/ppo_kl": kl.detach().item(),
        "actor/pg_clipfrac_lower": lower.detach().item(),
    }
    return loss, metrics
