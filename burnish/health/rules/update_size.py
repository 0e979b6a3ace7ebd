"""Updates that are too large or too small: KL, gradient norm, ratio clipping, and a policy that does not move."""

from burnish.health.history import History, has_moved, mean, trend
from burnish.health.rule import BROKEN, NOTE, WARNING, Finding, Rule

KLS = ("actor/kl_loss", "actor/reward_kl_penalty")
GRAD, GRADS = "actor/grad_norm", ("actor/grad_norm", "train/grad_norm")  # of `burnish ppo`; of all commands
CLIPPED, LR_NOW, MOVED = "actor/pg_clipfrac", "actor/lr", "actor/ppo_kl"
SCORE, ENTROPY, LENGTH, USEFUL = "critic/score/mean", "response/entropy", "response_length/mean", "groups/useful_ratio"
ACTOR, LR = "actor_rollout_ref.actor", "actor_rollout_ref.actor.optim.lr"
STEPS = 5
OF_RESPONSES = ("gspo", "geo_mean")  # their ratio is that of a response, with a range so narrow that most are clipped
STILL = 1e-6  # KL between the policies before and after the updates of a step


def lower(history: History, by: int) -> str:
    name = f"{history.optimiser}.lr"
    lr = history.key(name, 0.0)
    return f"a lower learning rate ({name} from {lr:g} to {lr / by:.2g})"


def kl(history: History) -> Finding | None:
    name = next((name for name in KLS if history.recent(name, STEPS)), None)
    if name is None:
        return None
    value = mean(history.recent(name, STEPS))
    if value < 0.5:
        return None
    return Finding(
        BROKEN if value > 5 else WARNING,
        f"{name} is {value:.3g} per token over the last {STEPS} steps: the policy is far from the reference model",
        f"{lower(history, 10)}, or a larger KL coefficient (actor_rollout_ref.actor.kl_loss_coef or "
        "algorithm.kl_ctrl.kl_coef)",
    )


