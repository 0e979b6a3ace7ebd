"""Products of two numbers with as many digits as asked for.

a*b and b*a are one question. The product goes along as `extra_info.answer` in the form that is asked for.
"""

import random
import re
from collections.abc import Iterator

from burnish.data.files import Row
from burnish.data.tasks.held_out import distinct
from burnish.data.tasks.task import GeneratedTask, Option, Options, rl_row
from burnish.errors import ConfigError

DATA_SOURCE = "multiply"


def generate(split: str, count: int, seed: int, options: Options) -> list[Row]:
    digits = parse_digits(options["digits"])
    return list(distinct(split, count, _draw(random.Random(f"{DATA_SOURCE}/{split}/{seed}"), *digits)))


def parse_digits(typed: str) -> tuple[int, int]:
    """`3` or `3x2` as the digits of the two numbers."""
    found = re.fullmatch(r"([1-9])(?:x([1-9]))?", typed)
    if not found:
        raise ConfigError(f"--digits {typed}: write the digits of both numbers, 1 to 9, e.g. 3 or 3x2")
    return int(found[1]), int(found[2] or found[1])


def _draw(draw: random.Random, first: int, second: int) -> Iterator[tuple[str, Row]]:
    """Questions without end, each with what makes it different from others."""
    while True:
        a, b = (draw.randint(10 ** (digits - 1), 10**digits - 1) for digits in (first, second))
        yield f"{max(a, b)}*{min(a, b)}", _row(a, b)


def _row(a: int, b: int) -> Row:
    question = f"What is {a} * {b}?"
    prompt = f"{question} Work it out step by step, then write the product alone between <answer> and </answer>."
    return rl_row(DATA_SOURCE, "math", prompt, str(a * b), question, f"<answer>{a * b}</answer>", a=a, b=b)


TASK = GeneratedTask(
    about="Multiplication. The reward compares the number in <answer>.",
    generate=generate,
    options=(Option("digits", "3", "digits of the numbers: 3, or 3x2 for a three-digit and a two-digit one"),),
    example="--digits 3x2 --train-size 10000 --test-size 500",
)
