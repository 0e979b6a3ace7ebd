"""Python logging from BURNISH_LOGGING_LEVEL, the step timer, and the learning curve as a PNG."""

import io
import json
import logging
import sys

import matplotlib.figure
import pytest
import rich
from rich.console import Console

from burnish.errors import CheckpointError, ConfigError, DataError
from burnish.tracking import timer
from burnish.tracking.logs import configure_logging
from burnish.tracking.plot import plot_curve
from burnish.tracking.timer import timed


@pytest.mark.parametrize(
    ("value", "level"), [("debug", logging.DEBUG), ("WARN", logging.WARNING), (None, logging.INFO)]
)
def test_environment_sets_the_level(monkeypatch, value, level):
    if value:
        monkeypatch.setenv("BURNISH_LOGGING_LEVEL", value)
    configure_logging()
    configure_logging()
    logger = logging.getLogger("burnish")
    assert logger.level == level and len(logger.handlers) == 1
    monkeypatch.setenv("VERL_LOGGING_LEVEL", "ERROR")
    configure_logging()
    assert logger.level == (level if value else logging.ERROR), "burnish's own variable counts, else verl's"
    monkeypatch.setenv("BURNISH_LOGGING_LEVEL", "loud")
    with pytest.raises(ConfigError, match="BURNISH_LOGGING_LEVEL=loud: no such level. There are: DEBUG, INFO"):
        configure_logging()


def test_log_lines_go_to_stderr_as_they_are(capsys):
    configure_logging("INFO")
    logging.getLogger("burnish.trainer").info("kept [2] of %d", 3)
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.endswith("INFO burnish.trainer: kept [2] of 3\n")


@pytest.fixture
def terminal(monkeypatch):
    """A terminal of 30 columns; what is shown on it."""
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=30, color_system=None)
    monkeypatch.setattr(rich, "get_console", lambda: console)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    return stream


def test_log_lines_on_a_terminal_are_the_message_unwrapped(terminal):
    configure_logging("INFO")
    logger = logging.getLogger("burnish.trainer")
    logger.info("kept [2] of %d, which is a line longer than the terminal is wide", 3)
    logger.warning("[red] :smile: %s", "x=1")
    logger.debug("unseen")
    try:
        raise ValueError("oops")
    except ValueError:
        logger.exception("it broke")
    shown, _, traceback = terminal.getvalue().partition("Traceback")
    kept = "· kept [2] of 3, which is a line longer than the terminal is wide\n"
    assert shown == kept + "warning: [red] :smile: x=1\nerror: it broke\n"
    assert traceback.endswith("ValueError: oops\n")


@pytest.mark.parametrize("watched", [True, False])
def test_quoted_text_cannot_control_the_terminal(terminal, capsys, monkeypatch, watched):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: watched, raising=False)
    configure_logging("INFO")
    logging.getLogger("burnish.data").warning("no column %s\n  at all", "\x1b[2J\u202ex")
    text = terminal.getvalue() if watched else capsys.readouterr().err
    assert text.endswith("no column \\x1b[2J\\u202ex\n  at all\n") and "\x1b" not in text


def test_timer_adds_up_and_counts_a_block_that_raises(monkeypatch):
    ticks = iter([10.0, 11.5, 20.0, 20.25])
    monkeypatch.setattr(timer.time, "perf_counter", lambda: next(ticks))
    metrics: dict[str, float] = {}
    with timed(metrics, "gen"):
        pass
    with pytest.raises(ValueError), timed(metrics, "gen"):
        raise ValueError
    assert metrics == {"timing_s/gen": 1.75}


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
    plot(tmp_path, [{"step": s, "critic/score/mean": s / 100} for s in range(0, 100, 10)])
    assert len(figures[2].axes[0].lines) == 1, "and so are points that are far apart: no mean over fifty steps"


def test_nothing_to_plot_names_the_metrics_there_are_and_errors_the_place(tmp_path):
    with pytest.raises(DataError, match=r"no metric critic/score/mean to plot\. It holds: train/loss"):
        plot(tmp_path, [{"step": 1, "train/loss": 2.0}])
    with pytest.raises(DataError, match="no finite value"):
        plot(tmp_path, [{"step": 1, "critic/score/mean": "nan"}])
    with pytest.raises(CheckpointError, match=r"cannot write .*metrics\.jsonl/a\.png: .*is a file, not a folder"):
        plot(tmp_path, [{"step": 1, "critic/score/mean": 1.0}], "metrics.jsonl/a.png")
