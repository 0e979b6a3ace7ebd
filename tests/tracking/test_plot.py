"""The learning curve: a real PNG with the right words on it, from a file or from points."""

import json

import matplotlib.figure
import pytest

from burnish.errors import CheckpointError, DataError
from burnish.tracking.plot import moving_average, plot_curve


@pytest.fixture
def figures(monkeypatch):
    """The figures that are saved, to look at what was drawn."""
    seen = []
    save = matplotlib.figure.Figure.savefig
    monkeypatch.setattr(
        matplotlib.figure.Figure, "savefig", lambda figure, *a, **k: (seen.append(figure), save(figure, *a, **k))[1]
    )
    return seen


def test_run_folder_becomes_a_png(tmp_path, figures):
    lines = [{"step": s, "critic/score/mean": s / 10} for s in range(1, 11)] + [{"step": 11, "val-core/x": 1.0}]
    lines.append({"step": 12, "critic/score/mean": "nan"})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    png = plot_curve(tmp_path, tmp_path / "plots" / "reward.png", title="arithmetic", before=0.31, after=0.97)
    assert png.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    axes = figures[0].axes[0]
    assert list(axes.lines[0].get_xdata()) == list(range(1, 11))
    assert axes.get_xlabel() == "step" and axes.get_ylabel() == "mean reward"
    assert axes.get_title(loc="left") == "arithmetic"
    assert axes.texts[0].get_text() == "held-out accuracy\nbefore 0.31   after 0.97"


def test_points_are_drawn_in_order(tmp_path, figures):
    plot_curve([(2, 0.2), (1, 0.1)], tmp_path / "a.png", label="accuracy")
    assert list(figures[0].axes[0].lines[0].get_ydata()) == [0.1, 0.2]
    plot_curve({5: 1.0}, tmp_path / "b.png")
    assert list(figures[1].axes[0].lines[0].get_xdata()) == [5]


def test_moving_average():
    assert moving_average([1.0, 2.0, 3.0, 4.0], 2) == [1.0, 1.5, 2.5, 3.5]


def test_nothing_to_plot_names_the_metrics_there_are(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "train/loss": 2.0}\n')
    with pytest.raises(DataError, match=r"no metric critic/score/mean to plot\. It holds: train/loss"):
        plot_curve(tmp_path, tmp_path / "a.png")
    with pytest.raises(DataError, match="no finite value"):
        plot_curve([(1, float("nan"))], tmp_path / "a.png")


def test_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot write .*file/a\.png: .*is a file, not a folder"):
        plot_curve([(1, 1.0)], tmp_path / "file" / "a.png")
