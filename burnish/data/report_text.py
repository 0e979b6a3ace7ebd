"""The report of `burnish data check` as text: what is in each file, what is wrong, and a last line that sums it up.

A finding names a few of its rows and their number; the JSON has them all. Texts of the files are printed as they are:
nothing in them is markup, commands the terminal or begins a line of its own.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.text import Text

from burnish.data.report import FINDINGS, KINDS, FileReport, Finding, Overlap, Report
from burnish.data.row import NO_SOURCE
from burnish.literal import one_line

SHOWN, ROWS = 5, 3  # of a finding: texts (or values, or pairs of rows), and rows for each
BAR = 32

Line = tuple[str, str]  # text and style


def print_report(report: Report) -> None:
    console = Console()
    for text, style in lines(report):
        console.print(Text(one_line(text), style=style), soft_wrap=True)


def lines(report: Report) -> Iterator[Line]:
    """The whole report."""
    for file in report.files:
        yield from _file(file)
    for overlap in report.overlaps:
        yield from _overlap(overlap)
    if len(report.files) > 1 and not report.overlaps:
        yield f"no prompt is in two of the {len(report.files)} files", ""
    yield summary(report), "bold red" if report.problems() else "bold green"


def summary(report: Report) -> str:
    """The last line."""
    problems, warnings = (
        ", ".join(f"{title} ({count:,})" for title, count in found.items())
        for found in (report.problems(), report.warnings())
    )
    rows = sum(file.rows for file in report.files)
    size = f"{how_many(len(report.files), 'file')}, {how_many(rows, 'row')}"
    wrong = f"problems: {problems}" if problems else "no problems"
    return f"{size}: {wrong}" + (f"; warnings: {warnings}" if warnings else "")


def _file(report: FileReport) -> Iterator[Line]:
    """The lines about one file: what is in it, then what is wrong."""
    kind = KINDS[report.kind]
    yield f"{report.path}: {how_many(report.rows, 'row')}, {kind.title}", "bold"
    yield f"  checked: {kind.checks}", ""
    yield from _columns(report)
    if report.kind in ("prompts", "responses") or set(report.sources) != {NO_SOURCE}:
        yield f"  data sources: {_counted(report.sources)}", ""
    if report.roles:
        yield f"  messages: {_counted(report.roles)}; in a row: {_counted(report.turns)}", ""
    if report.responses:
        yield f"  responses in a row: {_counted(report.responses)}; finished by: {_counted(report.finish_reasons)}", ""
    yield from _lengths(report)
    if report.scored:
        fail = report.count("failing_reference")
        yield f"  reference answers: {report.scored:,} scored, {f'{fail:,} fail' if fail else 'none fails'}", ""
    for name, finding in FINDINGS.items():
        if name in report.found:
            yield from _finding(report, name, finding)
    yield "", ""


def _overlap(overlap: Overlap) -> Iterator[Line]:
    one, other = overlap.files
    yield f"problem: prompts that are both in {one} and in {other} ({len(overlap.rows):,})", "red"
    rows = ", ".join(f"row {a} = row {b}" for a, b in overlap.rows[:SHOWN])
    yield f"  {rows}{_and_more(len(overlap.rows) - SHOWN)}", ""


def _columns(report: FileReport) -> Iterator[Line]:
    columns = report.columns
    names = columns.names()
    width = max(map(len, names))
    for name in names:
        nulls = columns.nulls(name)
        types = " or ".join(columns.facts[name].types) or "no values"
        where = f", null in {nulls:,} of {report.rows:,}" if nulls else ""
        more = " (more fields than are listed)" if name in columns.cut else ""
        yield f"    {name:<{width}}  {types}{where}{more}", ""


def _lengths(report: FileReport) -> Iterator[Line]:
    for name, lengths in report.lengths.items():
        figures = lengths.figures()
        told = " · ".join(f"{key} {figures[key]:,.0f}" for key in ("min", "median", "p95", "max"))
        yield f"  {name} length in {lengths.unit}: {told} (row {figures['longest_row']})", ""
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
        figures = lengths.figures()
        longest = f"; the longest has {figures['max']:,} {lengths.unit} (row {figures['longest_row']})"
    word, style = ("problem", "red") if finding.problem else ("warning", "yellow")
    yield f"  {word}: {finding.title} ({report.count(name):,}){longest}", style
    for text, rows in list(texts.items())[:SHOWN]:
        numbers = ", ".join(map(str, rows[:ROWS])) + _and_more(len(rows) - ROWS)
        yield f"    row{'s' * (len(rows) > 1)} {numbers}: {text}", ""
    left = sum(len(rows) for rows in list(texts.values())[SHOWN:])
    if left:
        yield f"    and {how_many(left, 'more row')}", ""


def how_many(number: int, thing: str) -> str:
    """`1 row`, `1,300 rows`."""
    return f"{number:,} {thing}{'s' * (number != 1)}"


def _counted(counts: Counter[Any]) -> str:
    told = ", ".join(f"{value} ({count:,})" for value, count in counts.most_common(2 * SHOWN))
    return (told or "nothing said") + _and_more(len(counts) - 2 * SHOWN)


def _and_more(count: int) -> str:
    return f" and {count:,} more" if count > 0 else ""
