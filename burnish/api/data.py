"""Rows as Python has them, written once to a file that the commands read.

A path stays as it is. Lists of dicts or of prompts, Hugging Face datasets, pandas and pyarrow tables go to
`<folder>/<name>-<hash>.jsonl` (parquet where JSON cannot hold a value): other rows are another file, so a run that is
resumed reads what it began with.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from burnish.data.chat import to_messages
from burnish.data.files import FORMATS, Row, to_table, write_parquet
from burnish.errors import DataError
from burnish.tracking.disk import write_atomically

TRUTHS = ("ground_truth", "answer")
RESPONSES = ("response", "completion", "answer")
#: Columns that mean something to burnish; others of a simple row go to `extra_info`, where reward functions see them.
KNOWN = (
    "prompt", "prompts", "raw_prompt", "data_source", "ability", "extra_info", "agent_name", "interaction_kwargs",
    "tools_kwargs", "tool_config", "index", "images", "videos", "responses",
)  # fmt: skip


def to_files(data: Any, folder: Path, name: str, to_row: Callable[[Row], Row]) -> list[str]:
    """The files that hold the rows; `to_row` completes one that is not as the commands want it."""
    given = [data] if isinstance(data, str | Path) else data
    if isinstance(given, list | tuple) and given and all(is_file(item) for item in given):
        return [str(item) for item in given]
    rows = [to_row({"prompt": row} if isinstance(row, str) else dict(row)) for row in rows_of(given)]
    if not rows:
        raise DataError(f"{name}: there are no rows")
    try:
        lines = [json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows]
    except (TypeError, ValueError):  # bytes, dates, arrays
        table = to_table(rows, folder / name)
        content, ending = "".join(map(repr, (table.schema, *table.to_pylist()))), "parquet"
    else:
        content, ending = "".join(lines), "jsonl"
    digest = hashlib.sha256(content.encode(errors="backslashreplace")).hexdigest()[:8]
    path = folder / f"{name}-{digest}.{ending}"
    if ending == "parquet":
        write_parquet(rows, path)
    elif not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, lines)
    return [str(path)]


def is_file(item: Any) -> bool:
    return isinstance(item, Path) or (isinstance(item, str) and item.lower().endswith(FORMATS))


def rows_of(data: Any) -> list[Any]:
    """The rows of any table, as Python's objects."""
    if isinstance(data, Mapping):
        fix = f"choose one, such as data[{next(iter(data), 'train')!r}]"
        raise DataError(f"data is a {type(data).__name__} of several tables or one row; {fix}, or give a list of rows")
    if hasattr(data, "to_pylist"):  # pyarrow
        rows: Iterable[Any] = data.to_pylist()
    elif hasattr(data, "iloc"):  # pandas, whose NaN is a null
        import pyarrow as pa

        rows = pa.Table.from_pandas(data, preserve_index=False).to_pylist()
    elif hasattr(data, "with_format"):  # Hugging Face
        rows = data.with_format(None)
    else:
        rows = data if isinstance(data, Iterable) and not isinstance(data, str | bytes) else [data]
    found = list(rows)
    for number, row in enumerate(found):
        if not isinstance(row, Mapping | str):
            raise DataError(
                f"data: row {number} (the first is 0) is a {type(row).__name__}; give a dict with a prompt, a prompt, "
                f"or the path of a file that ends with one of {', '.join(FORMATS)}"
            )
    return found


def prompt_row(row: Row) -> Row:
    """A row of RL: {"prompt", "answer" or "ground_truth", …} gets the `reward_model` that functions are given."""
    if "reward_model" in row:
        return row
    truth = next((name for name in TRUTHS if name in row), None)
    others = {name: value for name, value in row.items() if name not in (*KNOWN, truth)}
    kept = {name: value for name, value in row.items() if name in KNOWN}
    if truth:
        kept["reward_model"] = {"style": "rule", "ground_truth": row[truth]}
    if others:  # parquet cannot hold an empty object
        kept["extra_info"] = {**others, **(row.get("extra_info") or {})}
    return kept


def conversation_row(row: Row) -> Row:
    """A row of SFT: {"prompt", "response"} becomes a conversation."""
    answer = next((name for name in RESPONSES if name in row), None)
    if "messages" in row or "prompt" not in row or answer is None:
        return row
    others = {name: value for name, value in row.items() if name not in ("prompt", answer)}
    return {**others, "messages": [*to_messages(row["prompt"]), {"role": "assistant", "content": row[answer]}]}
