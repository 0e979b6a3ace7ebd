"""Three-digit sums and differences: the task of the quickstart, made from a seed.

A response ends with `answer: <number>`. The scratchpad works from the last digit to the first; a line is `x+y+c=d,k`:
digits x and y, the carry c in, the digit d to write and the carry k out (for `-` a borrow). 347+586 is

    7+6+0=3,1
    4+8+1=3,1
    3+5+1=9,0
    =0933
    answer: 933

Held-out questions are picked by a hash of the question with the operands of a sum in order, so 586+347 is not trained
on where 347+586 is held out.
"""

import random
from typing import Any

from burnish.data.tasks import task
from burnish.errors import DataError

DATA_SOURCE = "burnish/arithmetic"
OPERATIONS = ("+", "-")
LOW, HIGH = 100, 999
# Half of what there is (all ordered pairs as sums, half of them as differences), so that drawing stays quick.
MOST = {"train": 500_000, "test": 50_000}


def question(a: int, op: str, b: int) -> str:
    return f"{a}{op}{b}=?"


def solve(a: int, op: str, b: int) -> int:
    _check(a, op, b)
    return a + b if op == "+" else a - b


def split_of(a: int, op: str, b: int) -> str:
    _check(a, op, b)
    first, second = (max(a, b), min(a, b)) if op == "+" else (a, b)
    return task.split_of(f"{first}{op}{second}")


def questions(split: str, count: int, seed: int) -> list[tuple[int, str, int]]:
    task.check_split(split)
    if count > MOST[split]:
        raise DataError(f"{count} different questions of the {split} split are asked for; at most {MOST[split]} can be")
    draw = random.Random(f"{DATA_SOURCE}/{split}/{seed}")
    found: dict[tuple[int, str, int], None] = {}
    while len(found) < count:
        a, b, op = draw.randint(LOW, HIGH), draw.randint(LOW, HIGH), draw.choice(OPERATIONS)
        if op == "-" and a < b:
            a, b = b, a
        if split_of(a, op, b) == split:
            found[a, op, b] = None
    return list(found)


def rows(split: str, count: int, seed: int = 0) -> list[dict[str, Any]]:
    return [
        {
            "data_source": DATA_SOURCE,
            "prompt": [{"role": "user", "content": question(a, op, b)}],
            "ability": "arithmetic",
            "reward_model": {"style": "rule", "ground_truth": str(solve(a, op, b))},
            "extra_info": {"split": split, "index": index, "a": a, "op": op, "b": b},
        }
        for index, (a, op, b) in enumerate(questions(split, count, seed))
    ]


def scratchpad(a: int, op: str, b: int) -> str:
    _check(a, op, b)
    lines, digits, carry = [], "", 0
    for place in (1, 10, 100):
        x, y = a // place % 10, b // place % 10
        value = x + y + carry if op == "+" else x - y - carry
        out = int(value > 9 or value < 0)
        lines.append(f"{x}{op}{y}{op}{carry}={value % 10},{out}")
        digits, carry = f"{value % 10}{digits}", out
    return "\n".join([*lines, f"={carry}{digits}", direct(a, op, b, int(f"{carry}{digits}"))])


def direct(a: int, op: str, b: int, guess: int | None = None) -> str:
    """An answer without working: the `guess`, or the right number where none is given."""
    return f"answer: {solve(a, op, b) if guess is None else guess}"


def sft_row(a: int, op: str, b: int, response: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": question(a, op, b)}, {"role": "assistant", "content": response}]
    return {"data_source": DATA_SOURCE, "messages": messages}


def _check(a: int, op: str, b: int) -> None:
    if op not in OPERATIONS:
        raise DataError(f"operation '{op}' does not exist; use one of {', '.join(OPERATIONS)}")
    if not (LOW <= a <= HIGH and LOW <= b <= HIGH):
        raise DataError(f"{a}{op}{b}: both numbers have three digits, {LOW} to {HIGH}")
    if op == "-" and a < b:
        raise DataError(f"{a}-{b}: the first number of a difference is the larger one; swap them")


TASK = task.GeneratedTask(
    about="The task of the quickstart: numbers from 100 to 999. The reward compares the number after `answer:`.",
    generate=lambda split, count, seed, options: rows(split, count, seed),
)
