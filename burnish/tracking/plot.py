"""The learning curve of a run as a PNG: its reward over steps, with the held-out accuracy before and after.

Draws with matplotlib's Agg canvas directly: no display is needed and no global plotting state is touched.
"""

import math
from pathlib import Path

from burnish.errors import CheckpointError, DataError
from burnish.tracking.disk import disk_problem
from burnish.tracking.jsonl import read_metrics

REWARD = "critic/score/mean"
INK, FAINT = "#1f4e79", "#9db8d2"
SMOOTH = 5  # steps of the moving average that is drawn over the points


def plot_curve(folder: str | Path, png: str | Path, *, title: str, before: float, after: float) -> Path:
    """Draw the mean reward of the run in `folder`; `before` and `after` are held-out accuracies."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    records = read_metrics(folder)
    if not any(REWARD in record for record in records):
        known = sorted({name for record in records for name in record} - {"step"})
        raise DataError(f"{folder}: no metric {REWARD} to plot. It holds: {', '.join(known) or 'nothing yet'}")
    points = sorted((r["step"], r[REWARD]) for r in records if math.isfinite(r.get(REWARD, math.nan)))
    if not points:
        raise DataError(f"no finite value of {REWARD} to plot")
    steps, values = [s for s, _ in points], [v for _, v in points]
    figure = Figure(figsize=(7, 4), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    if len(points) > SMOOTH:
        windows = [values[max(0, i - SMOOTH + 1) : i + 1] for i in range(len(values))]
        means = [sum(window) / len(window) for window in windows]
        axes.plot(steps, values, color=FAINT, linewidth=1, label="each step")
        axes.plot(steps, means, color=INK, linewidth=2, label=f"mean of {SMOOTH} steps")
        axes.legend(frameon=False, loc="lower right")
    else:
        axes.plot(steps, values, color=INK, linewidth=2, marker="o" if len(points) == 1 else None)
    axes.set_xlabel("step")
    axes.set_ylabel("mean reward")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
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
