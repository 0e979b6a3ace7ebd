"""Products of two numbers with as many digits as asked for; a*b and b*a are one question. The product is kept as
`extra_info.answer` in the form that is asked for."""

import random
import re
from collections.abc import Iterator

from burnish.data.files import Row
from burnish.data.tasks.task import GeneratedTask, Option, Options, distinct, rl_row
from burnish.errors import ConfigError

DATA_SOURCE = "multiply"


def generate(split: str, count: int, seed: int, options: Options) -> list[Row]:
    found = re.fullmatch(r"([1-9])(?:x([1-9]))?", options["digits"])
    if not found:
        raise ConfigError(f"--digits {options['digits']}: write the digits of both numbers, 1 to 9, e.g. 3 or 3x2")
    draw = random.Random(f"{DATA_SOURCE}/{split}/{seed}")
    return list(distinct(split, count, _draw(draw, int(found[1]), int(found[2] or found[1]))))


def _draw(draw: random.Random, first: int, second: int) -> Iterator[tuple[str, Row]]:
    while True:
        a, b = (draw.randint(10 ** (digits - 1), 10**digits - 1) for digits in (first, second))
        question, answer = f"What is {a} * {b}?", f"<answer>{a * b}</answer>"
        prompt = f"{question} Work it out step by step, then write the product alone between <answer> and </answer>."
        row = rl_row(DATA_SOURCE, "math", prompt, str(a * b), question, answer, a=a, b=b)
        yield f"{max(a, b)}*{min(a, b)}", row


TASK = GeneratedTask(
    about="Multiplication. The reward compares the number in <answer>.",
    generate=generate,
    options=(Option("digits", "3", "digits of the numbers: 3, or 3x2 for a three-digit and a two-digit one"),),
    example="--digits 3x2 --train-size 10000 --test-size 500",
)
