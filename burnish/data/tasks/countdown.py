"""Countdown: reach a target with given numbers, each used exactly once, by + - * / and brackets. Every question is made
from a solution (`extra_info.answer`) whose steps all give positive integers. `extra_info.difficulty` is the count of
numbers. The same numbers in another order are the same question."""

import random
from collections.abc import Iterator

from burnish.data.files import Row
from burnish.data.tasks.task import GeneratedTask, Option, Options, distinct, rl_row
from burnish.errors import ConfigError

DATA_SOURCE = "countdown"
HIGHEST_NUMBER = 99
HIGHEST_TARGET = 100
COUNTS = (2, 8)


def generate(split: str, count: int, seed: int, options: Options) -> list[Row]:
    (low, high), words = COUNTS, options["numbers"].split(",")
    if not all(word.strip().isdecimal() and low <= int(word) <= high for word in words):
        typed = options["numbers"]
        raise ConfigError(f"--numbers {typed}: write counts from {low} to {high} with commas between, e.g. 3,4")
    draw = random.Random(f"{DATA_SOURCE}/{split}/{seed}")
    return list(distinct(split, count, _draw(draw, [int(word) for word in words])))


def _draw(draw: random.Random, counts: list[int]) -> Iterator[tuple[str, Row]]:
    while True:
        numbers = [draw.randint(1, HIGHEST_NUMBER) for _ in range(draw.choice(counts))]
        target, solution = solve_somehow(draw, numbers)
        if target > HIGHEST_TARGET:
            continue
        listed = ", ".join(map(str, numbers))
        prompt = (
            f"Make {target} out of the numbers {listed}. Use each of them exactly once, with +, -, *, / and brackets. "
            "Think first; then write the expression alone between <answer> and </answer>, like <answer>(8 - 2) * "
            "5</answer>."
        )
        question, truth = f"numbers {listed}; target {target}", {"target": target, "numbers": numbers}
        answer = f"<answer>{solution}</answer>"
        row = rl_row(DATA_SOURCE, "math", prompt, truth, question, answer, difficulty=len(numbers))
        yield f"{sorted(numbers)} {target}", row


def solve_somehow(draw: random.Random, numbers: list[int]) -> tuple[int, str]:
    left = [(number, str(number)) for number in numbers]
    while len(left) > 1:
        (a, first), (b, second) = (left.pop(draw.randrange(len(left))) for _ in range(2))
        if a < b:
            a, first, b, second = b, second, a, first
        values = {"+": a + b, "*": a * b, "-": a - b, "/": a // b if a % b == 0 else 0}
        op = draw.choice([op for op, value in values.items() if value > 0])
        left.append((values[op], f"({first} {op} {second})"))
    value, text = left[0]
    return value, text[1:-1]


TASK = GeneratedTask(
    about=f"Numbers from 1 to {HIGHEST_NUMBER} and a target up to {HIGHEST_TARGET} that they can make. The reward "
    "checks the expression in <answer>.",
    generate=generate,
    options=(Option("numbers", "3,4", "how many numbers a question has; several counts are mixed"),),
)
