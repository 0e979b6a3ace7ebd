"""The console: lines for log files, a growing table for terminals, the time left; and the progress of counted work."""

import io
import re
from types import SimpleNamespace

import pytest
from rich.console import Console

from burnish.tracking import console as module
from burnish.tracking import progress
from burnish.tracking.base import RunFacts
from burnish.tracking.batches import clock
from burnish.tracking.console import SPARKS, ConsoleBackend, Pace, sparkline
from burnish.tracking.progress import Progress
from burnish.waits import BatchProgress, waiting

METRICS = {
    "critic/score/mean": 0.25,
    "accuracy": 0.2,
    "actor/ppo_kl": 0.00012,
    "actor/entropy": 1.5,
    "response_length/mean": 12.5,
    "perf/throughput": 12345.6,
    "actor/grad_norm": 1.0,
}


def backend(tmp_path, terminal, total=80, width=100):
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=width, color_system=None)
    return ConsoleBackend(RunFacts(tmp_path, "p", "e", total), console), stream


@pytest.mark.parametrize(
    ("metrics", "step", "total", "text"),
    [
        (
            METRICS | {"timing_s/step": 2.0},
            3,
            80,
            "step:3/80 - critic/score/mean:0.250 - accuracy:0.200 - actor/entropy:1.500"
            " - actor/grad_norm:1.000 - response_length/mean:12.5 - perf/throughput:12346 - left:02:34\n",
        ),
        ({"train/loss": 1.5}, 3, None, "step:3 - train/loss:1.5000\n"),
        (
            {"val-core/[gsm8k]/acc/mean@1": 0.5, "val-aux/x": 1.0},
            0,
            80,
            "validation at step 0: val-core/[gsm8k]/acc/mean@1 0.5000\n",
        ),
        (  # the name of a data source cannot control the terminal
            {"val-core/\x1b]0;x\x07\nstep:9/acc/mean@1": 0.5},
            0,
            80,
            "validation at step 0: val-core/\\x1b]0;x\\x07\\nstep:9/acc/mean@1 0.5000\n",
        ),
    ],
)
def test_log_file_gets_one_line_with_full_names(tmp_path, metrics, step, total, text):
    logger, stream = backend(tmp_path, terminal=False, total=total)
    logger.log(metrics, step)
    assert stream.getvalue() == text


def rows_of(text):
    """The lines of the table: the live progress line is drawn over, so it is taken out with what redraws it."""
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text.replace("\r", "\n")).split("\n")
    return [line for line in lines if re.match(r" *(step|\d+)  ", line)]


def test_terminal_gets_every_step_once_below_its_headings(tmp_path):
    logger, stream = backend(tmp_path, terminal=True)
    for step in range(1, 26):
        logger.log(METRICS | {"critic/score/mean": step / 100}, step)
    logger.close()
    rows = [row.split() for row in rows_of(stream.getvalue())]
    headings = [row for row in rows if row[0] == "step"]
    assert headings == [["step", "reward", "accuracy", "entropy", "grad", "length", "tok/s"]] * 2
    assert [i for i, row in enumerate(rows) if row[0] == "step"] == [0, 21]
    assert [(row[0], row[1]) for row in rows if row[0] != "step"] == [(str(k), f"{k / 100:.3f}") for k in range(1, 26)]
    last = stream.getvalue().rsplit("step 25/80", 1)[1]
    assert "left" in last and "▁" in last and "█" in last
    logger, stream = backend(tmp_path, terminal=True, total=12345)
    logger.log(METRICS, 9)
    logger.log(METRICS | {"perf/throughput": 1234567.0}, 12345)
    logger.close()
    assert rows_of(stream.getvalue()) == [
        " step    reward  accuracy   entropy      grad    length     tok/s",
        "    9     0.250     0.200     1.500     1.000      12.5    12,346",
        "12345     0.250     0.200     1.500     1.000      12.5 1,234,567",
    ]
    logger, stream = backend(tmp_path, terminal=True)
    for step in (1, 2, 3):
        logger.log({"train/loss": 1.0} | ({"val/loss": 2.0} if step == 2 else {}), step)
    logger.close()
    assert [row.split() for row in rows_of(stream.getvalue())] == [
        ["step", "loss"], ["1", "1.0000"], ["step", "loss", "val", "loss"], ["2", "1.0000", "2.0000"], ["3", "1.0000"],
    ]  # fmt: skip


@pytest.mark.parametrize("term", ["actor/kl_loss", "actor/reward_kl_penalty"])
@pytest.mark.parametrize("terminal", [True, False])
def test_kl_is_shown_where_the_run_has_a_kl_term(tmp_path, terminal, term):
    logger, stream = backend(tmp_path, terminal)
    logger.log(METRICS, 1)
    assert "KL" not in stream.getvalue() and "kl" not in stream.getvalue()
    logger.log(METRICS | {term: 0.0123}, 2)
    logger.close()
    assert "0.0123" in stream.getvalue() and ("KL" if terminal else f"{term}:0.0123") in stream.getvalue()


