"""The reward grows with the length of responses, and with nothing else."""

from burnish.health.history import History, mean, trend
from burnish.health.rule import WARNING, Finding, Rule

SCORE, LENGTH, TOGETHER, ACCURACY = (
    "critic/score/mean", "response_length/mean", "response_length/score_correlation", "accuracy",
)  # fmt: skip
STEPS, TIED = 10, 0.97


def check(history: History) -> Finding | None:
    tied = history.recent(TOGETHER, STEPS)
    if not tied or sorted(tied)[STEPS // 2] < TIED:
        return None
    scores, lengths = ([value for _, value in history.points(name)] for name in (SCORE, LENGTH))
    if trend(scores) < 3 or trend(lengths) < 3:
        return None
    accuracies = [value for _, value in history.points(ACCURACY)]
    if accuracies and trend(accuracies) > 2:
        return None
    return Finding(
        WARNING,
        f"reward and length rise together (length {lengths[0]:.0f} → {lengths[-1]:.0f}), and within the batches of the "
        f"last {STEPS} steps they correlate with {mean(tied):.2f}: the reward pays for length",
        "read the best responses in rollouts/; score what counts rather than what is long, or add a penalty "
        "(algorithm.overlong_buffer.enable=True)",
    )


RULES = [
    Rule(
        "length_only",
        "The reward grows with length only",
        "The reward function can be satisfied by longer text; the policy has found that.",
        (SCORE, LENGTH, TOGETHER, ACCURACY),
        check,
    )
]
