"""The policy no longer tries anything, or only noise."""

from burnish.health.history import History, mean
from burnish.health.rule import BROKEN, WARNING, Finding, Rule

ENTROPY, SCORE, HIGH = "response/entropy", "critic/score/mean", "critic/score/max"
STEPS = 5
LR = "actor_rollout_ref.actor.optim.lr"


def collapse(history: History) -> Finding | None:
    now, course, scores = history.recent(ENTROPY, STEPS), history.points(ENTROPY), history.recent(SCORE, STEPS)
    best = history.highest(HIGH)
    if not now or not scores or best is None or len(course) <= STEPS:
        return None
    first, value = mean([entropy for _, entropy in course[:STEPS]]), mean(now)
    if value > 0.05 * first or value > 0.1 or mean(scores) >= 0.8 * best > 0:
        return None
    return Finding(
        BROKEN if value < 0.01 * first or value < 1e-3 else WARNING,
        f"entropy fell from {first:.3g} to {value:.3g} with a mean reward of {mean(scores):.3g} (best response: "
        f"{best:.3g})",
        f"from an earlier checkpoint: a lower learning rate ({LR} from {history.key(LR, 0.0):g} to "
        f"{history.key(LR, 0.0) / 3:.2g}), a higher upper clip bound (actor_rollout_ref.actor.clip_ratio_high=0.28), "
        "or an entropy bonus (actor_rollout_ref.actor.entropy_coeff=0.001)",
    )


def explosion(history: History) -> Finding | None:
    now, course = history.recent(ENTROPY, STEPS), history.points(ENTROPY)
    if not now or len(course) <= STEPS:
        return None
    first, value = mean([entropy for _, entropy in course[:2]]), mean(now)
    if value < 2.0 or value < 3 * first:
        return None
    return Finding(
        BROKEN if value > 4.0 else WARNING,
        f"entropy rose from {first:.3g} to {value:.3g} nats per token: responses turn into noise",
        f"from an earlier checkpoint: a lower learning rate ({LR} from {history.key(LR, 0.0):g} to "
        f"{history.key(LR, 0.0) / 10:.2g}), a smaller entropy bonus, or a KL term",
    )


RULES = [
    Rule(
        "entropy_collapse",
        "The entropy goes to 0 while the reward is low",
        "All responses to a prompt become the same, so no better one is ever found.",
        (ENTROPY, SCORE, HIGH),
        collapse,
    ),
    Rule(
        "entropy_explosion",
        "The entropy rises, and responses turn into noise",
        "The policy has lost what the model knew.",
        (ENTROPY,),
        explosion,
    ),
]
