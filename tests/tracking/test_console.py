"""The console: plain lines for log files, a table for terminals, the figures one watches and the time left."""

import io

import pytest
from rich.console import Console

from burnish.tracking import console as module
from burnish.tracking.base import RunFacts
from burnish.tracking.console import ConsoleBackend, Pace, clock, sparkline

METRICS = {
    "critic/score/mean": 0.25,
    "accuracy": 0.2,
    "actor/ppo_kl": 0.00012,
    "response_length/mean": 12.5,
    "perf/throughput": 12345.6,
    "actor/grad_norm": 1.0,
}


def backend(tmp_path, terminal, total=80):
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=100, color_system=None)
    return ConsoleBackend(RunFacts(tmp_path, "p", "e", total), console), stream


def test_a_log_file_gets_one_line_with_full_names(tmp_path):
    logger, stream = backend(tmp_path, terminal=False)
    logger.log(METRICS | {"timing_s/step": 2.0}, 3)
    assert stream.getvalue() == (
        "step:3/80 - critic/score/mean:0.250 - accuracy:0.200 - actor/ppo_kl:0.0001"
        " - response_length/mean:12.5 - perf/throughput:12346 - left:02:34\n"
    )


def test_the_length_of_the_run_may_be_unknown(tmp_path):
    logger, stream = backend(tmp_path, terminal=False, total=None)
    logger.log({"train/loss": 1.5}, 3)
    assert stream.getvalue() == "step:3 - train/loss:1.5000\n"


def test_validation_is_said_when_it_comes(tmp_path):
    logger, stream = backend(tmp_path, terminal=False)
    logger.log({"val-core/[gsm8k]/acc/mean@1": 0.5, "val-aux/x": 1.0}, 0)
    assert stream.getvalue() == "validation at step 0: val-core/[gsm8k]/acc/mean@1 0.5000\n"


def test_a_terminal_gets_a_table_that_keeps_the_last_rows(tmp_path):
    logger, stream = backend(tmp_path, terminal=True)
    for step in range(1, 16):
        logger.log(METRICS | {"critic/score/mean": step / 100}, step)
    logger.close()
    last = stream.getvalue().rsplit("accuracy", 1)[1]
    assert "0.150" in last and "0.060" in last and "0.050" not in last
    assert "step 15/80" in last and "left" in last and "▁" in last and "█" in last
    header = stream.getvalue().rsplit("step  ", 1)[1].splitlines()[0]
    assert header.split() == ["reward", "accuracy", "KL", "length", "tok/s"]


def test_the_live_table_ends_with_the_run(tmp_path):
    logger, _ = backend(tmp_path, terminal=True)
    logger.log(METRICS, 1)
    live = logger._live
    assert live.is_started
    logger.close(failed=True)
    assert not live.is_started


def test_time_left_follows_the_pace(monkeypatch):
    now = 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    pace = Pace(total=10)
    pace.reached(0, {})
    assert pace.left() is None
    now = 104.0
    pace.reached(2, {})
    assert pace.left() == 16.0
    now = 105.0
    assert pace.left() == 15.0
    now = 500.0  # a long step: the steps after it still take their time
    assert pace.left() == 14.0


@pytest.mark.parametrize(("seconds", "text"), [(0, "00:00"), (85.4, "01:25"), (3700, "1:01:40")])
def test_clock(seconds, text):
    assert clock(seconds) == text


def test_sparkline():
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([1.0, 1.0]) == "▁▁"
    assert sparkline([float("nan"), 0.0, float("inf"), 1.0]) == " ▁ █"
