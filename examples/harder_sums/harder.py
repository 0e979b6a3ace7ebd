"""A reward function that adds prompts while training: out of a solved sum it makes a harder one.

Harder means that one more column carries: 312+245 (no carry) leads to 315+245, that to 355+245, that to 755+245, where
every column carries and nothing harder follows. The new row has the shape of a row of the training file. What is held
out for validation is never proposed. Nothing here is random, so the samples of a group propose the same sum, and it
waits only once.
"""

from burnish.data.tasks import arithmetic
from burnish.rewards.scores.arithmetic import compute_score as arithmetic_score


def compute_score(solution_str, ground_truth, extra_info):
    score = arithmetic_score(solution_str, ground_truth)
    return score | {"new_prompts": proposals(extra_info) if score["acc"] else []}


def proposals(info):
    """The rows that a solved question leads to: at most one."""
    harder = next(harder_sums(info["a"], info["b"]), None) if info["op"] == "+" else None
    if harder is None:
        return []
    a, b = harder
    row = {
        "data_source": arithmetic.DATA_SOURCE,
        "prompt": arithmetic.question(a, "+", b),
        "reward_model": {"ground_truth": str(a + b)},
        "extra_info": {"a": a, "op": "+", "b": b},
    }
    return [row]


def harder_sums(a, b):
    """Sums like a+b in which the last column that does not carry does, the least changed first."""
    carry = 0
    for place in (1, 10, 100):
        x, y = a // place % 10, b // place % 10
        if x + y + carry < 10:
            raised = [(up, 0) for up in range(1, 10 - x)] + [(9 - x, up) for up in range(1, 10 - y)]
            for more_a, more_b in raised:
                larger = a + more_a * place, b + more_b * place
                if x + more_a + y + more_b + carry > 9 and arithmetic.split_of(larger[0], "+", larger[1]) == "train":
                    yield larger
            return
        carry = 1
