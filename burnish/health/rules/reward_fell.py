"""The reward has fallen from a peak, by more than its noise."""

import math

from burnish.health.history import History, mean, noise
from burnish.health.rule import BROKEN, WARNING, Finding, Rule

SCORE = "critic/score/mean"
WINDOW = 5  # points that are averaged


def check(history: History) -> Finding | None:
    points = history.points(SCORE)
    if len(points) < 3 * WINDOW:
        return None
    values = [value for _, value in points]
    smooth = [mean(values[i - WINDOW : i]) for i in range(WINDOW, len(values) + 1)]
    peak = max(range(len(smooth)), key=smooth.__getitem__)
    first, top, now = smooth[0], smooth[peak], smooth[-1]
    fall, unsure = top - now, 4 * noise(values) * math.sqrt(2 / WINDOW)
    if fall <= unsure or fall < 0.25 * max(abs(top), top - min(smooth)) or len(smooth) - 1 - peak < WINDOW:
        return None
    step = points[peak + WINDOW - 1][0]
    start = f"global_step_{history.best}" if history.best else f"a checkpoint before step {step}"
    lr = history.key("actor_rollout_ref.actor.optim.lr", 0.0)
    return Finding(
        BROKEN if now <= first + 0.2 * max(top - first, 0.0) else WARNING,
        f"the mean reward fell from {top:.3g} (up to step {step}) to {now:.3g}",
        f"start again from {start} (trainer.resume_mode=resume_path) with a lower learning rate "
        f"(actor_rollout_ref.actor.optim.lr from {lr:g} to {lr / 3:.2g}) or a KL term "
        "(actor_rollout_ref.actor.use_kl_loss=True)",
    )


RULES = [
    Rule(
        "reward_fell",
        "The reward rose, then fell",
        "Updates were too large, or the policy found something that the reward function pays only for a while.",
        (SCORE,),
        check,
    )
]
