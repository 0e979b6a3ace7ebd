"""A custom reward: 1 for the right number, a little for working it out, minus a little for length.

The function takes what it names: any of data_source, solution_str, ground_truth, extra_info, and the numbers given in
custom_reward_function.reward_kwargs. It returns a number, or a dict with a number under "score"; `acc` becomes the
column `accuracy`, and every number of the dict is a validation metric.
"""

import re


def compute_score(solution_str, ground_truth, extra_info, bonus=0.1, cost_per_line=0.01):
    answers = re.findall(r"answer: (-?\d+)", solution_str)
    right = bool(answers) and answers[-1] == ground_truth
    lines = solution_str.count("\n")
    score = right + bonus * (lines > 0) - cost_per_line * lines
    return {"score": score, "acc": float(right), "lines": lines, "truncated": float(extra_info["truncated"])}
