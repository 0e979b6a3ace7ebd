"""A reward in parts: whether the number is right, and whether it was worked out instead of blurted.

GDPO compares each part within the group by itself. So the one that differs less among the samples still has its say,
and neither has to be scaled to the other by hand. The names are those in `algorithm.gdpo_reward_keys`; `score` is what
is reported, and what another estimator would use.
"""

import re


def compute_score(solution_str, ground_truth):
    answers = re.findall(r"answer: (-?\d+)", solution_str)
    right = float(bool(answers) and answers[-1] == ground_truth)
    worked = min(solution_str.count("\n"), 3) / 3  # a line for each digit, then the answer
    return {"score": right + 0.2 * worked, "acc": right, "right": right, "worked": worked}
