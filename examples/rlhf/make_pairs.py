"""Pairs of answers, of which one is preferred: `python3 examples/rlhf/make_pairs.py answers.parquet folder`.

Of the answers that the policy gave to a question, a right one and a wrong one become a pair. Where people would say
which they prefer, the program looks the right answer up; the reward model never sees it. The pairs of a tenth of the
questions are kept for validation.
"""

import sys
from itertools import islice
from pathlib import Path

from burnish.data.files import read_rows, write_parquet
from burnish.rewards.scores.arithmetic import compute_score

PAIRS_PER_QUESTION = 3


def pairs(row):
    answers: dict[bool, list[str]] = {True: [], False: []}
    for text in dict.fromkeys(row["responses"]):
        is_right = compute_score(text, row["reward_model"]["ground_truth"])["acc"] == 1
        answers[is_right].append(text)
    for chosen, rejected in islice(zip(answers[True], answers[False], strict=False), PAIRS_PER_QUESTION):
        yield {"prompt": row["prompt"], "chosen": chosen, "rejected": rejected}


def main(answers: Path, folder: Path) -> None:
    found = [list(pairs(row)) for row in read_rows(answers)]
    kept = len(found) // 10  # questions, so that no question has pairs on both sides
    write_parquet([pair for of_one in found[kept:] for pair in of_one], folder / "pairs_train.parquet")
    write_parquet([pair for of_one in found[:kept] for pair in of_one], folder / "pairs_test.parquet")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
