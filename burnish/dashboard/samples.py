"""Trajectories of a run, found by byte offsets: `<step>.jsonl` is read when its step is looked at, and of it are kept
where each row is and what rows are chosen by. A search reads `BUDGET` bytes of files, then says where it can go on.
"""

import math
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, BinaryIO

from burnish.dashboard.folders import listed, opened
from burnish.dashboard.metrics import number
from burnish.literal import json_text
from burnish.tracking.jsonl import record_of
from burnish.web import HttpProblem

ROWS = 200_000  # of the files whose indexes are kept
BUDGET = 64 * 1024 * 1024  # bytes of files that one request reads
PAGE, GROUP = 50, 64  # rows in one answer
TOKENS = b', "response_mask": ['  # what follows has a value for each token; in a text the quote would have a backslash
SHOWN = 200  # characters of a text in a list


@dataclass(frozen=True, slots=True)
class Row:
    start: int
    size: int
    head: int  # bytes before the values of tokens
    uid: str
    source: str
    score: float


@dataclass(frozen=True)
class Query:
    kind: str = "rollouts"
    first: int = 0
    last: int = 1 << 62
    source: str = ""
    low: float = -math.inf
    high: float = math.inf
    text: str = ""
    prompt: str | None = None  # exactly this one
    order: str = ""  # within a step: "" as in the file, "best", "worst"

    def chosen(self, rows: list[Row]) -> list[int]:
        """By what the index has, in order."""
        every = math.isinf(self.low) and math.isinf(self.high)  # also those without a score
        found = [
            place
            for place, row in enumerate(rows)
            if (not self.source or row.source == self.source) and (every or self.low <= row.score <= self.high)
        ]
        if self.order in ("best", "worst"):
            sign = -1 if self.order == "best" else 1
            found.sort(key=lambda n: (math.isnan(rows[n].score), sign * rows[n].score))
        return found

    def may_match(self, data: bytes) -> bool:
        """Whether its texts could be in these lines: much faster than to parse them."""
        if self.prompt is not None:
            return _quoted(self.prompt) in data
        return not self.text.isascii() or _quoted(self.text.lower())[1:-1] in data.lower()

    def matches(self, head: bytes) -> bool:
        if self.prompt is None and not self.text:
            return True
        if not self.may_match(head):
            return False
        row = record_of(head) or {}
        if self.prompt is not None:
            return row.get("prompt") == self.prompt
        texts = (str(row.get(name, "")) for name in ("prompt", "response", "ground_truth"))
        return any(self.text.lower() in text.lower() for text in texts)


class Samples:
    """Of one run, with the folder of each kind."""

    def __init__(self, index: "IndexCache", folders: Mapping[str, Path]):
        self._index, self._folders = index, folders

    def steps(self, kind: str) -> list[int]:
        files = [Path(entry.name) for entry in listed(self._folder(kind))]
        return sorted(int(file.stem) for file in files if file.suffix == ".jsonl" and file.stem.isdecimal())

    def rows(self, kind: str, step: int) -> list[Row]:
        return self._index.rows(self._path(kind, step))

    def read(self, kind: str, step: int, numbers: list[int]) -> list[dict[str, Any]]:
        """Whole rows, by their numbers in the file."""
        path, found = self._path(kind, step), []
        rows = self._index.rows(path)
        with opened(path) as file:
            for number in numbers:
                if not 0 <= number < len(rows):
                    raise HttpProblem(404, f"{kind} of step {step} have {len(rows)} rows; there is no row {number}")
                file.seek(rows[number].start)
                found.append({"step": step, "row": number, **(record_of(file.read(rows[number].size)) or {})})
        return found

    def group(self, kind: str, step: int, number: int) -> list[int]:
        """The rows of the same prompt as row `number`: this one, and the first `GROUP`."""
        rows = self.rows(kind, step)
        uid = rows[number].uid if 0 <= number < len(rows) else None
        found = [n for n, row in enumerate(rows) if row.uid == uid]
        return sorted({number, *found[:GROUP]})

    def find(self, query: Query, step: int | None, position: int) -> dict[str, Any]:
        """A page of rows, newest step first, from `position` among those chosen of `step`. `next` is where the
        following page begins; a page may be short or empty because `BUDGET` was used up."""
        steps = [one for one in self.steps(query.kind) if query.first <= one <= query.last]
        found: list[dict[str, Any]] = []
        read = 0
        for at in reversed([one for one in steps if step is None or one <= step]):
            start = position if at == step else 0
            if read > BUDGET:
                return {"rows": found, "next": [at, start]}
            path = self._path(query.kind, at)
            with opened(path) as file:
                read += os.fstat(file.fileno()).st_size
                if not query.may_match(file.read() if query.text or query.prompt is not None else b""):
                    continue
                rows = self._index.rows(path)
                chosen = query.chosen(rows)
                for place in range(start, len(chosen)):
                    if len(found) == PAGE:
                        return {"rows": found, "next": [at, place]}
                    row = rows[chosen[place]]
                    file.seek(row.start)
                    if query.matches(file.read(row.head) + (b"}" if row.head < row.size else b"")):
                        file.seek(row.start)
                        found.append(listing(at, chosen[place], record_of(file.read(row.size)) or {}))
        return {"rows": found, "next": None}

    def sources(self, kind: str, step: int) -> list[str]:
        return sorted({row.source for row in self.rows(kind, step)})

    def _folder(self, kind: str) -> Path:
        if kind not in self._folders:
            raise HttpProblem(404, f"there are {' and '.join(self._folders)}, not {kind[:50]!r}")
        return self._folders[kind]

    def _path(self, kind: str, step: int) -> Path:
        return self._folder(kind) / f"{step}.jsonl"


