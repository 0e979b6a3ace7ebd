"""Products of two three-digit numbers, for an agent that may call a calculator. Imports no torch.

The rows ask for `tool_agent` and name the built-in tool `calculator`. The reward is that of `multiply`: the number in
the last `<answer>`, so a product worked out without the tool counts as much. a*b and b*a are one question, and belong
to one split for good.
"""

import random
from collections.abc import Iterator

from burnish.data.files import Row
from burnish.data.tasks.held_out import distinct
from burnish.data.tasks.task import GeneratedTask, Options, rl_row

DATA_SOURCE = "multiply"
TOOL = "calculator"
LOW, HIGH = 100, 999


def questions(split: str, count: int, seed: int) -> list[tuple[int, int]]:
    """`count` different questions of a split as their two numbers."""
    return list(distinct(split, count, _draw(random.Random(f"{TOOL}/{split}/{seed}"))))


def question(a: int, b: int) -> str:
    """What the model is asked."""
    return f"What is {a} * {b}?"


def rows(split: str, count: int, seed: int = 0) -> list[Row]:
    """`count` different questions of a split as rows to train or validate on."""
    return [_row(split, index, *pair) for index, pair in enumerate(questions(split, count, seed))]


def generate(split: str, count: int, seed: int, options: Options) -> list[Row]:
    """`rows` as `burnish data make` calls it."""
    return rows(split, count, seed)


def _draw(draw: random.Random) -> Iterator[tuple[str, tuple[int, int]]]:
    while True:
        a, b = draw.randint(LOW, HIGH), draw.randint(LOW, HIGH)
        yield f"{max(a, b)}*{min(a, b)}", (a, b)


def _row(split: str, index: int, a: int, b: int) -> Row:
    asked, product = question(a, b), str(a * b)
    made = rl_row(DATA_SOURCE, "math", asked, product, asked, split=split, index=index, a=a, b=b)
    return made | {"agent_name": "tool_agent", "tool_config": {"available_tools": [TOOL]}}


TASK = GeneratedTask(
    about="Products of three-digit numbers with a calculator at hand. The reward compares the number in <answer>.",
    generate=generate,
    example="--train-size 4096 --test-size 256 --seed 1",
)
