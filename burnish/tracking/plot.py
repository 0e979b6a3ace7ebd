"""Curves of runs as a PNG: metrics over steps, one panel each, with a line per run.

Draws with matplotlib's Agg canvas directly: no display is needed and no global plotting state is touched.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from burnish.errors import CheckpointError, DataError
from burnish.literal import one_line
from burnish.tracking.console import COLUMNS
from burnish.tracking.disk import disk_problem
from burnish.tracking.jsonl import read_metrics

REWARD = "critic/score/mean"
INK, FAINT = "#1f4e79", "#9db8d2"
SMOOTH = 5  # steps of the moving average that is drawn over the points
PANELS = 12  # by default
NOT_WATCHED = ("lr", "tok/s", "new")  # columns of the console


def plot_curve(
    runs: str | Path | Mapping[str, str | Path],
    png: str | Path,
    *,
    title: str,
    metrics: Sequence[str] = (REWARD,),
    before: float | None = None,
    after: float | None = None,
) -> Path:
    """Draw metrics of the run in a folder, or of several, by name; `before` and `after` are held-out accuracies."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    folders = runs if isinstance(runs, Mapping) else {"": runs}
    records = {name: _read(folder) for name, folder in folders.items()}
    columns = 1 if len(metrics) == 1 else 2
    rows = -(-len(metrics) // columns)
    figure = Figure(figsize=(7, 4) if columns == 1 else (11, 2.8 * rows), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    for place, metric in enumerate(metrics, start=1):
        axes = figure.add_subplot(rows, columns, place)
        there = [name for name in folders if any(metric in record for record in records[name])]
        for name in there or list(folders)[:1]:
            _draw(axes, *_points(folders[name], records[name], metric), _plain(name), is_alone=len(folders) == 1)
        if axes.get_legend_handles_labels()[1] and place == 1:
            axes.legend(frameon=False, loc="lower right")
        axes.set_xlabel("step")
        axes.set_ylabel("mean reward" if metric == REWARD else _plain(metric))
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    first = figure.axes[0]
    if before is not None and after is not None:
        text = f"held-out accuracy\nbefore {before:.2f}   after {after:.2f}"
        box = {"boxstyle": "round,pad=0.4", "facecolor": "white", "edgecolor": FAINT}
        first.annotate(text, xy=(0.02, 0.97), xycoords="axes fraction", va="top", fontsize=10, bbox=box)
    first.set_title(_plain(title), loc="left")
    png = Path(png).expanduser()
    try:
        png.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(png, format="png")
    except OSError as error:
        raise CheckpointError(f"cannot write {png}: {disk_problem(error)}") from error
    return png


def usual_metrics(*folders: str | Path) -> list[str]:
    """Those that one watches, of the metrics that any of the runs has: validation, the columns of the console, and each
    reward function where there are several."""
    records = [record for folder in folders for record in _read(folder)]
    numbers = {name: value for record in records for name, value in record.items() if math.isfinite(value)}
    shown = [column.metric(numbers) for column in COLUMNS if column.heading not in NOT_WATCHED]
    validation = [name for name in numbers if name.startswith("val-core/")]
    functions = [name for name in numbers if name.startswith("reward/") and name.endswith("/mean")]
    found = list(dict.fromkeys(name for name in (*shown[:1], *validation, *functions, *shown[1:]) if name))
    return found[:PANELS] or [REWARD]


def _read(folder: str | Path) -> list[dict[str, float]]:
    try:
        return read_metrics(folder)
    except FileNotFoundError:
        raise DataError(f"{folder} has no metrics to plot: no step is logged yet") from None


def _draw(axes: Any, steps: list[float], values: list[float], name: str, is_alone: bool) -> None:
    """The points, faint, with a moving average where there are many; not where they are far apart, as validations."""
    windows = [values[bisect_right(steps, step - SMOOTH) : i + 1] for i, step in enumerate(steps)]
    if len(values) <= SMOOTH or max(map(len, windows)) == 1:
        marker = "o" if len(values) == 1 else None
        axes.plot(steps, values, linewidth=2, marker=marker, label=name or None, color=INK if is_alone else None)
        return
    means = [sum(window) / len(window) for window in windows]
    labels = ("each step", f"mean of {SMOOTH} steps") if is_alone else (None, name)
    (points,) = axes.plot(steps, values, linewidth=1, label=labels[0], color=FAINT if is_alone else None)
    points.set_alpha(None if is_alone else 0.3)
    axes.plot(steps, means, linewidth=2, label=labels[1], color=INK if is_alone else points.get_color())


def _plain(text: str) -> str:
    """A name with a $ is no formula."""
    return one_line(text).replace("$", r"\$")


def _points(folder: str | Path, records: Sequence[Mapping[str, float]], metric: str) -> tuple[list[float], list[float]]:
    """Steps and finite values of a metric."""
    if not any(metric in record for record in records):
        known = sorted({name for record in records for name in record} - {"step"})
        raise DataError(f"{folder}: no metric {metric} to plot. It holds: {', '.join(known) or 'nothing yet'}")
    points = sorted((r["step"], r[metric]) for r in records if math.isfinite(r.get(metric, math.nan)))
    if not points:
        raise DataError(f"no finite value of {metric} to plot")
    return [step for step, _ in points], [value for _, value in points]
