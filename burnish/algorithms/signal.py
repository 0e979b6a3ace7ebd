"""What a batch shows of its own use: groups whose scores differ, entropy, repetition, and whether length pays.

Consumes the batch's tensors and the group of each row; returns plain numbers for metrics.jsonl, which the rules of
`burnish/health` watch. A number is left out where there is nothing to count.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from burnish.algorithms.masked import masked_sum

NGRAM = 4  # tokens; a response repeats itself where most of its n-grams occurred in it before
LOOKED_AT = 64  # responses, spread over the batch: each costs some hundredths of a millisecond
PRIME = np.uint64(1_000_000_007)  # above all token ids
SHORT = 16  # tokens; a shorter response is not looked at


def signal_metrics(batch: Mapping[str, torch.Tensor], uid: Sequence[int] | np.ndarray) -> dict[str, float]:
    """batch: token_level_scores, response_mask, responses (B, R), rollout_log_probs (B, R) if the engine has them;
    uid: (B,), equal within a group."""
    mask = batch["response_mask"].bool()
    length = mask.sum(-1)  # (B,)
    present = length > 0
    scores = masked_sum(batch["token_level_scores"], mask, dim=-1).double()
    metrics = {}
    if groups := spread_within_groups(scores[present].numpy(force=True), np.asarray(uid)[present.numpy(force=True)]):
        metrics["groups/useful_ratio"], metrics["groups/score_std"] = groups
    if "rollout_log_probs" in batch.keys() and bool(present.any()):  # noqa: SIM118  (a TensorDict answers `in` only for its keys)
        metrics["response/entropy"] = -float(batch["rollout_log_probs"][mask].double().mean())
    both = torch.stack([scores, length.double()])[:, present]
    if both.shape[1] > 2 and bool((both.amax(1) > both.amin(1)).all()):
        metrics["response_length/score_correlation"] = float(torch.corrcoef(both)[0, 1])
    rows = torch.nonzero(length >= SHORT)[:, 0].tolist()
    if rows:
        rows = rows[:: -(-len(rows) // LOOKED_AT)]
        repeated = [_repeats(batch["responses"][i][mask[i]].numpy(force=True)) for i in rows]
        metrics["response/repeated_ratio"] = sum(repeated) / len(repeated)
    return metrics


def spread_within_groups(scores: np.ndarray, uid: np.ndarray) -> tuple[float, float] | None:
    """The share of groups whose scores differ, and the mean standard deviation within a group; None where no group has
    several. scores, uid: (B,)"""
    _, row_group, sizes = np.unique(uid, return_inverse=True, return_counts=True)
    several = sizes > 1
    if not several.any():
        return None
    mean = np.bincount(row_group, scores) / sizes
    spread = np.sqrt(np.bincount(row_group, (scores - mean[row_group]) ** 2) / sizes)[several]
    return float((spread > 1e-6).mean()), float(spread.mean())


def _repeats(ids: np.ndarray) -> bool:
    """Whether most n-grams of a response occurred in it before. ids: (n,)"""
    count = len(ids) - NGRAM + 1
    codes = np.zeros(count, dtype=np.uint64)  # a number for each n-gram: sorting those is five times as fast
    for i in range(NGRAM):
        codes = codes * PRIME + ids[i : i + count].astype(np.uint64)  # modulo 2^64
    return 2 * len(np.unique(codes)) < count
