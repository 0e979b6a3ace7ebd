"""Updates that were not applied, and responses that could not be scored."""

from burnish.health.history import History, mean
from burnish.health.rule import BROKEN, WARNING, Finding, Rule

BAD, UNSCORED = ("failures/bad_steps", "train/bad_step"), "failures/reward"
STEPS = 5


def bad_updates(history: History) -> Finding | None:
    points = [(step, count) for name in BAD for step, count in history.points(name) if count]
    if not points:
        return None
    name = f"{history.optimiser}.lr"
    lr = history.key(name, 0.0)
    dtype = "model.dtype" if name == "optim.lr" else "actor_rollout_ref.actor.fsdp_config.model_dtype"
    return Finding(
        BROKEN if len(points) >= STEPS else WARNING,
        f"updates of {len(points)} steps were NaN or infinite and not applied, last at step {points[-1][0]}",
        f"`burnish replay` runs a dumped one again; a lower learning rate ({name} from {lr:g} to {lr / 10:g}), or "
        f"float32 ({dtype}=float32)",
    )


def unscored(history: History) -> Finding | None:
    failed = mean(history.recent(UNSCORED, STEPS))
    rows = history.key("data.train_batch_size", 1) * history.key("actor_rollout_ref.rollout.n", 1)
    if not failed > 0.05 * rows:
        return None
    return Finding(
        BROKEN if failed > 0.5 * rows else WARNING,
        f"{failed / rows:.0%} of the responses of the last {STEPS} steps could not be scored",
        "the first causes are in the log; `burnish data check FILE --reward FILE.py` calls the reward function on rows",
    )


RULES = [
    Rule("bad_updates", "Updates are NaN or infinite", "They are not applied; the weights stay.", BAD, bad_updates),
    Rule("unscored", "Responses cannot be scored", "They are dropped, or count 0.", (UNSCORED,), unscored),
]
