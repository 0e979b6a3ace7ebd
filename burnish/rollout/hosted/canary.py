"""How a program is proven to compute what a module does: the log-probs of a fixed sequence, up to rounding.

Whoever has the module computes them (`workers/replica.py` by the actor, `proof_by` by a module that nobody trains) and
hands a `Proof` to the engine before the weights. In bfloat16 they differ by rounding alone, most on a sequence that
means nothing to the model: by 0.20 with Qwen2.5-Coder-1.5B, where tokens are 3.2 apart (their standard deviation), by
0.084 with SmolLM2-135M, where they are 4.7 apart.
"""

import torch
from torch import Tensor, nn

from burnish.errors import RolloutError
from burnish.rollout.base import POLICY_IS_BROKEN
from burnish.rollout.hosted.weights import Proof

TOKENS = 16
# Mean difference of log-probs that is rounding: this, or this share of their standard deviation if that is more.
ROUNDING = {torch.float32: (1e-3, 1e-4), torch.bfloat16: (0.08, 0.25), torch.float16: (0.03, 0.05)}


def rounding(log_probs: Tensor, *dtypes: torch.dtype) -> float:
    """By how much those of a program may differ from these, on average, where they are computed in these types."""
    spread = float(log_probs.std(correction=0))
    return max(max(least, share * spread) for least, share in (ROUNDING[dtype] for dtype in dtypes))


def proof(version: int, token_ids: list[int], log_probs: Tensor, *dtypes: torch.dtype) -> Proof:
    """Of log-probs that whoever trains the weights has computed. RolloutError where they are no numbers."""
    if not bool(log_probs.isfinite().all()):
        raise RolloutError(POLICY_IS_BROKEN)
    return Proof(version, token_ids, log_probs.tolist(), rounding(log_probs, *dtypes))


def length(context: int | None) -> int:
    """Of the sequence: after it there is room for one more token in the context."""
    return min(TOKENS, (context or TOKENS + 1) - 1)


def sequence(vocabulary: int, count: int) -> list[int]:
    """Token ids from all parts of the vocabulary."""
    return [(i * 7919) % vocabulary for i in range(1, count + 1)]


@torch.no_grad()
def proof_by(module: nn.Module, version: int, context: int, dtype: torch.dtype) -> Proof:
    """By a module with its weights as they are, for a program that computes in `dtype`."""
    parameter = next(module.parameters())
    vocabulary = int(module.get_input_embeddings().num_embeddings)  # type: ignore[operator]
    ids = torch.tensor(sequence(vocabulary, length(context)), device=parameter.device)  # (n,)
    logits = module(input_ids=ids[None], use_cache=False).logits[0, :-1]  # (n - 1, V)
    log_probs = logits.float().log_softmax(-1).gather(-1, ids[1:, None])[:, 0]
    return proof(version, ids.tolist(), log_probs, parameter.dtype, dtype)
