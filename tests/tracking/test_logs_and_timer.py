"""Python logging from BURNISH_LOGGING_LEVEL, and the step timer."""

import io
import logging
import sys

import pytest
import rich
from rich.console import Console

from burnish.errors import ConfigError
from burnish.tracking import timer
from burnish.tracking.logs import configure_logging
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
