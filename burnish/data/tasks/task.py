"""The contract of a task: what its file defines as `TASK`, and the helpers it is written with.

A `FileTask` turns one record of a dataset (a row as its authors published it) into one row in the standard shape; a
`GeneratedTask` makes rows from a seed. Both read their `options`, which are flags on the command line. A record that
cannot become a row is left out by raising `LeftOut`, and counted by its reason; a record of the wrong shape is a
`DataError`, to which make.py adds file and row.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from burnish.data.files import Row
from burnish.data.sources import Hub
from burnish.errors import DataError

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
    """Those of the columns that the record has, for `extra_info`."""
    return {name: record[name] for name in names if record.get(name) is not None}


def _wrong_type(name: str, value: Any, expected: str) -> DataError:
    return DataError(f"column '{name}' holds {value!r:.40} ({type(value).__name__}); every row needs {expected} there")


def is_filled(record: Record, name: str) -> bool:
    """Whether the column is there and neither null nor blank."""
    value = record.get(name)
    return value is not None and not (isinstance(value, str) and not value.strip())


def _filled(record: Record, names: Sequence[str]) -> tuple[str, Any]:
    """The first of the columns that is filled; `LeftOut` where none is."""
    for name in names:
        if is_filled(record, name):
            return name, record[name]
    raise LeftOut(f"'{next((n for n in names if n in record), names[0])}' is empty")
