"""A reward in the batch form: the right number earns 1, and a little more where it took fewer lines than the average
right answer of the batch.

It is called once, with a list for each name it takes, when all samples of a step are there; so a reward can depend on
the others. It returns as many results as there are samples, in their order.
"""

import re


def compute_score(solution_strs, ground_truths, bonus=0.1):
    lines = [text.count("\n") for text in solution_strs]
    right = [is_right(text, truth) for text, truth in zip(solution_strs, ground_truths, strict=True)]
    of_right = [count for count, good in zip(lines, right, strict=True) if good]
    average = sum(of_right) / len(of_right) if of_right else 0.0
    return [
        {"score": good * (1 + bonus * (count < average)), "acc": float(good), "lines": count, "average": average}
        for count, good in zip(lines, right, strict=True)
    ]


def is_right(text, truth):
    answers = re.findall(r"answer: (-?\d+)", text)
    return bool(answers) and answers[-1] == truth
