"""The files that this example starts from: `python3 examples/rlhf/make_data.py folder questions`.

sft.parquet        demonstrations, as people write them: half of them work the sum out, the others guess
questions.parquet  questions whose answers are compared in pairs
prompts.parquet    questions that PPO trains on; the reward model scores them, and they hold no right answer
test.parquet       held-out questions with their right answers, to see what became of it
"""

import random
import sys
from pathlib import Path

from burnish.data.files import write_parquet
from burnish.data.tasks import arithmetic

DEMONSTRATIONS, PROMPTS, HELD_OUT = 512, 2048, 128


def demonstrations(draw):
    for number, (a, op, b) in enumerate(arithmetic.questions("train", DEMONSTRATIONS, seed=1)):
        guess = arithmetic.solve(a, op, b) + draw.choice([-100, -10, -1, 1, 10, 100])
        answer = arithmetic.scratchpad(a, op, b) if number % 2 else arithmetic.direct(a, op, b, guess)
        yield arithmetic.sft_row(a, op, b, answer)


def main(folder: Path, questions: int) -> None:
    write_parquet(list(demonstrations(random.Random(1))), folder / "sft.parquet")
    write_parquet(arithmetic.rows("train", questions, seed=2), folder / "questions.parquet")
    prompts = arithmetic.rows("train", PROMPTS, seed=3)
    write_parquet([row | {"reward_model": {"style": "model"}} for row in prompts], folder / "prompts.parquet")
    write_parquet(arithmetic.rows("test", HELD_OUT), folder / "test.parquet")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
