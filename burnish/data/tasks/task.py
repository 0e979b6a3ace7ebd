"""The contract of a task: what its file defines as `TASK`, the helpers it is written with, and how its rows are made.

A `FileTask` turns one record of a dataset into one row; a `GeneratedTask` makes rows from a seed. A question is in one
split only, by a hash: `distinct` for questions that are made, whatever the seed and the sizes; `keep_apart` for a file
without a test split, whatever its order.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from burnish.data.files import Row, at, columns, no_column
from burnish.data.sources import Hub, Origin, Part, read
from burnish.errors import DataError

T = TypeVar("T")

SPLITS = ("train", "test")
TEST_ONE_IN = 10
PATIENCE = 2000  # draws in a row without a new question, after which the search stops

Record = Mapping[str, Any]
Options = Mapping[str, Any]  # by the names of `Option`; a FileTask also gets `data_source`


class LeftOut(Exception):
    """This record does not become a row; the message is the reason. Not an error: it is counted and reported."""


@dataclass(frozen=True)
class Option:
    """A flag of one task. `default` False makes it a switch."""

    name: str  # as in Python: `max_number` is typed --max-number
    default: str | int | bool
    help: str


@dataclass(frozen=True)
class InputColumn:
    """A column that a task reads, under the first of its `names` that the file has."""

    names: tuple[str, ...]
    meaning: str
    required: bool = True


@dataclass(frozen=True)
class FileTask:
    """A task whose questions come from files. `row(record, options)` makes a row of a record, or raises `LeftOut`."""

    about: str
    hub: Hub
    reads: tuple[InputColumn, ...]
    data_source: str | None  # what rows carry to pick their scorer; None: `row` finds it in the record
    row: Callable[[Record, Options], Row]
    options: tuple[Option, ...] = ()
    example: str = ""  # flags besides --out that show how the task is used


@dataclass(frozen=True)
class GeneratedTask:
    """A task whose questions are made: `generate(split, count, seed, options)` produces `count` different ones."""

    about: str
    generate: Callable[[str, int, int, Options], list[Row]]
    options: tuple[Option, ...] = ()
    example: str = "--train-size 10000 --test-size 500 --seed 1"


Task = FileTask | GeneratedTask


def rl_row(
    data_source: str,
    ability: str,
    prompt: str | list[dict[str, str]],
    ground_truth: Any,
    question: str,
    answer: str | None = None,
    **extra_info: Any,
) -> Row:
    """A row in the standard shape. `answer` is the worked answer of the dataset itself, where it has one."""
    worked = {} if answer is None else {"answer": answer}
    return {
        "data_source": data_source,
        "prompt": [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt,
        "ability": ability,
        "reward_model": {"style": "rule", "ground_truth": ground_truth},
        "extra_info": {"question": question, **worked, **extra_info},
    }


def tool_prompt(question: str, *, problems: str, tool: str, form: str) -> list[dict[str, str]]:
    """The question as messages to an agent that checks its answer with `tool`; `form` says how an answer is written."""
    system = (
        f"You solve {problems}. Work the problem out step by step, then call the tool `{tool}` with your answer at "
        f"least once: it tells you whether the answer is right. If it is not, find the mistake and try again. {form}"
    )
    return [{"role": "system", "content": system}, {"role": "user", "content": question}]


def text(record: Record, *names: str) -> str:
    """The text under the first of `names` that is filled. `LeftOut` where none is, DataError where it is no text."""
    name, value = _filled(record, names)
    if not isinstance(value, str):
        raise _wrong_type(name, value, "text")
    return value


def text_or_number(record: Record, *names: str) -> str:
    """As `text`, but a number is taken for what it is written as: JSON files have both 7 and "7"."""
    name, value = _filled(record, names)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _wrong_type(name, value, "text or a number")
    return _written(value)


def texts(record: Record, *names: str) -> list[str]:
    """A list of text or numbers, or a single one of them; blank ones are dropped, and none is `LeftOut`."""
    name, value = _filled(record, names)
    values = value if isinstance(value, list | tuple) else [value]
    for item in values:
        if isinstance(item, bool) or not isinstance(item, str | int | float | None):
            raise _wrong_type(name, item, "text or numbers")
    filled = [_written(item) for item in values if item is not None and _written(item).strip()]
    if not filled:
        raise LeftOut(f"'{name}' is empty")
    return filled


def _written(value: str | int | float) -> str:
    """How a value is written; a whole float, as tables make them, is an integer."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def kept(record: Record, *names: str) -> Row:
    return {name: record[name] for name in names if record.get(name) is not None}


