"""Rows as Python has them, written once to a file that the commands read.

A path stays as it is. Lists of dicts or of prompts, Hugging Face datasets, pandas and pyarrow tables go to
`<folder>/<name>-<hash>.jsonl` (parquet where JSON cannot hold a value): other rows are another file, so a run that is
resumed reads what it began with.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
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
NO_KEYS: Mapping[str, Any] = {}


def to_files(data: Any, folder: Path, name: str, to_row: Callable[[Row], Row]) -> list[str]:
    """The files that hold the rows; `to_row` completes one that is not as the commands want it."""
    if isinstance(data, str) and not is_file(data):
        raise DataError(
            f"data={data!r:.60}: a file of rows ends with one of {', '.join(FORMATS)}; give prompts in a list"
        )
    given = [data] if isinstance(data, str | Path) else data
    if isinstance(given, list | tuple) and given:
        files = [item for item in given if is_file(item)]
        if len(files) == len(given):
            return [str(item) for item in given]
        if files and any(isinstance(item, Mapping) for item in given):
            raise DataError(f"data has rows and files ({files[0]}); give either of them")
    rows = [to_row({"prompt": row} if isinstance(row, str) else dict(row)) for row in rows_of(given)]
    if not rows:
        raise DataError(f"{_argument(name)}: there are no rows")
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


def _argument(name: str) -> str:
    return "val" if name == "val" else "data"


@contextmanager
def named_in_errors(folder: Path) -> Iterator[None]:
    """An error says `data, row 3`, where it would say `<folder>/train-1a2b3c4d.jsonl, row 3`: a file that `to_files`
    wrote, and that the caller has never seen."""
    written = re.escape(str(folder / "_")[:-1]) + r"([\w.]+)-[0-9a-f]{8}\.(jsonl|parquet)"
    try:
        yield
    except DataError as error:
        error.args = (re.sub(written, lambda found: _argument(found[1]), str(error)),)
        raise


def is_file(item: Any) -> bool:
    return isinstance(item, Path) or (isinstance(item, str) and item.lower().endswith(FORMATS))


def rows_of(data: Any) -> list[Any]:
    """The rows of any table, as Python's objects."""
    if isinstance(data, Mapping):
        fix = f"choose one, such as data[{next(iter(data), 'train')!r}]"
        raise DataError(f"data is one row, or several tables ({type(data).__name__}); {fix}, or give a list of rows")
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
                f"data: row {number} (the first is 0) has the type {type(row).__name__}; give a dict with a prompt, a "
                f"prompt, or the path of a file that ends with one of {', '.join(FORMATS)}"
            )
    return found


def prompt_row(row: Row, keys: Mapping[str, Any] = NO_KEYS) -> Row:
    """A row of RL: {"prompt", "answer" or "ground_truth", …} gets the `reward_model` that functions are given. One
    without a prompt stays, for an error that lists its columns."""
    prompt = keys.get("data.prompt_key", "prompt")
    if "reward_model" in row or not (prompt in row or "responses" in row):
        return row
    known = {*KNOWN, prompt}
    truth = next((name for name in TRUTHS if name in row), None)
    others = {name: value for name, value in row.items() if name not in (*known, truth)}
    kept = {name: value for name, value in row.items() if name in known}
    if truth:
        kept["reward_model"] = {"style": "rule", "ground_truth": row[truth]}
    if others:  # parquet cannot hold an empty object
        kept["extra_info"] = {**others, **(row.get("extra_info") or {})}
    return kept


def conversation_row(row: Row, keys: Mapping[str, Any] = NO_KEYS) -> Row:
    """A row of SFT: {"prompt", "response"} becomes a conversation."""
    answer = next((name for name in RESPONSES if name in row), None)
    if "messages" in row or not keys.keys().isdisjoint(("data.messages_key", "data.prompt_key")):
        return row
    if "prompt" not in row or answer is None:
        raise DataError(f"data: a row has {', '.join(row)}; give each one messages, or a prompt and its response")
    others = {name: value for name, value in row.items() if name not in ("prompt", answer)}
    return {**others, "messages": [*to_messages(row["prompt"]), {"role": "assistant", "content": row[answer]}]}
