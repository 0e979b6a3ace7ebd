"""The metrics of `burnish eval`: from scored responses to a table for people and a JSON file for programs.

Statistics are those of validation in training, by the same code (`algorithms/validation.py`); a row is a question, and
its number is the question's id.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from burnish.algorithms.validation import Statistics, process_validation_metrics, tracked_names
from burnish.data.report import how_many
from burnish.literal import json_text, one_line
from burnish.rewards.contract import FunctionSpec, ScoreResult
from burnish.tracking.disk import write_atomically

REWARD = "reward"  # the variable that is the score
KINDS = ("mean", "std", "best", "worst", "maj")  # columns of the table


@dataclass(frozen=True)
class Sample:
    """One response: its row, its data source, its result (None: it could not be scored and was dropped)."""

    row: int
    data_source: str
    result: ScoreResult | None

    def variables(self) -> dict[str, Any]:
        """What the scorer gave, under the names of validation in training."""
        return {} if self.result is None else {**self.result.info, REWARD: self.result.score}


@dataclass(frozen=True)
class SourceSummary:
    """One data source. `mean` is over its rows, of each row's mean `core`: mean@n where every row has n responses."""

    name: str
    rows: int
    responses: int
    scored: int
    responses_per_row: tuple[int, int]  # fewest and most
    core: str | None
    mean: float | None
    statistics: dict[str, Statistics]  # by variable


@dataclass(frozen=True)
class Evaluation:
    """All results. `metrics` are the statistics by the names they have in training."""

    file: str
    scored_by: FunctionSpec
    failures: dict[str, Any]  # responses that could not be scored, those that were dropped, and why
    sources: list[SourceSummary]
    metrics: dict[str, float]


def summarise(file: str, scored_by: FunctionSpec, samples: Sequence[Sample], failures: dict[str, Any]) -> Evaluation:
    scored = [sample for sample in samples if sample.result is not None]
    variables = [sample.variables() for sample in scored]
    names = dict.fromkeys(name for given in variables for name in given)
    statistics = process_validation_metrics(
        [sample.data_source for sample in scored],
        [sample.row for sample in scored],
        {name: [given.get(name) for given in variables] for name in names},
    )
    members: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        members[sample.data_source].append(sample)
    sources = [_source(name, members[name], statistics.get(name, {})) for name in members]
    return Evaluation(file, scored_by, failures, sources, tracked_names(statistics))


def _source(name: str, samples: Sequence[Sample], statistics: dict[str, Statistics]) -> SourceSummary:
    core = next((variable for variable in ("acc", REWARD) if variable in statistics), None)
    counts: Counter[int] = Counter(sample.row for sample in samples)
    values: dict[int, list[float]] = defaultdict(list)  # of the core variable, by row
    for sample in samples:
        value = sample.variables().get(core or REWARD)
        if value is not None:
            values[sample.row].append(value)
    means = [np.mean(np.asarray(of_row, dtype=np.float64)) for of_row in values.values()]
    return SourceSummary(
        name=name,
        rows=len(counts),
        responses=len(samples),
        scored=sum(sample.result is not None for sample in samples),
        responses_per_row=(min(counts.values()), max(counts.values())),
        core=core,
        mean=float(np.mean(means)) if means else None,
        statistics=statistics,
    )


def print_tables(evaluation: Evaluation) -> None:
    """A heading and a table per data source. The cell in row k of column best is best@k/mean."""
    console = Console()

    def line(text: str) -> None:
        console.print(Text(one_line(text)), soft_wrap=True)

    rows, responses = (sum(getattr(s, name) for s in evaluation.sources) for name in ("rows", "responses"))
    line(f"{evaluation.file}: {how_many(rows, 'row')}, {how_many(responses, 'response')}, scored by {_by(evaluation)}")
    for source in evaluation.sources:
        line("")
        fewest, most = source.responses_per_row
        each = how_many(most, "response") if fewest == most else f"{fewest} to {most} responses"
        lost = source.responses - source.scored
        parts = [f"{source.name}: {how_many(source.rows, 'row')}", f"{each} each" if source.rows > 1 else each]
        parts += [f"{lost} of {source.responses} skipped"] if lost else []
        parts.append("no score" if source.mean is None else f"mean {source.core} {_cell(source.mean)}")
        line(", ".join(parts))
        if source.core is not None:
            console.print(_table(source))
    line("")
    odd = [name for name, value in evaluation.metrics.items() if not math.isfinite(value)]
    if odd:
        line(f"not finite, so null in the JSON file: {how_many(len(odd), 'metric')}, the first is {odd[0]}")


def _table(source: SourceSummary) -> Table:
    """The core variable at every size, the others at the sizes that rows have."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("variable", overflow="fold")
    table.add_column("@k", justify="right", no_wrap=True)  # a narrow terminal folds names before it cuts numbers
    kinds = [k for k in KINDS if any(s.startswith(f"{k}@") for name in source.statistics.values() for s in name)]
    for kind in kinds:
        table.add_column(kind, justify="right", no_wrap=True)
    for variable in sorted(source.statistics, key=lambda name: name != source.core):
        statistics, label = source.statistics[variable], variable
        for size in sorted({int(re.findall(r"@(\d+)", name)[0]) for name in statistics}):
            if variable != source.core and f"mean@{size}" not in statistics:
                continue
            values = [statistics.get(f"{k}@{size}", statistics.get(f"{k}@{size}/mean")) for k in kinds]
            cells = ["" if value is None else _cell(value) for value in values]
            table.add_row(Text(one_line(label)), str(size), *cells)
            label = ""
    return table


def _cell(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 1e5 else f"{value:.6g}"


def _by(evaluation: Evaluation) -> str:
    return evaluation.scored_by.label if evaluation.scored_by.is_custom else "the built-in scorers"


def write_json(evaluation: Evaluation, path: Path) -> None:
    """All metrics, in one file that is written whole or not at all. JSON has no NaN: such a value is null."""
    core = {name: value for name, value in evaluation.metrics.items() if name.startswith("val-core/")}
    results = {
        "file": evaluation.file,
        "scored_by": {"function": _by(evaluation), "reward_kwargs": dict(evaluation.scored_by.reward_kwargs)},
        "rows": sum(source.rows for source in evaluation.sources),
        "responses": sum(source.responses for source in evaluation.sources),
        "scored": sum(source.scored for source in evaluation.sources),
        "failures": evaluation.failures,
        "data_sources": {
            source.name: {name: value for name, value in asdict(source).items() if name != "name"}
            for source in evaluation.sources
        },
        "metrics": core,
    }
    text = json_text(_finite(results), indent=2, allow_nan=False)
    write_atomically(path, [text, "\n"], "data.output_path")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