def gradient(history: History) -> Finding | None:
    name = next((name for name in GRADS if history.count(name)), GRAD)
    key = "actor_rollout_ref.actor.grad_clip" if name == GRAD else "optim.grad_clip"
    values, clip = history.recent(name, 3), history.key(key, 1.0)
    before = sorted(value for _, value in history.points(name)[:-3])
    if not values or len(before) < STEPS:
        return None
    usual, now = before[len(before) // 2], min(values)
    if now > 10 * usual and now > clip:
        said = f"the gradient norm of the last 3 steps is at least {now:.3g}, usually {usual:.3g}"
        return Finding(WARNING, said, f"{lower(history, 3)}; look at the batches of these steps")
    many = history.recent(name, 20)
    if many and min(many) > 5 * clip:
        said = f"the gradient norm was above {min(many):.3g} in the last 20 steps: each was clipped to {clip:g}"
        return Finding(
            NOTE,
            said,
            f"clipping sets the step size: a higher {key} with a lower learning rate makes steps depend on the "
            "gradient again",
        )
    return None


def ratio_clipping(history: History) -> Finding | None:
    value = mean(history.recent(CLIPPED, STEPS))
    if not value > (0.95 if history.key(f"{ACTOR}.policy_loss.loss_mode") in OF_RESPONSES else 0.2):
        return None
    clip = history.key(f"{ACTOR}.clip_ratio", 0.2)
    wider = f", a wider range ({ACTOR}.clip_ratio from {clip:g} to 0.2)" if clip < 0.1 else ""
    return Finding(
        WARNING,
        f"{value:.0%} of the tokens of the last {STEPS} steps were clipped: updates leave the trusted region",
        f"{lower(history, 3)}{wider}, fewer passes over a batch ({ACTOR}.ppo_epochs), or larger mini-batches "
        f"({ACTOR}.ppo_mini_batch_size)",
    )


def still(history: History) -> Finding | None:
    """Several updates of a batch, and the policy after them is the one before. With one there is no ratio."""
    updates = history.key("data.train_batch_size", 1) // history.key(f"{ACTOR}.ppo_mini_batch_size", 1)
    updates *= history.key(f"{ACTOR}.ppo_epochs", 1)
    moved, useful = [abs(value) for value in history.recent(MOVED, 20)], history.recent(USEFUL, 20)
    lr, gradients = history.key(LR, 0.0), history.recent(GRAD, 20)
    if updates < 2 or not moved or mean(moved) > STILL or max(history.recent(CLIPPED, 20), default=0.0) > 0:
        return None
    if mean(useful or [1.0]) < 0.2 or min(gradients, default=0.0) == 0:
        return None  # nothing to learn from
    if mean(history.recent(LR_NOW, 1)) < lr / 2:
        return None  # it is still rising, or has fallen by its schedule
    return Finding(
        WARNING,
        f"in the last 20 steps no token was clipped, and the {updates} updates of a step moved the policy by a KL of "
        f"{mean(moved):.1g}: they have no effect",
        f"a higher learning rate ({LR} from {lr:g} to {10 * lr:g})",
    )


def unmoved(history: History) -> Finding | None:
    """The reward has no trend; nor has anything else that shows a policy that changes."""
    scores = [value for _, value in history.points(SCORE)]
    trained = history.recent(GRAD, 20)
    if len(scores) < 30 or not trained or max(trained) == 0:
        return None
    if any(has_moved([value for _, value in history.points(name)]) for name in (SCORE, ENTROPY, LENGTH)):
        return None
    lr = history.key(LR, 0.0)
    return Finding(
        WARNING,
        f"after {history.step} steps neither reward, entropy nor length has changed (learning rate {lr:g})",
        f"a higher learning rate ({LR} from {lr:g} to {10 * lr:g}); 1e-6 is usual, with LoRA 1e-5 to 1e-4",
    )


def no_trend(history: History) -> Finding | None:
    """The policy moves, groups differ, and the reward does not rise."""
    scores = [value for _, value in history.points(SCORE)]
    useful = history.recent(USEFUL, 10)
    if len(scores) < 50 or mean(useful or [1.0]) < 0.2 or trend(scores) > 2 or trend(scores[len(scores) // 2 :]) > 2:
        return None
    if not any(abs(trend([value for _, value in history.points(name)])) > 4 for name in (ENTROPY, LENGTH)):
        return None
    return Finding(
        WARNING,
        f"after {history.step} steps the mean reward has not risen ({scores[0]:.3g} at first, {mean(scores[-10:]):.3g} "
        "now), though responses differ in reward and the policy changes",
        "see whether the reward says the same of the same response (score one twice), and what it pays for; then a "
        "larger batch or more samples (actor_rollout_ref.rollout.n) against noise",
    )


RULES = [
    Rule(
        "kl_too_large",
        "The KL to the reference model runs away",
        "The policy leaves what the reference model would write; the reward may still rise while texts become useless.",
        KLS,
        kl,
    ),
    Rule(
        "gradient_norm",
        "The gradient norm explodes, or is always clipped",
        "Steps are dominated by a few batches.",
        GRADS,
        gradient,
    ),
    Rule(
        "ratio_clipping",
        "A large share of tokens is clipped",
        "The policy moves too far from the one that generated the batch; clipped tokens have no gradient.",
        (CLIPPED,),
        ratio_clipping,
    ),
    Rule(
        "updates_without_effect",
        "No token is ever clipped, and updates have no effect",
        "The later updates of a batch see the same policy as the first: the learning rate is too small.",
        (CLIPPED, MOVED, GRAD, LR_NOW, USEFUL),
        still,
    ),
    Rule(
        "nothing_moves",
        "Nothing changes: the learning rate has no effect",
        "Updates are applied, but too small to change what the policy writes.",
        (SCORE, ENTROPY, LENGTH, GRAD),
        unmoved,
    ),
    Rule(
        "reward_without_trend",
        "The policy changes, the reward does not rise",
        "Within groups rewards differ, but not by what the policy can learn: noise in the reward, or a small batch.",
        (SCORE, ENTROPY, LENGTH, USEFUL),
        no_trend,
    ),
]
