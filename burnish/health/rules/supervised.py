"""`burnish sft` and `burnish rm`: the loss rises or stays, validation becomes worse, pairs are not told apart."""

from burnish.health.history import History, fall, has_moved, mean
from burnish.health.rule import BROKEN, WARNING, Finding, Rule

LOSS, VALIDATED, ACCURACY, GRAD = "train/loss", "val/loss", "train/accuracy", "train/grad_norm"
LR = "optim.lr"
ENOUGH, LATELY, LATER = 100, 20, 2  # steps; validations after the best
WORSE, CHANCE = 1.05, 0.55  # times the lowest validation loss; share of pairs
SMALL = 0.01  # nats; of differences between losses that low, none matters


def rising(history: History) -> Finding | None:
    found = fall([(step, -loss) for step, loss in history.points(LOSS)])
    if found is None or found.top - found.now < SMALL or not history.key("data.shuffle", True):
        return None  # in the order of their file, later examples may be harder
    lr = history.key(LR, 0.0)
    return Finding(
        BROKEN if found.is_whole else WARNING,
        f"the training loss rose from {-found.top:.3g} (up to step {found.step}) to {-found.now:.3g}",
        f"a lower learning rate ({LR} from {lr:g} to {lr / 3:.2g}) or warm-up (optim.lr_warmup_steps_ratio=0.03)",
    )


def overfitting(history: History) -> Finding | None:
    validated = history.points(VALIDATED)
    best = min(range(len(validated)), key=lambda i: validated[i][1], default=0)
    later = validated[best + 1 :]
    if len(later) < LATER:
        return None
    step, lowest = validated[best]
    if min(loss for _, loss in later[-LATER:]) < max(WORSE * lowest, lowest + SMALL):
        return None
    then = mean([loss for at, loss in history.points(LOSS) if at <= step][-LATELY:])
    now = mean(history.recent(LOSS, min(history.count(LOSS), LATELY)))
    if not now < then:
        return None
    kept = f"global_step_{history.best}, the best that was kept" if history.best else f"a checkpoint near step {step}"
    return Finding(
        WARNING,
        f"the validation loss rose from {lowest:.3g} (step {step}) to {later[-1][1]:.3g}, while the training loss fell "
        f"from {then:.3g} to {now:.3g}: the model learns its examples by heart",
        f"take {kept}, and save as often as you validate (trainer.save_freq, trainer.keep_best); fewer epochs "
        f"(trainer.total_epochs), more examples, or a lower learning rate ({LR})",
    )


def chance(history: History) -> Finding | None:
    if len(history.points(ACCURACY)) < ENOUGH or not mean(history.recent(ACCURACY, LATELY)) < CHANCE:
        return None
    lr, told = history.key(LR, 0.0), mean(history.recent(ACCURACY, LATELY))
    return Finding(
        WARNING,
        f"in the last {LATELY} steps the better answers of {told:.0%} of the pairs had the higher reward: chance",
        "see whether people could tell the two answers apart (`burnish data show FILE`), or whether their columns are "
        f"swapped in a part of the file; then a higher learning rate ({LR} from {lr:g} to {10 * lr:g})",
    )


def unmoved(history: History) -> Finding | None:
    losses = [loss for _, loss in history.points(LOSS)]
    if len(losses) < ENOUGH or max(history.recent(GRAD, LATELY), default=0.0) == 0 or has_moved(losses):
        return None
    lr = history.key(LR, 0.0)
    return Finding(
        WARNING,
        f"after {history.step} steps the training loss is what it was, {mean(losses[-LATELY:]):.3g} (learning rate "
        f"{lr:g})",
        f"a higher learning rate ({LR} from {lr:g} to {10 * lr:g}); 1e-5 is usual, with LoRA 1e-4",
    )


RULES = [
    Rule("loss_rises", "The training loss rises", "Updates are too large for the model.", (LOSS,), rising),
    Rule(
        "overfitting",
        "The validation loss rises while the training loss falls",
        "What is learnt from now on does not carry over to other examples.",
        (LOSS, VALIDATED),
        overfitting,
    ),
    Rule(
        "pairs_at_chance",
        "The reward model does not tell the better answer",
        "A policy trained with it would learn noise.",
        (ACCURACY,),
        chance,
    ),
    Rule("loss_stays", "The training loss stays as it is", "Updates are too small to matter.", (LOSS, GRAD), unmoved),
]
