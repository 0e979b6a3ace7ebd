"""The rollout engine and the trained model give different probabilities to the same tokens."""

from burnish.health.history import History, mean
from burnish.health.rule import BROKEN, WARNING, Finding, Rule

GAP, KL = "training/rollout_probs_diff_mean", "rollout_corr/k3_kl"
STEPS = 3


def check(history: History) -> Finding | None:
    gap, kl = mean(history.recent(GAP, STEPS)), mean(history.recent(KL, STEPS))
    if not (gap > 0.05 or kl > 0.05):
        return None
    return Finding(
        BROKEN if kl > 1 else WARNING,
        f"over the last {STEPS} steps probabilities of sampled tokens differ by {gap:.3f} on average between rollout "
        f"and training (KL {kl:.3g})",
        "truncated importance weights (algorithm.rollout_correction.rollout_is=token), less staleness "
        "(trainer.async_rollout.staleness), or rollout in a more exact type (actor_rollout_ref.rollout.dtype)",
    )


RULES = [
    Rule(
        "rollout_gap",
        "Rollout and training disagree",
        "Updates treat tokens as sampled from a policy that did not sample them; large gaps end in collapse.",
        (GAP, KL),
        check,
    )
]
