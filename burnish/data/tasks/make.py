"""A task's rows, split by split, with a count of what was left out and why.

Consumes a task and either the `Origin` of its records (data/sources.py) or sizes and a seed; produces a `Made` for each
split. A file without a column that the task reads, or with a value of the wrong type, is a `DataError` that names file,
row and column.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from burnish.data.files import Row, at, columns, no_column
from burnish.data.sources import Origin, Part, read
from burnish.data.tasks.held_out import keep_apart
from burnish.data.tasks.task import FileTask, GeneratedTask, LeftOut, Options
from burnish.errors import DataError


@dataclass(frozen=True)
class Made:
    """The rows of a split, and how many records were left out for which reason."""

    rows: list[Row]
    left_out: Counter[str] = field(default_factory=Counter)

    def reasons(self) -> str:
        """The reasons, the most frequent first; empty where nothing was left out."""
        return "; ".join(f"{count} because {reason}" for reason, count in self.left_out.most_common())


def from_files(task: FileTask, origin: Origin, options: Options) -> dict[str, Made]:
    """The rows of each split of a dataset, or of a file of which a part is kept apart."""
    files = origin.files(task.hub)
    made = {split: _convert(task, read(paths, origin.rename), options) for split, paths in files.items()}
    if origin.test_size is not None:
        train, test = keep_apart(made["train"].rows, origin.test_size)
        made = {"train": Made(train, made["train"].left_out), "test": Made(test)}
    return {split: Made(_placed(part.rows, split), part.left_out) for split, part in made.items()}


def generated(task: GeneratedTask, sizes: Mapping[str, int], seed: int, options: Options) -> dict[str, Made]:
    """As many rows of each split as `sizes` says."""
    return {split: Made(_placed(task.generate(split, count, seed, options), split)) for split, count in sizes.items()}


def _convert(task: FileTask, parts: Sequence[Part], options: Options) -> Made:
    """All rows of a split, in the order of the files. `extra_info.index` counts the records, left out or not."""
    made = Made([])
    index = 0
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
    """The rows with their split, and their index unless they have one."""
    return [row | {"extra_info": {"split": split, "index": i} | row["extra_info"]} for i, row in enumerate(rows)]
