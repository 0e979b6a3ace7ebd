"""What was found in a data file: what `burnish data check` prints, and writes as JSON.

`data/check.py` fills a `FileReport` for each file; a `Report` compares them. `KINDS` says what rows can be, `FINDINGS`
what can be found in them and whether that is a problem or a warning. What is kept of a row is its length and a digest
of its prompt, so the report on a million rows takes some hundred megabytes.
"""

from array import array
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from burnish.data.column_types import Columns

BINS = 8


class Kind(NamedTuple):
    """What the rows of a file are for, and what is looked at in them."""

    title: str
    checks: str


KINDS = {
    "prompts": Kind("RL prompts", "fields as training reads them, what the scorer needs, reference answers"),
    "responses": Kind("responses of burnish generate", "as RL prompts, and the responses with what belongs to them"),
    "conversations": Kind("SFT conversations", "messages as burnish sft reads them, empty answers"),
    "pairs": Kind("preference pairs", "types of prompt, chosen and rejected, empty answers, equal sides"),
}


class Finding(NamedTuple):
    """A sort of finding. A problem makes the check fail, anything else is a warning."""

    title: str
    problem: bool


FINDINGS = {
    "refused": Finding("rows that would be refused", True),
    "failing_reference": Finding("reference answers that fail their own scorer", True),
    "empty_prompt": Finding("empty prompts", True),
    "empty_answer": Finding("empty answers", True),
    "over_long": Finding("rows over the length limit", True),
    "duplicate": Finding("rows with a prompt that an earlier row has", False),
    "equal_sides": Finding("pairs with the same text chosen and rejected", True),
    "empty_response": Finding("empty responses", False),
    "worked_answer": Finding("worked answers that fail where the ground truth passes", False),
    "not_checked": Finding("rows whose reference answer is not checked", False),
    "mixed_types": Finding("columns of mixed types", False),
}


OVERLAP = "prompts in two files"

#: Columns with one value per response, and how each is called beside it.
BESIDE_RESPONSES = {
    "scores": "score",
    "response_log_probs": "log-prob",
    "finish_reasons": "finished by",
    "response_lengths": "tokens",
    "num_turns": "turns",
    "num_tool_calls": "tool calls",
}


@dataclass
class Lengths:
    """The lengths of one thing (the prompts, say), one or more per row."""

    unit: str
    values: "array[int]" = field(default_factory=lambda: array("q"))
    rows: "array[int]" = field(default_factory=lambda: array("q"))  # the row of each value

    def add(self, row: int, value: int) -> None:
        self.rows.append(row)
        self.values.append(value)

    def figures(self) -> dict[str, float]:
        """min, median, p95, max, and the first row that has the longest. There is at least one value."""
        values = np.frombuffer(self.values, dtype=np.int64)
        median, p95 = np.percentile(values, [50, 95])
        longest = int(values.argmax())
        return {
            "min": int(values.min()),
            "median": float(median),
            "p95": float(p95),
            "max": int(values[longest]),
            "longest_row": self.rows[longest],
        }

    def histogram(self) -> list[tuple[int, int, int]]:
        """(from, to, count) of at most BINS equally wide bins of whole numbers, both ends included."""
        values = np.frombuffer(self.values, dtype=np.int64)
        low, high = int(values.min()), int(values.max())
        width = -(-(high - low + 1) // BINS)  # rounded up
        counts = np.bincount((values - low) // width)
        return [(low + i * width, min(low + (i + 1) * width - 1, high), int(n)) for i, n in enumerate(counts)]


@dataclass
class FileReport:
    """One file. `found` has, for each sort of finding, its texts and the rows of each text."""

    path: str
    kind: str
    columns: Columns = field(default_factory=Columns)
    sources: Counter[str] = field(default_factory=Counter)
    roles: Counter[str] = field(default_factory=Counter)  # messages by role
    turns: Counter[int] = field(default_factory=Counter)  # rows by number of messages
    responses: Counter[int] = field(default_factory=Counter)  # rows by number of responses
    finish_reasons: Counter[str] = field(default_factory=Counter)
    lengths: dict[str, Lengths] = field(default_factory=dict)
    scored: int = 0  # reference answers
    found: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    first_rows: dict[bytes, int] = field(default_factory=dict)  # by digest of the prompt

    @property
    def rows(self) -> int:
        return self.columns.rows

    def note(self, finding: str, row: int, text: str) -> None:
        self.found.setdefault(finding, {}).setdefault(text, []).append(row)

    def count(self, finding: str) -> int:
        return sum(len(rows) for rows in self.found.get(finding, {}).values())

    def to_dict(self) -> dict[str, Any]:
        """Everything, in JSON's types."""
        columns = self.columns
        return {
            "file": self.path,
            "kind": self.kind,
            "rows": self.rows,
            "columns": {n: {"types": columns.facts[n].types, "null": columns.nulls(n)} for n in columns.names()},
            "data_sources": self.sources,
            "roles": self.roles,
            "messages_per_row": self.turns,
            "responses_per_row": self.responses,
            "finish_reasons": self.finish_reasons,
            "lengths": {
                name: {"unit": lengths.unit, **lengths.figures(), "histogram": lengths.histogram()}
                for name, lengths in self.lengths.items()
            },
            "reference_answers_scored": self.scored,
            "problems": self._listed(problem=True),
            "warnings": self._listed(problem=False),
        }

    def _listed(self, problem: bool) -> dict[str, Any]:
        return {
            name: {"count": self.count(name), "what": [{"text": t, "rows": rows} for t, rows in texts.items()]}
            for name, texts in self.found.items()
            if FINDINGS[name].problem is problem
        }


@dataclass(frozen=True)
class Overlap:
    """Prompts that two files share: for each, the first row that has it in the one file and in the other."""

    files: tuple[str, str]
    rows: list[tuple[int, int]]


@dataclass
class Report:
    """All files that were checked together."""

    files: list[FileReport] = field(default_factory=list)

    @cached_property
    def overlaps(self) -> list[Overlap]:
        """All pairs of files that share prompts; asked for once the files are complete."""
        found = []
        for i, one in enumerate(self.files):
            for other in self.files[i + 1 :]:
                rows = [(row, other.first_rows[key]) for key, row in one.first_rows.items() if key in other.first_rows]
                if rows:
                    found.append(Overlap((one.path, other.path), rows))
        return found

    def problems(self) -> dict[str, int]:
        """What is wrong and how often; the check fails where there is any."""
        shared = sum(len(overlap.rows) for overlap in self.overlaps)
        return self._totals(problem=True) | ({OVERLAP: shared} if shared else {})

    def warnings(self) -> dict[str, int]:
        return self._totals(problem=False)

    def to_dict(self) -> dict[str, Any]:
        """Everything, in JSON's types."""
        shared = [{"files": o.files, "prompts": len(o.rows), "rows": o.rows} for o in self.overlaps]
        sums = {"problems": self.problems(), "warnings": self.warnings()}
        return {**sums, "files": [file.to_dict() for file in self.files], "overlap": shared}

    def _totals(self, problem: bool) -> dict[str, int]:
        names = [name for name, finding in FINDINGS.items() if finding.problem is problem]
        totals = {FINDINGS[name].title: sum(file.count(name) for file in self.files) for name in names}
        return {title: count for title, count in totals.items() if count}
