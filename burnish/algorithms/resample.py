"""PF-PPO: train on samples drawn by their score, so that those whose reward is reliable count more.

Reward models are least reliable for responses of middling score. From a batch of B samples, B rows are drawn with
replacement, row i with a probability in proportion to its weight (`algorithm.pf_ppo.reweight_method`):

    pow          |score_i| ^ weight_pow
    max_min      1 for the best and the worst score of the batch, 0 for all others
    max_random   1 for the best score, 0.4 for all others

Paper: Policy Filtration for RLHF to Mitigate Noise in Reward Models (Zhang et al. 2024, arXiv:2409.06957).

How we differ: the paper ranks the samples of each prompt, here the weight uses the score itself and over the batch;
it works with any estimator, because advantages are computed before; where every weight is 0 the batch stays as it is.
"""

from typing import TYPE_CHECKING

import numpy as np

from burnish.errors import ConfigError

if TYPE_CHECKING:
    from burnish.config.algorithm import PFPPOConfig

OTHERS = 0.4  # weight of what is not the best, under max_random


def resample(scores: np.ndarray, config: "PFPPOConfig", random: np.random.Generator) -> np.ndarray:
    """B row numbers, drawn with replacement by the scores (B,); in rising order."""
    scores, method = scores.astype(np.float64), config.reweight_method
    if method == "pow":
        size = np.abs(scores)
        weights = (size / (size.max() or 1.0)) ** config.weight_pow  # shares of the largest, which no power overflows
    elif method == "max_min":
        weights = ((scores == scores.max()) | (scores == scores.min())).astype(np.float64)
    elif method == "max_random":
        weights = np.where(scores == scores.max(), 1.0, OTHERS)
    else:
        raise ConfigError(f"algorithm.pf_ppo.reweight_method={method} is unknown: choose pow, max_min or max_random")
    total = weights.sum()
    if total == 0:
        return np.arange(len(scores))
    return np.sort(random.choice(len(scores), size=len(scores), p=weights / total))