class IndexCache:
    """The indexes of files, those last used."""

    def __init__(self) -> None:
        self._files: OrderedDict[Path, tuple[tuple[int, int, int], list[Row]]] = OrderedDict()
        self._lock = threading.Lock()

    def rows(self, path: Path) -> list[Row]:
        with opened(path) as file:
            about = os.fstat(file.fileno())
            version = (about.st_ino, about.st_size, about.st_mtime_ns)
            with self._lock:
                known = self._files.get(path)
            if known is None or known[0] != version:
                known = version, list(_rows(file))
        with self._lock:
            self._files[path] = known
            self._files.move_to_end(path)
            while len(self._files) > 1 and sum(len(rows) for _, rows in self._files.values()) > ROWS:
                self._files.popitem(last=False)
        return known[1]


def _rows(file: BinaryIO) -> Iterator[Row]:
    start = 0
    for line in file:
        cut = line.find(TOKENS)
        row = record_of(line[:cut] + b"}") if cut >= 0 else None
        if not row:  # no such values, or the bytes are those of another object in the row
            cut, row = len(line), record_of(line)
        if row:
            source = sys.intern(str(row.get("data_source")))
            yield Row(start, len(line), cut, str(row.get("uid")), source, number(row.get("score")))
        start += len(line)


def listing(step: int, place: int, row: dict[str, Any]) -> dict[str, Any]:
    """A row as a line of a list."""
    mask, advantages = (_list(row.get(name)) for name in ("response_mask", "advantages"))
    own = [number(advantage) for advantage, is_own in zip(advantages, mask, strict=False) if is_own]
    kept = ("uid", "sample", "data_source", "score", "finish_reason", "turns", "ground_truth")
    prompt, response = (str(row.get(name, "")) for name in ("prompt", "response"))
    return {
        "step": step,
        "row": place,
        **{name: row.get(name) for name in kept},
        "tokens": len(mask),
        "advantage": sum(own) / len(own) if own else None,
        "prompt": prompt if len(prompt) <= SHOWN else "…" + prompt[-SHOWN:],
        "response": response if len(response) <= SHOWN else "…" + response[-SHOWN:],
    }


def with_tokens(row: dict[str, Any]) -> dict[str, Any]:
    """A whole row with `tokens`: the texts of its tokens, None where it does not hold where they end."""
    lengths, response = row.pop("token_lengths", None), row.get("response")
    tokens = None
    if isinstance(lengths, list) and isinstance(response, str) and all(type(n) is int and n >= 0 for n in lengths):
        ends = list(accumulate(lengths, initial=0))
        if ends[-1] == len(response):
            tokens = [response[start:end] for start, end in pairwise(ends)]
    return {**row, "tokens": tokens}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _quoted(text: str) -> bytes:
    """As it stands in the file."""
    return json_text(text).encode("utf-8", "backslashreplace")
