"""The learning curve as a PNG: reward over steps, with the accuracy before and after where it is known.

Draws with matplotlib's Agg canvas directly: no display is needed and no global plotting state is touched.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from burnish.errors import CheckpointError, DataError
from burnish.tracking.disk import disk_problem
from burnish.tracking.jsonl import read_metrics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Series = Sequence[tuple[int, float]]
INK, FAINT = "#1f4e79", "#9db8d2"


def plot_curve(
    source: str | Path | Series | Mapping[int, float],
    png: str | Path,
    *,
    metric: str = "critic/score/mean",
    label: str = "mean reward",
    title: str = "",
    before: float | None = None,
    after: float | None = None,
    smooth: int = 5,
) -> Path:
    """Draw one metric over the steps.

    `source` is a run folder, its metrics.jsonl, or the points themselves. `before` and `after` are held-out
    accuracies. `smooth` is the number of steps of the moving average drawn over the points; 1 draws none.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    points = read_points(source, metric)
    steps, values = [s for s, _ in points], [v for _, v in points]
    figure = Figure(figsize=(7, 4), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    if smooth > 1 and len(points) > smooth:
        axes.plot(steps, values, color=FAINT, linewidth=1, label="each step")
        axes.plot(steps, moving_average(values, smooth), color=INK, linewidth=2, label=f"mean of {smooth} steps")
        axes.legend(frameon=False, loc="lower right")
    else:
        axes.plot(steps, values, color=INK, linewidth=2, marker="o" if len(points) == 1 else None)
    axes.set_xlabel("step")
    axes.set_ylabel(label)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if before is not None and after is not None:
        axes.annotate(
            f"held-out accuracy\nbefore {before:.2f}   after {after:.2f}",
            xy=(0.02, 0.97),
            xycoords="axes fraction",
            va="top",
            fontsize=10,
            bbox={"boxstyle": "round,pad=0.4", "facecolor": "white", "edgecolor": FAINT},
        )
    axes.set_title(title or f"{label} by step", loc="left")
    return save(figure, Path(png).expanduser())


def read_points(source: str | Path | Series | Mapping[int, float], metric: str) -> list[tuple[int, float]]:
    """The finite points of a metric, in order of step."""
    if isinstance(source, str | Path):
        records = read_metrics(source)
        points = [(int(record["step"]), record[metric]) for record in records if metric in record]
        if not points:
            known = sorted({name for record in records for name in record} - {"step"})
            raise DataError(f"{source}: no metric {metric} to plot. It holds: {', '.join(known) or 'nothing yet'}")
    else:
        points = list(source.items()) if isinstance(source, Mapping) else list(source)
    finite = sorted((step, float(value)) for step, value in points if math.isfinite(value))
    if not finite:
        raise DataError(f"no finite value of {metric} to plot")
    return finite


def moving_average(values: Sequence[float], width: int) -> list[float]:
    """The mean of each value and up to `width - 1` values before it."""
    windows = [values[max(0, i - width + 1) : i + 1] for i in range(len(values))]
    return [sum(window) / len(window) for window in windows]


def save(figure: "Figure", png: Path) -> Path:
    try:
        png.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(png, format="png")
    except OSError as error:
        raise CheckpointError(f"cannot write {png}: {disk_problem(error)}") from error
    return png
