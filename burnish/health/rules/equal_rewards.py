"""All responses of a step get the same reward: no advantage differs from 0 (with a critic: nothing tells good from
bad)."""

from burnish.health.history import History
from burnish.health.rule import BROKEN, NOTE, WARNING, Finding, Rule

LOW, HIGH = "critic/score/min", "critic/score/max"
LR = "actor_rollout_ref.actor.optim.lr"
FIRST, HOPELESS = 3, 10  # steps in a row
SHOWN = 3  # responses with what the reward function saw and returned


def check(history: History) -> Finding | None:
    steps = 0
    lows, highs = (history.recent(name, history.count(name)) for name in (LOW, HIGH))
    for low, high in zip(reversed(lows), reversed(highs), strict=False):
        if high - low > 1e-9 or high != highs[-1]:
            break
        steps += 1
    best = history.highest(HIGH)
    if steps < FIRST or best is None:
        return None
    value = highs[-1]
    said = f"all responses of the last {steps} steps have the reward {value:g}"
    if value >= best and len(lows) > steps:  # it was not always so: all prompts are solved
        return Finding(NOTE, f"{said}, the highest so far", "harder prompts (data.train_files), or end the run here")
    if value < best and len(lows) > steps:  # rewards differed before
        lr = history.key(LR, 0.0)
        remedy = (
            f"the policy has collapsed: start again with a lower learning rate ({LR} from {lr:g} to {lr / 10:.2g}), or "
            "from a checkpoint before it"
        )
        return Finding(BROKEN, said, remedy, samples=SHOWN)
    remedy = (
        "see what the reward function gets and returns: `burnish data check FILE --reward FILE.py`. If it is right, "
        "the prompts are too hard: easier ones, partial credit, or more samples (actor_rollout_ref.rollout.n)"
    )
    return Finding(BROKEN if steps >= HOPELESS else WARNING, said, remedy, samples=SHOWN)


RULES = [
    Rule(
        "equal_rewards",
        "Every response gets the same reward",
        "Advantages compare rewards. If all are equal there is nothing to learn from, whatever the learning rate.",
        (LOW, HIGH),
        check,
    )
]