@pytest.mark.parametrize("width", [20, 40, 60, 80, 200])
@pytest.mark.parametrize("total", [1000, None])
def test_no_line_is_wider_than_the_terminal(tmp_path, width, total):
    logger, stream = backend(tmp_path, terminal=True, total=total, width=width)
    for step in range(1, 31):
        logger.log(METRICS | {"critic/score/mean": float(step), "timing_s/step": 4000.0, "actor/kl_loss": 0.1}, step)
    progress = Console(file=io.StringIO(), width=width)
    (line,) = progress.render_lines(logger._progress(), pad=False)
    assert sum(segment.cell_length for segment in line) < width
    logger.close()
    assert max(map(len, rows_of(stream.getvalue()))) <= width
    text = "".join(segment.text for segment in line)
    assert f"step 30{'/1000' if total else ''}"[: width // 2] in text
    sparks = sum(text.count(spark) for spark in SPARKS)
    assert sparks == 24 if width == 200 else sparks < 24 or not total


def test_validation_comes_below_the_row_of_its_step_and_the_progress_line_ends_with_the_run(tmp_path):
    logger, stream = backend(tmp_path, terminal=True)
    logger.log(METRICS | {"val-core/x/acc/mean@1": 0.5}, 1)
    live, text = logger._live, stream.getvalue()
    assert live.is_started
    logger.close(failed=True)
    assert not live.is_started
    assert text.index("12,346") < text.index("validation at step 1: val-core/x/acc/mean@1 0.5000")


@pytest.mark.parametrize("width", [40, 200])
def test_long_wait_is_in_the_progress_line(tmp_path, width):
    logger, _ = backend(tmp_path, terminal=True, width=width)
    logger.log(METRICS, 3)

    def progress():
        console = Console(file=io.StringIO(), width=width)
        (line,) = console.render_lines(logger._progress(), pad=False)
        assert sum(segment.cell_length for segment in line) < width
        return "".join(segment.text for segment in line)

    with waiting("tool", "uid 3, sample 1", "tool search\x1b: execute", 60.0) as wait:
        assert "waiting" not in progress()
        wait.since -= 42.2
        shown = " · waiting 42 s for tool search\\x1b: execute (uid 3, sample 1)"
        assert shown in progress() if width == 200 else "waiting 4" in progress()
    assert "waiting" not in progress()
    logger.close()


def test_waits_before_the_first_step_are_shown(tmp_path):
    logger, stream = backend(tmp_path, terminal=True, width=100)
    with waiting("engine", "uid 3, sample 1", "a request", 1800.0) as wait:
        wait.since -= 42.0
        logger.begin()
        logger.close()
    assert "step 0/80 · waiting 42 s for a request (uid 3, sample 1)" in stream.getvalue()
    logger, stream = backend(tmp_path, terminal=False)
    logger.begin()
    logger.close()
    assert stream.getvalue() == ""


def test_time_left_follows_the_pace_and_the_total_counts_from_the_start_of_the_run(monkeypatch):
    now = 100.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    pace, whole = Pace(total=10), Pace(total=2)
    pace.reached(0, {})
    assert pace.left() is None
    now = 104.0
    pace.reached(2, {})
    assert pace.left() == 16.0
    now = 105.0
    assert pace.left() == 15.0
    now = 500.0  # a long step: the steps after it still take their time
    assert pace.left() == 14.0
    now = 130.0  # loading the model, and the first step
    whole.reached(1, {"timing_s/step": 10.0})
    now = 140.0
    whole.reached(2, {})
    assert whole.left() == 0.0 and whole.elapsed() == 40.0


def test_clock_and_sparkline():
    assert [clock(seconds) for seconds in (0, 85.4, 3700)] == ["00:00", "01:25", "1:01:40"]
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([1.0, 1.0]) == "▁▁"
    assert sparkline([float("nan"), 0.0, float("inf"), 1.0]) == " ▁ █"


@pytest.fixture
def seconds(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))  # not for event loops that run
    return now


def test_lines_come_now_and_then_and_at_the_end(seconds):
    text = io.StringIO()
    with Progress("generating", 100, done=40, console=Console(file=text)) as progress:
        seconds[0] = 5.0
        progress.advance(10)
        assert text.getvalue() == "", "nothing to say yet"
        seconds[0] = 20.0
        progress.advance(10, "812 tokens/s")
        progress.advance(40)
    first, last = text.getvalue().splitlines()
    assert first == "generating: 60/100 rows, 812 tokens/s, 20 s, 40 s left", (
        "what was done before is not counted as speed"
    )
    assert last == "generating: 100/100 rows, 20 s"


def test_brackets_are_shown_as_they_are_and_a_terminal_gets_a_bar(seconds):
    text = io.StringIO()
    with Progress("reading [a]", 1, unit="files", console=Console(file=text)) as progress:
        progress.advance()
    assert text.getvalue() == "reading [a]: 1/1 files, 0 s\n"
    terminal = Console(file=text, force_terminal=True, width=140, _environ={})
    with waiting("engine", "", "a batch", None) as wait:
        wait.progress = lambda: BatchProgress("generating", 1, 4, 20.0, 7.0, 3.0)
        with Progress("scoring", 3, console=terminal) as progress:
            progress.advance(3, "fast")
    shown = ("scoring", "3/3", "rows fast", "(batch: 1/4, about 00:07 left, 20 tok/s)")
    assert all(words in text.getvalue() for words in shown)
