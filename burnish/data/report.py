"""What was found in data files: what `burnish data check` prints, and writes as JSON.

`data/check.py` fills a `FileReport` for each file; a `CheckReport` compares them. Of a row only its length and a digest
of its prompt are kept: a million rows take some hundred megabytes. Texts of files cannot command the terminal.
"""

from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.text import Text

from burnish.data.dataset import NO_SOURCE
from burnish.data.files import Columns
from burnish.literal import one_line

BINS = 8
SHOWN, ROWS = 5, 3  # of a finding: texts (or values, or pairs of rows), and rows for each
BAR = 32

Line = tuple[str, str]  # text and style

#: What the rows of a file are for, and what is checked in them.
KINDS = {
    "prompts": ("RL prompts", "fields as training reads them, what the scorer needs, reference answers"),
    "responses": ("responses of burnish generate", "as RL prompts, and the responses with what belongs to them"),
    "conversations": ("SFT conversations", "messages as burnish sft reads them, empty answers"),
    "pairs": ("preference pairs", "types of prompt, chosen and rejected, empty answers, equal sides"),
}


class Finding(NamedTuple):
    title: str
    problem: bool  # makes the check fail; anything else is a warning


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
    "special_tokens": Finding("rows with special tokens in their text", False),
    "mixed_types": Finding("columns of mixed types", False),
}

OVERLAP = "prompts in two files"

#: Columns with one value per response, and what each value is called when the response is shown.
PER_RESPONSE = {
    "scores": "score",
    "response_log_probs": "log-prob",
    "finish_reasons": "finished by",
    "response_lengths": "tokens",
    "num_turns": "turns",
    "num_tool_calls": "tool calls",
}


@dataclass
class Lengths:
    unit: str
    values: "array[int]" = field(default_factory=lambda: array("q"))
    rows: "array[int]" = field(default_factory=lambda: array("q"))  # the row of each value

    def add(self, row: int, value: int) -> None:
        self.rows.append(row)
        self.values.append(value)

    def summary(self) -> dict[str, float]:
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
    """One file. `found` has, for each kind of finding, its texts and the rows of each text."""

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
        columns = self.columns
        found = {
            name: {"count": self.count(name), "what": [{"text": t, "rows": rows} for t, rows in texts.items()]}
            for name, texts in self.found.items()
        }
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
                name: {"unit": lengths.unit, **lengths.summary(), "histogram": lengths.histogram()}
                for name, lengths in self.lengths.items()
            },
            "reference_answers_scored": self.scored,
            "problems": {name: each for name, each in found.items() if FINDINGS[name].problem},
            "warnings": {name: each for name, each in found.items() if not FINDINGS[name].problem},
        }


@dataclass(frozen=True)
class Overlap:
    """Prompts that two files share: for each, the first row that has it in the one file and in the other."""

    files: tuple[str, str]
    rows: list[tuple[int, int]]


@dataclass
class CheckReport:
    files: list[FileReport] = field(default_factory=list)

    @cached_property
    def overlaps(self) -> list[Overlap]:
        found = []
        for one, other in combinations(self.files, 2):
            rows = [(row, other.first_rows[key]) for key, row in one.first_rows.items() if key in other.first_rows]
            if rows:
                found.append(Overlap((one.path, other.path), rows))
        return found

    def problems(self) -> dict[str, int]:
        shared = sum(len(overlap.rows) for overlap in self.overlaps)
        return self._totals(problem=True) | ({OVERLAP: shared} if shared else {})

    def warnings(self) -> dict[str, int]:
        return self._totals(problem=False)

    def to_dict(self) -> dict[str, Any]:
        shared = [{"files": o.files, "prompts": len(o.rows), "rows": o.rows} for o in self.overlaps]
        sums = {"problems": self.problems(), "warnings": self.warnings()}
        return {**sums, "files": [file.to_dict() for file in self.files], "overlap": shared}

    def _totals(self, problem: bool) -> dict[str, int]:
        names = [name for name, finding in FINDINGS.items() if finding.problem is problem]
        totals = {FINDINGS[name].title: sum(file.count(name) for file in self.files) for name in names}
        return {title: count for title, count in totals.items() if count}


def print_report(report: CheckReport) -> None:
    console = Console()
    for text, style in lines(report):
        console.print(Text(one_line(text), style=style), soft_wrap=True)


