"""A reward file as verl's users write them."""

from verl.utils.reward_score import default_compute_score, gsm8k
from verl.utils.reward_score.math import last_boxed_only_string, remove_boxed


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    box = last_boxed_only_string(solution_str)
    if box is not None:
        return {
            "score": default_compute_score("lighteval/MATH", solution_str, ground_truth),
            "boxed": remove_boxed(box),
        }
    given = gsm8k.extract_solution(solution_str, method="flexible")
    return {"score": float(given == str(ground_truth)) + 0.1 * (given is not None), "boxed": ""}


def arithmetic(data_source, solution_str, ground_truth, extra_info=None):
    return default_compute_score(data_source, solution_str, ground_truth, extra_info)


def letters(data_source, solution_str, ground_truth, extra_info=None):
    return float(len(set(solution_str)) % 3)
