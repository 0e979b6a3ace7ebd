"""The optimal token baseline for tool-integrated reasoning: the t-th token a sample wrote against the others' t-th.

    A, G, W and B as in `optimal_token_baseline`; position t counts the policy's tokens, not columns

Tool output stands between the turns of a response, and is longer in one sample than in another. By column, the answer
of one sample would be compared with the first query of another, or with nothing where the others have tool output.
Without tool output the two estimators are the same.

Paper: The Optimal Token Baseline: Variance Reduction for Long-Horizon LLM-RL (Li et al. 2026, arXiv:2602.07078).

How we differ: as in `optimal_token_baseline`, except that counting tokens and looking at each position come to the
same here.
"""

import torch

from burnish.algorithms.advantages.inputs import AdvantageInputs
from burnish.algorithms.advantages.optimal_token_baseline import against_group


def tir_optimal_token_baseline(
    inputs: AdvantageInputs, handle_zero_tail: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    written = inputs.response_mask.bool().cumsum(-1) - 1  # (B, R) which of the sample's own tokens this is
    return against_group(inputs, written, handle_zero_tail)
