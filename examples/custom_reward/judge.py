"""A class with state as the reward function: it is made once in each scoring process, and then called for each sample.

Its constructor takes what it names of custom_reward_function.reward_kwargs: the place to load a model or to open a
connection. What it keeps lives as long as its process and is not shared with the others: here the answers it has read
before, which a slow judge would not judge again.
"""

import re


class Judge:
    def __init__(self, pattern=r"answer: (-?\d+)"):
        self.pattern = re.compile(pattern)
        self.judged = {}

    def __call__(self, solution_str, ground_truth, bonus=0.1):
        key = (solution_str, ground_truth)
        known = key in self.judged
        if not known:
            self.judged[key] = self.judge(solution_str, ground_truth)
        right, lines = self.judged[key]
        return {"score": right + bonus * (lines > 0), "acc": float(right), "known": float(known)}

    def judge(self, text, truth):
        """What takes its time."""
        answers = self.pattern.findall(text)
        return bool(answers) and answers[-1] == truth, text.count("\n")
