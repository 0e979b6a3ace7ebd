"""Which questions are kept apart as the test split: by a hash of the question, so that none is in both splits.

`split_of` and `distinct` serve tasks that make their questions: a question always belongs to the same split, whatever
the seed and the sizes. `keep_apart` serves a file that has no test split: it takes as many questions as were asked for,
whatever their order; equal questions go to the same split.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from burnish.data.files import Row
from burnish.errors import DataError

T = TypeVar("T")

SPLITS = ("train", "test")
TEST_ONE_IN = 10
PATIENCE = 2000  # draws in a row without a new question, after which the search stops


def split_of(question: str) -> str:
    """The split of a question that is made, the same in every run."""
    return (
        "test" if int.from_bytes(hashlib.sha256(question.encode()).digest()[:8], "big") % TEST_ONE_IN == 0 else "train"
    )


def check_split(split: str) -> None:
    if split not in SPLITS:
        raise DataError(f"split '{split}' does not exist; use one of {', '.join(SPLITS)}")


def distinct(split: str, count: int, drawn: Iterable[tuple[str, T]]) -> Iterator[T]:
    """The first `count` things drawn whose questions differ and belong to the split. `drawn` is endless."""
    check_split(split)
    found: set[str] = set()
    fruitless = 0
    for question, thing in drawn:
        if len(found) >= count:
            break
        fruitless += 1
        if question not in found and split_of(question) == split:
            found.add(question)
            fruitless = 0
            yield thing
        if fruitless > PATIENCE:
            raise DataError(
                f"only {len(found)} of {count} different {split} questions could be found with these options; "
                f"ask for fewer (--{split}-size) or widen the options"
            )


def keep_apart(rows: Sequence[Row], count: int) -> tuple[list[Row], list[Row]]:
    """The rows of the train split and those of the test split, which has `count` different questions."""
    marks = [mark(row) for row in rows]
    questions = sorted(set(marks))
    if count >= len(questions):
        raise DataError(
            f"--test-size {count} leaves nothing to train on: there are {len(questions)} different questions in all; "
            "ask for fewer"
        )
    chosen = set(questions[:count])
    train = [row for row, key in zip(rows, marks, strict=True) if key not in chosen]
    return train, [row for row, key in zip(rows, marks, strict=True) if key in chosen]


def mark(row: Row) -> bytes:
    """What distinguishes one question from another: the prompt, ignoring white space and case, and its pictures."""
    parts = [f"{message['role']}: {message['content']}" for message in row["prompt"]]
    digest = hashlib.sha256(" ".join("\n".join(parts).split()).casefold().encode())
    for image in row.get("images") or []:  # a path, or an object with its bytes, as the hub keeps them
        content = (image.get("bytes") or image.get("path")) if isinstance(image, dict) else image
        content = content if isinstance(content, bytes) else str(content).encode()
        digest.update(b"\0" + hashlib.sha256(content).digest())
    return digest.digest()
