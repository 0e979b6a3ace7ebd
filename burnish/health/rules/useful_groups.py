"""Few groups have responses of different reward, so most of what is generated teaches nothing."""

from burnish.health.history import History, mean
from burnish.health.rule import WARNING, Finding, Rule

USEFUL, SCORE, HIGH = "groups/useful_ratio", "critic/score/mean", "critic/score/max"
STEPS, FEW, SOLVED = 10, 0.1, 0.9


def check(history: History) -> Finding | None:
    useful, scores = history.recent(USEFUL, STEPS), history.recent(SCORE, STEPS)
    if not useful or not scores or not 0 < mean(useful) < FEW:  # 0 is the business of equal_rewards
        return None
    best = history.highest(HIGH)
    if best is None or mean(scores) >= SOLVED * best:
        return None
    n = history.key("actor_rollout_ref.rollout.n", 1)
    return Finding(
        WARNING,
        f"in the last {STEPS} steps {mean(useful):.0%} of the groups had different rewards (mean reward "
        f"{mean(scores):.3g})",
        f"more samples of each prompt (actor_rollout_ref.rollout.n from {n} to {2 * n}), only groups that differ "
        "(algorithm.filter_groups.enable=True), or prompts that are sometimes solved",
    )


RULES = [
    Rule(
        "useful_groups",
        "Almost no group has responses of different reward",
        "With group baselines (GRPO, RLOO, …) a group whose rewards are equal has no advantage: its generation is "
        "wasted, and the few others make a noisy gradient.",
        (USEFUL, SCORE, HIGH),
        check,
    )
]
