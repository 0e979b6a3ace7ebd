"""The critic explains nothing of the returns."""

from burnish.health.history import History, mean
from burnish.health.rule import WARNING, Finding, Rule

EXPLAINED, LOSS = "critic/vf_explained_var", "critic/vf_loss"
SCORE, HIGH = "critic/score/mean", "critic/score/max"
STEPS, WARM_UP, SOLVED = 10, 20, 0.8


def check(history: History) -> Finding | None:
    values, scores = history.recent(EXPLAINED, STEPS), history.recent(SCORE, STEPS)
    if history.step < history.key("trainer.critic_warmup", 0) + WARM_UP or not values or not scores:
        return None
    explained, best = sorted(values)[STEPS // 2], history.highest(HIGH)
    if explained > 0 or best is None or mean(scores) >= SOLVED * best:
        return None  # where nearly all is right, returns differ too little to be explained
    losses = history.recent(LOSS, STEPS)
    lr = history.key("critic.optim.lr", 0.0)
    return Finding(
        WARNING,
        f"the explained variance of the critic is {explained:.2f} over the last {STEPS} steps (value loss "
        f"{mean(losses):.3g}): it predicts returns no better than a constant",
        f"another learning rate (critic.optim.lr is {lr:g}; 1e-5 is usual for large models), steps for the critic "
        "alone (trainer.critic_warmup), or an estimator without a critic (algorithm.adv_estimator=grpo)",
    )


RULES = [
    Rule(
        "critic_explains_nothing",
        "The critic explains nothing",
        "Advantages are then returns minus noise; PPO learns slower than without a critic.",
        (EXPLAINED, LOSS, SCORE, HIGH),
        check,
    )
]
