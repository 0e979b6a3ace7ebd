"""How commands end: message, traceback or neither, and the exit code."""

import subprocess
import sys
from pathlib import Path

import pytest

from burnish.entry.guard import guard
from burnish.errors import ConfigError, DataError, NotAvailable, WorkerError

ROOT = Path(__file__).parents[2]


def ends(error: BaseException, *argv: str) -> int:
    def command(argv: list[str]) -> None:
        raise error

    return guard(command, list(argv))


def test_the_return_value_is_the_exit_code():
    assert guard(lambda argv: None, []) == 0
    assert guard(lambda argv: 3, []) == 3
    assert guard(lambda argv: len(argv), ["a", "b"]) == 2


@pytest.mark.parametrize("error", [ConfigError("data.[x]=1: no"), DataError("[red]row 3[/red]"), NotAvailable("it")])
def test_a_users_mistake_is_one_message_without_traceback(error, capsys):
    assert ends(error) == 2
    captured = capsys.readouterr()
    assert captured.err == f"burnish: error: {error}\n" and captured.out == ""


def test_debug_adds_the_traceback(capsys):
    assert ends(ConfigError("bad"), "data.x=1", "--debug") == 2
    error = capsys.readouterr().err
    assert error.startswith("Traceback") and error.rstrip().endswith("ConfigError: bad")


def test_another_deliberate_error_says_how_to_see_more(capsys):
    assert ends(WorkerError("actor died")) == 1
    assert capsys.readouterr().err == "burnish: error: actor died\nburnish: add --debug for a traceback\n"


def test_an_unforeseen_error_shows_its_traceback(capsys):
    assert ends(ZeroDivisionError("oops")) == 1
    error = capsys.readouterr().err
    assert "Traceback" in error and "ZeroDivisionError: oops" in error


@pytest.mark.parametrize("words", [[], ["--debug"]])
@pytest.mark.parametrize("kind", [DataError, ValueError])
def test_what_a_message_quotes_cannot_command_the_terminal(kind, words, capsys):
    ends(kind("the columns are \x1b[2Jcol, \x9b31m,\n  é"), *words)
    error = capsys.readouterr().err
    assert "the columns are \\x1b[2Jcol, \\x9b31m,\n  é\n" in error and not {"\x1b", "\x9b"} & set(error)


def test_ctrl_c_is_no_traceback(capsys):
    assert ends(KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == "burnish: stopped\n"


def test_exits_of_others_pass():
    with pytest.raises(SystemExit):
        ends(SystemExit(5))


def test_a_bad_logging_level_is_a_users_mistake(monkeypatch, capsys):
    monkeypatch.setenv("BURNISH_LOGGING_LEVEL", "loud")
    assert guard(lambda argv: 0, []) == 2
    assert "BURNISH_LOGGING_LEVEL=loud" in capsys.readouterr().err


def test_a_reader_that_leaves_early_is_no_error():
    """`burnish ppo --help | head -1`"""
    burnish = subprocess.Popen(
        [sys.executable, "-m", "burnish.cli.main", "ppo", "--help"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PYTHONUNBUFFERED": "1", "PATH": ""},
    )
    assert burnish.stdout is not None and burnish.stderr is not None
    burnish.stdout.close()
    assert burnish.stderr.read() == ""
    assert burnish.wait() in (0, 141)