def lines(report: CheckReport) -> Iterator[Line]:
    for file in report.files:
        yield from _file(file)
    for overlap in report.overlaps:
        one, other = overlap.files
        yield f"problem: prompts that are both in {one} and in {other} ({len(overlap.rows):,})", "red"
        rows = ", ".join(f"row {a} = row {b}" for a, b in overlap.rows[:SHOWN])
        yield f"  {rows}{_and_more(len(overlap.rows) - SHOWN)}", ""
    if len(report.files) > 1 and not report.overlaps:
        yield f"no prompt is in two of the {len(report.files)} files", ""
    yield summary(report), "bold red" if report.problems() else "bold green"


def summary(report: CheckReport) -> str:
    both = (report.problems(), report.warnings())
    problems, warnings = (", ".join(f"{title} ({count:,})" for title, count in found.items()) for found in both)
    rows = sum(file.rows for file in report.files)
    size = f"{how_many(len(report.files), 'file')}, {how_many(rows, 'row')}"
    wrong = f"problems: {problems}" if problems else "no problems"
    return f"{size}: {wrong}" + (f"; warnings: {warnings}" if warnings else "")


def _file(report: FileReport) -> Iterator[Line]:
    title, checks = KINDS[report.kind]
    yield f"{report.path}: {how_many(report.rows, 'row')}, {title}", "bold"
    yield f"  checked: {checks}", ""
    columns = report.columns
    names = columns.names()
    width = max(map(len, names))
    for name in names:
        nulls = columns.nulls(name)
        types = " or ".join(columns.facts[name].types) or "no values"
        where = f", null in {nulls:,} of {report.rows:,}" if nulls else ""
        more = " (more fields than are listed)" if name in columns.cut else ""
        yield f"    {name:<{width}}  {types}{where}{more}", ""
    if report.kind in ("prompts", "responses") or set(report.sources) != {NO_SOURCE}:
        yield f"  data sources: {_counted(report.sources)}", ""
    if report.roles:
        yield f"  messages: {_counted(report.roles)}; per row: {_counted(report.turns)}", ""
    if report.responses:
        yield f"  responses per row: {_counted(report.responses)}; finished by: {_counted(report.finish_reasons)}", ""
    yield from _lengths(report)
    if report.scored:
        fail = report.count("failing_reference")
        yield f"  reference answers: {report.scored:,} scored, {f'{fail:,} fail' if fail else 'all pass'}", ""
    for name, finding in FINDINGS.items():
        if name in report.found:
            yield from _finding(report, name, finding)
    yield "", ""


def _lengths(report: FileReport) -> Iterator[Line]:
    for name, lengths in report.lengths.items():
        values = lengths.summary()
        shown = " · ".join(f"{key} {values[key]:,.0f}" for key in ("min", "median", "p95", "max"))
        yield f"  {name} length in {lengths.unit}: {shown} (row {values['longest_row']})", ""
        bins = lengths.histogram()
        width, most = len(f"{bins[-1][1]:,}"), max(count for _, _, count in bins)
        for low, high, count in bins:
            bar = "█" * round(BAR * count / most) or "▏" * bool(count)
            yield f"    {low:>{width},} – {high:>{width},}  {bar} {count:,}".rstrip(), ""


def _finding(report: FileReport, name: str, finding: Finding) -> Iterator[Line]:
    texts = report.found[name]
    longest = ""
    if name == "over_long":
        lengths = report.lengths.get("prompt") or report.lengths["conversation"]
        values = lengths.summary()
        longest = f"; the longest has {values['max']:,} {lengths.unit} (row {values['longest_row']})"
    word, style = ("problem", "red") if finding.problem else ("warning", "yellow")
    yield f"  {word}: {finding.title} ({report.count(name):,}){longest}", style
    for text, rows in list(texts.items())[:SHOWN]:
        numbers = ", ".join(map(str, rows[:ROWS])) + _and_more(len(rows) - ROWS)
        yield f"    row{'s' * (len(rows) > 1)} {numbers}: {text}", ""
    if left := sum(len(rows) for rows in list(texts.values())[SHOWN:]):
        yield f"    and {how_many(left, 'more row')}", ""


def how_many(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'s' * (number != 1)}"


def _counted(counts: Counter[Any]) -> str:
    listed = ", ".join(f"{value} ({count:,})" for value, count in counts.most_common(2 * SHOWN))
    return (listed or "not recorded") + _and_more(len(counts) - 2 * SHOWN)


def _and_more(count: int) -> str:
    return f" and {count:,} more" if count > 0 else ""
