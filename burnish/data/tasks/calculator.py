"""Products of two three-digit numbers, for an agent that may call a calculator. The reward is that of `multiply`, so a
product worked out without the tool counts as much. a*b and b*a are one question."""

import itertools
import random

from burnish.data.files import Row
from burnish.data.tasks.task import GeneratedTask, distinct, rl_row

DATA_SOURCE = "multiply"
TOOL = "calculator"
LOW, HIGH = 100, 999


def questions(split: str, count: int, seed: int) -> list[tuple[int, int]]:
    draw = random.Random(f"{TOOL}/{split}/{seed}")
    pairs = ((draw.randint(LOW, HIGH), draw.randint(LOW, HIGH)) for _ in itertools.count())
    return list(distinct(split, count, ((f"{max(pair)}*{min(pair)}", pair) for pair in pairs)))


def question(a: int, b: int) -> str:
    return f"What is {a} * {b}?"


def rows(split: str, count: int, seed: int = 0) -> list[Row]:
    agent = {"agent_name": "tool_agent", "tool_config": {"available_tools": [TOOL]}}
    return [
        rl_row(DATA_SOURCE, "math", question(a, b), str(a * b), question(a, b), split=split, index=i, a=a, b=b) | agent
        for i, (a, b) in enumerate(questions(split, count, seed))
    ]


TASK = GeneratedTask(
    about="Products of three-digit numbers with a calculator tool. The reward compares the number in <answer>.",
    generate=lambda split, count, seed, options: rows(split, count, seed),
    example="--train-size 4096 --test-size 256 --seed 1",
)
