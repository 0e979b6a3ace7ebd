"""Python logging from BURNISH_LOGGING_LEVEL, and the step timer."""

import logging

import pytest

from burnish.errors import ConfigError
from burnish.tracking import timer
from burnish.tracking.logs import configure_logging
from burnish.tracking.timer import timed


@pytest.mark.parametrize(
    ("value", "level"), [("debug", logging.DEBUG), ("WARN", logging.WARNING), (None, logging.INFO)]
)
def test_the_environment_sets_the_level(monkeypatch, value, level):
    if value:
        monkeypatch.setenv("BURNISH_LOGGING_LEVEL", value)
    configure_logging()
    configure_logging()
    logger = logging.getLogger("burnish")
    assert logger.level == level and len(logger.handlers) == 1


def test_log_lines_go_to_stderr_as_they_are(capsys):
    configure_logging("INFO")
    logging.getLogger("burnish.trainer").info("kept [2] of %d", 3)
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.endswith("INFO burnish.trainer: kept [2] of 3\n")


def test_an_unknown_level_names_those_there_are(monkeypatch):
    monkeypatch.setenv("BURNISH_LOGGING_LEVEL", "loud")
    with pytest.raises(ConfigError, match="BURNISH_LOGGING_LEVEL=loud: no such level. There are: DEBUG, INFO"):
        configure_logging()


def test_a_timer_adds_up_and_counts_a_block_that_raises(monkeypatch):
    ticks = iter([10.0, 11.5, 20.0, 20.25])
    monkeypatch.setattr(timer.time, "perf_counter", lambda: next(ticks))
    metrics: dict[str, float] = {}
    with timed(metrics, "gen"):
        pass
    with pytest.raises(ValueError), timed(metrics, "gen"):
        raise ValueError
    assert metrics == {"timing_s/gen": 1.75}
