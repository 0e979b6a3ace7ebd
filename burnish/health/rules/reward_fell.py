"""The reward has fallen from a peak, by more than its noise."""

from burnish.health.history import History, fall
from burnish.health.rule import BROKEN, WARNING, Finding, Rule

SCORE = "critic/score/mean"


def check(history: History) -> Finding | None:
    found = fall(history.points(SCORE))
    if found is None:
        return None
    start = f"global_step_{history.best}" if history.best else f"a checkpoint before step {found.step}"
    lr = history.key("actor_rollout_ref.actor.optim.lr", 0.0)
    return Finding(
        BROKEN if found.is_whole else WARNING,
        f"the mean reward fell from {found.top:.3g} (up to step {found.step}) to {found.now:.3g}",
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