def _wrong_type(name: str, value: Any, expected: str) -> DataError:
    return DataError(f"column '{name}' holds {value!r:.40} ({type(value).__name__}); every row needs {expected} there")


def is_filled(record: Record, name: str) -> bool:
    value = record.get(name)
    return value is not None and not (isinstance(value, str) and not value.strip())


def _filled(record: Record, names: Sequence[str]) -> tuple[str, Any]:
    for name in names:
        if is_filled(record, name):
            return name, record[name]
    raise LeftOut(f"'{next((n for n in names if n in record), names[0])}' is empty")


def split_of(question: str) -> str:
    number = int.from_bytes(hashlib.sha256(question.encode()).digest()[:8], "big")
    return "test" if number % TEST_ONE_IN == 0 else "train"


def check_split(split: str) -> None:
    if split not in SPLITS:
        raise DataError(f"split '{split}' does not exist; use one of {', '.join(SPLITS)}")


def distinct(split: str, count: int, drawn: Iterable[tuple[str, T]]) -> Iterator[T]:
    """The first `count` things drawn whose questions differ and belong to the split. `drawn` is endless."""
    check_split(split)
    found, fruitless = set[str](), 0
    for question, thing in drawn:
        if len(found) >= count:
            break
        fruitless += 1
        if question not in found and split_of(question) == split:
            found.add(question)
            fruitless = 0
            yield thing
        if fruitless > PATIENCE:
            few = f"only {len(found)} of {count} different {split} questions could be found with these options"
            raise DataError(f"{few}; ask for fewer (--{split}-size) or widen the options")


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


@dataclass(frozen=True)
class Made:
    rows: list[Row]
    left_out: Counter[str] = field(default_factory=Counter)

    def reasons(self) -> str:
        """The reasons, the most frequent first; empty where nothing was left out."""
        return "; ".join(f"{count} because {reason}" for reason, count in self.left_out.most_common())


def from_files(task: FileTask, origin: Origin, options: Options) -> dict[str, Made]:
    files = origin.files(task.hub)
    made = {split: _convert(task, read(paths, origin.rename), options) for split, paths in files.items()}
    if origin.test_size is not None:
        train, test = keep_apart(made["train"].rows, origin.test_size)
        made = {"train": Made(train, made["train"].left_out), "test": Made(test)}
    return {split: Made(_placed(part.rows, split), part.left_out) for split, part in made.items()}


def generated(task: GeneratedTask, sizes: Mapping[str, int], seed: int, options: Options) -> dict[str, Made]:
    return {split: Made(_placed(task.generate(split, count, seed, options), split)) for split, count in sizes.items()}


def _convert(task: FileTask, parts: Sequence[Part], options: Options) -> Made:
    """All rows of a split, in the order of the files. `extra_info.index` counts the records, left out or not."""
    made, index = Made([]), 0
    for part in parts:
        there = columns(part.records)
        for column in task.reads:
            if column.required and not set(column.names) & set(there):
                needs = ", ".join(" or ".join(needed.names) for needed in task.reads if needed.required)
                fix = f"The task reads {needs}; say which is {column.meaning}: --rename THEIRS={column.names[0]}"
                raise no_column(part.file, "' or '".join(column.names), there, fix)
        for i, record in enumerate(part.records):
            try:
                row = task.row(record, options)
            except LeftOut as reason:
                made.left_out[str(reason)] += 1
            except DataError as exc:
                raise DataError(f"{at(part.file, i)}: {exc}") from exc
            else:
                made.rows.append(row | {"extra_info": {"index": index} | row["extra_info"]})
            index += 1
    if not made.rows:
        raise DataError(f"{parts[0].file}: none of {index} records can become a row: {made.reasons()}")
    return made


def _placed(rows: Sequence[Row], split: str) -> list[Row]:
    return [row | {"extra_info": {"split": split, "index": i} | row["extra_info"]} for i, row in enumerate(rows)]
