"""GRPO for pass@k: only the best sample of a prompt counts, by what it adds to the best of the others.

    A_i = max_g - max_{g without i},   on every policy token of sample i

That is the distance from the best to the second best for the best sample, and 0 for every other. It is divided by
(std_g + ε) unless `algorithm.norm_adv_by_std_in_grpo=False`. Returns are the advantages.

Paper: Optimizing Language Models for Inference Time Objectives using Reinforcement Learning (Tang et al. 2025,
arXiv:2503.19595), its leave-one-out baseline for the best of k, where k is the size of the group.

How we differ:
- Division by the group's spread is GRPO's, not the paper's.
- Samples that share the best score get 0: without any one of them, the group does as well.
- A group of one gets 0, because there is nothing to compare it with; the usual implementation stops the run.
"""

import math

import torch

from burnish.algorithms.advantages.inputs import AdvantageInputs


def grpo_passk(inputs: AdvantageInputs, epsilon: float = 1e-6) -> tuple[torch.Tensor, torch.Tensor]:
    scores, groups = inputs.scores, inputs.groups
    best = groups.max(scores)  # (B,)
    is_best = scores == best
    second = groups.max(scores.masked_fill(is_best, -math.inf))  # where there is one best
    leads = is_best & (groups.sum(is_best) == 1) & (groups.size > 1)
    advantages = torch.where(leads, best - second, 0.0)
    if inputs.config.norm_adv_by_std_in_grpo:
        advantages = advantages / (groups.std(scores) + epsilon)
    on_tokens = inputs.on_tokens(advantages)  # (B, R)
    return on_tokens, on_tokens
