"""Curves of a run as a PNG: its reward, or other metrics, over steps, with the held-out accuracy before and after.

Draws with matplotlib's Agg canvas directly: no display is needed and no global plotting state is touched.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from burnish.errors import CheckpointError, DataError
from burnish.tracking.disk import disk_problem
from burnish.tracking.jsonl import read_metrics

REWARD = "critic/score/mean"
INK, FAINT = "#1f4e79", "#9db8d2"
SMOOTH = 5  # steps of the moving average that is drawn over the points


def plot_curve(
    folder: str | Path,
    png: str | Path,
    *,
    title: str,
    metrics: Sequence[str] = (REWARD,),
    before: float | None = None,
    after: float | None = None,
) -> Path:
    """Draw metrics of the run in `folder`; `before` and `after` are held-out accuracies."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    records = read_metrics(folder)
    figure = Figure(figsize=(7, 4), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for metric in metrics:
        steps, values = _points(folder, records, metric)
        if len(metrics) > 1:
            axes.plot(steps, values, linewidth=2, label=metric)
        elif len(values) > SMOOTH:
            windows = [values[max(0, i - SMOOTH + 1) : i + 1] for i in range(len(values))]
            means = [sum(window) / len(window) for window in windows]
            axes.plot(steps, values, color=FAINT, linewidth=1, label="each step")
            axes.plot(steps, means, color=INK, linewidth=2, label=f"mean of {SMOOTH} steps")
        else:
            axes.plot(steps, values, color=INK, linewidth=2, marker="o" if len(values) == 1 else None)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(frameon=False, loc="lower right")
    axes.set_xlabel("step")
    axes.set_ylabel("mean reward" if metrics[0] == REWARD else metrics[0])
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if before is not None and after is not None:
        text = f"held-out accuracy\nbefore {before:.2f}   after {after:.2f}"
        box = {"boxstyle": "round,pad=0.4", "facecolor": "white", "edgecolor": FAINT}
        axes.annotate(text, xy=(0.02, 0.97), xycoords="axes fraction", va="top", fontsize=10, bbox=box)
    axes.set_title(title, loc="left")
    png = Path(png).expanduser()
    try:
        png.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(png, format="png")
    except OSError as error:
        raise CheckpointError(f"cannot write {png}: {disk_problem(error)}") from error
    return png


def _points(folder: str | Path, records: Sequence[Mapping[str, float]], metric: str) -> tuple[list[float], list[float]]:
    """Steps and finite values of a metric."""
    if not any(metric in record for record in records):
        known = sorted({name for record in records for name in record} - {"step"})
        raise DataError(f"{folder}: no metric {metric} to plot. It holds: {', '.join(known) or 'nothing yet'}")
    points = sorted((r["step"], r[metric]) for r in records if math.isfinite(r.get(metric, math.nan)))
    if not points:
        raise DataError(f"no finite value of {metric} to plot")
    return [step for step, _ in points], [value for _, value in points]
