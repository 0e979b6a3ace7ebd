"""How old what is trained on is, where generation runs ahead of training: `training/off_policy/*`.

The age of a token is the number of steps between the weights that sampled it and those that it trains. Tokens of one
trajectory may have several: it went on while the weights changed.

    age_mean, age_max    over the tokens that are trained
    mixed_ratio          trajectories with tokens of several ages
    tokens_<age>         share of the tokens that have this age
    kl_<age>             mean over those of the k3 estimate of KL(their own weights ‖ the weights they train), where the
                         log-probs of the latter were computed before the step's updates

What is done about it is `algorithm.rollout_correction` (`correction.py`), which goes by the log-probs alone.
"""

import torch

from burnish.protocol import DataProto
from burnish.workers.trajectories import VERSIONS

SECTION = "training/off_policy"


def off_policy_metrics(batch: DataProto, version: int, *, measured: bool = True) -> dict[str, float]:
    """The figures of a batch that trains weights of this version; {} where no token's version was recorded.

    measured   `old_log_probs` are of those weights, not (as with `bypass_mode`) the rollout's own
    """
    if VERSIONS not in batch.batch:
        return {}
    sampled = batch.batch["response_mask"].bool()  # (B, R)
    ages = version - batch.batch[VERSIONS]
    of_tokens = ages[sampled]
    if not len(of_tokens):
        return {}
    gaps = _gaps(batch) if measured else None
    oldest = ages.masked_fill(~sampled, -1).amax(-1)
    newest = ages.masked_fill(~sampled, int(of_tokens.max()) + 1).amin(-1)
    metrics = {
        "age_mean": float(of_tokens.float().mean()),
        "age_max": float(of_tokens.max()),
        "mixed_ratio": float((oldest > newest).sum() / sampled.any(-1).sum()),
    }
    for age in of_tokens.unique().tolist():
        chosen = sampled & (ages == age)
        metrics[f"tokens_{age}"] = float(chosen.sum()) / len(of_tokens)
        if gaps is not None:
            metrics[f"kl_{age}"] = float(gaps[chosen].mean())
    return {f"{SECTION}/{name}": value for name, value in metrics.items()}


def _gaps(batch: DataProto) -> torch.Tensor | None:
    """(B, R) k3 at each token: e^x - 1 - x of x, the log of the ratio of the trained weights to the token's own."""
    columns = batch.batch
    if "old_log_probs" not in columns or "rollout_log_probs" not in columns:
        return None
    log_ratio = (columns["old_log_probs"] - columns["rollout_log_probs"]).clamp(-20, 20)
    return log_ratio.exp() - 1 - log_ratio
