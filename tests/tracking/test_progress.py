"""Progress of counted work: lines where there is no terminal, a bar where there is one."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from burnish.tracking import progress as module
from burnish.tracking.progress import Progress


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))  # not for event loops that run
    return now


def test_lines_come_now_and_then_and_at_the_end(clock):
    text = io.StringIO()
    with Progress("generating", 100, done=40, console=Console(file=text)) as progress:
        clock[0] = 5.0
        progress.advance(10)
        assert text.getvalue() == "", "nothing to say yet"
        clock[0] = 20.0
        progress.advance(10, "812 tokens/s")
        progress.advance(40)
    first, last = text.getvalue().splitlines()
    assert first == "generating: 60/100 rows, 812 tokens/s, 20 s, 40 s left", (
        "what was done before is not counted as speed"
    )
    assert last == "generating: 100/100 rows, 20 s"


def test_brackets_are_shown_as_they_are_and_a_terminal_gets_a_bar(clock):
    text = io.StringIO()
    with Progress("reading [a]", 1, unit="files", console=Console(file=text)) as progress:
        progress.advance()
    assert text.getvalue() == "reading [a]: 1/1 files, 0 s\n"
    terminal = Console(file=text, force_terminal=True, width=100, _environ={})
    with Progress("scoring", 3, console=terminal) as progress:
        progress.advance(3, "fast")
    assert all(words in text.getvalue() for words in ("scoring", "3/3", "rows fast"))
