"""A reward in parts: whether the number is right, and whether it was worked out instead of blurted.

Each is a function with a weight in run.sh. Their sum is the score, which any estimator can train on. GDPO compares each
part within the group by itself instead: the one that differs less among the samples still has its say, and neither has
to be scaled to the other by hand.
"""

import re


def right(solution_str, ground_truth):
    answers = re.findall(r"answer: (-?\d+)", solution_str)
    correct = float(bool(answers) and answers[-1] == ground_truth)
    return {"score": correct, "acc": correct}


def worked(solution_str):
    return min(solution_str.count("\n"), 3) / 3  # a line for each digit, then the answer
