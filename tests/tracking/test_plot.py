"""The learning curve: a real PNG with the right words on it."""

import json

import matplotlib.figure
import pytest

from burnish.errors import CheckpointError, DataError
from burnish.tracking.plot import plot_curve


@pytest.fixture
def figures(monkeypatch):
    """The figures that are saved, to look at what was drawn."""
    seen = []
    save = matplotlib.figure.Figure.savefig
    monkeypatch.setattr(
        matplotlib.figure.Figure, "savefig", lambda figure, *a, **k: (seen.append(figure), save(figure, *a, **k))[1]
    )
    return seen


def plot(folder, lines, png="plots/reward.png"):
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return plot_curve(folder, folder / png, title="arithmetic", before=0.31, after=0.97)


def test_run_folder_becomes_a_png(tmp_path, figures):
    lines = [{"step": s, "critic/score/mean": s / 10} for s in range(1, 11)] + [{"step": 11, "val-core/x": 1.0}]
    lines.append({"step": 12, "critic/score/mean": "nan"})
    assert plot(tmp_path, lines).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    axes = figures[0].axes[0]
    assert list(axes.lines[0].get_xdata()) == list(range(1, 11))
    assert list(axes.lines[1].get_ydata())[:3] == pytest.approx([0.1, 0.15, 0.2]), "a moving average"
    assert axes.lines[1].get_ydata()[-1] == pytest.approx(0.8)
    assert axes.get_xlabel() == "step" and axes.get_ylabel() == "mean reward"
    assert axes.get_title(loc="left") == "arithmetic"
    assert axes.texts[0].get_text() == "held-out accuracy\nbefore 0.31   after 0.97"
    plot(tmp_path, [lines[1], lines[0]])
    (line,) = figures[1].axes[0].lines
    assert list(line.get_ydata()) == [0.1, 0.2], "few points are drawn as they are, in order"


def test_nothing_to_plot_names_the_metrics_there_are_and_errors_the_place(tmp_path):
    with pytest.raises(DataError, match=r"no metric critic/score/mean to plot\. It holds: train/loss"):
        plot(tmp_path, [{"step": 1, "train/loss": 2.0}])
    with pytest.raises(DataError, match="no finite value"):
        plot(tmp_path, [{"step": 1, "critic/score/mean": "nan"}])
    with pytest.raises(CheckpointError, match=r"cannot write .*metrics\.jsonl/a\.png: .*is a file, not a folder"):
        plot(tmp_path, [{"step": 1, "critic/score/mean": 1.0}], "metrics.jsonl/a.png")
