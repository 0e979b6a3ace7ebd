"""The Bradley–Terry model of preferences: the better of two answers wins with probability sigmoid(r - r').

`bradley_terry` is the negative log-likelihood of what was preferred, the loss of `burnish rm`; with a margin m the
reward of the preferred answer has to be higher by m for the same loss (Llama 2, arXiv 2307.09288, section 3.2.2).
Rewards are fixed up to a constant, since only differences count: nothing here pulls them to 0.
"""

import torch.nn.functional as F
from torch import Tensor


def bradley_terry(chosen: Tensor, rejected: Tensor, margin: Tensor) -> Tensor:  # (B,) each
    """-log sigmoid(r_chosen - r_rejected - margin) of each pair."""
    return -F.logsigmoid(chosen - rejected - margin)


def agreement(chosen: Tensor, rejected: Tensor) -> Tensor:  # (B,)
    """1 where the preferred answer has the higher reward, 0 where it has the lower, 0.5 for a tie."""
    return (chosen > rejected).float() + 0.5 * (chosen == rejected).float()
