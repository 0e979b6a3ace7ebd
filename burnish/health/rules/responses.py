"""Responses that are cut, empty, or repeat themselves."""

from burnish.health.history import History, mean
from burnish.health.rule import BROKEN, NOTE, WARNING, Finding, Rule

CUT, LENGTH, ABORTED = "response_length/clip_ratio", "response_length/mean", "response/aborted_ratio"
REPEATED, SCORE, HIGH = "response/repeated_ratio", "critic/score/mean", "critic/score/max"
STEPS, LOOPING = 5, 0.5  # steps; share of responses
LIMIT = "data.max_response_length"


def cut(history: History) -> Finding | None:
    share = mean(history.recent(CUT, STEPS))
    if not share >= 0.5:
        return None
    limit, severity = history.key(LIMIT, 0), BROKEN if share >= 0.95 else WARNING
    said = f"{share:.0%} of the responses of the last {STEPS} steps were cut at {limit} tokens"
    scores, best = history.recent(SCORE, STEPS), max((high for _, high in history.points(HIGH)), default=0.0)
    if scores and mean(scores) >= (1 - share / 2) * best > 0:  # even where all others have the best
        severity, said = NOTE, f"{said} with a mean reward of {mean(scores):.3g} (best response: {best:.3g})"
    template = "its chat template and end token (`burnish data show FILE` prints a prompt with it)"
    remedy = (
        f"a higher limit ({LIMIT} from {limit} to {4 * limit}), a prompt that asks for less, or, if the model never "
        f"ends its answers, {template}"
    )
    if mean(history.recent(REPEATED, STEPS)) >= LOOPING:
        remedy = f"no higher limit, for they repeat themselves: see repeated_text; if they always did, {template}"
    return Finding(severity, said, remedy)


def empty(history: History) -> Finding | None:
    length, aborted = mean(history.recent(LENGTH, STEPS)), mean(history.recent(ABORTED, STEPS))
    if not (length <= 2 or aborted >= 0.5):
        return None
    said = (
        f"responses have {length:.1f} tokens on average" if length <= 2 else f"{aborted:.0%} of the responses are empty"
    )
    return Finding(
        BROKEN,
        f"{said} in the last {STEPS} steps",
        "see rollouts/ in the run folder: the reward may pay for empty answers, or the prompt already ends the "
        "conversation (`burnish data show FILE` prints it with the chat template)",
    )


def repeated(history: History) -> Finding | None:
    share = mean(history.recent(REPEATED, STEPS))
    if not share >= LOOPING:
        return None
    lr = history.key("actor_rollout_ref.actor.optim.lr", 0.0)
    return Finding(
        BROKEN if share >= 0.9 else WARNING,
        f"{share:.0%} of the responses of the last {STEPS} steps mostly repeat themselves",
        f"a lower learning rate (actor_rollout_ref.actor.optim.lr from {lr:g} to {lr / 10:g}) from an earlier "
        "checkpoint, and a reward that does not pay for repetition",
    )


RULES = [
    Rule(
        "cut_responses",
        "Most responses are cut at the length limit",
        "A cut answer rarely has a result, so its reward says nothing about its reasoning; the policy learns to be "
        "short, or nothing.",
        (CUT, REPEATED, SCORE, HIGH),
        cut,
    ),
    Rule(
        "empty_responses",
        "Responses are empty",
        "A response without tokens has no gradient.",
        (LENGTH, ABORTED),
        empty,
    ),
    Rule(
        "repeated_text",
        "Responses repeat themselves",
        "Most sequences of four tokens occurred in the same response before: the policy has collapsed into a loop.",
        (REPEATED,),
        repeated,
    ),
]
