"""How commands read their flags and how they end: help, message, traceback or neither, and the exit code."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from burnish.api.call import public
from burnish.cli.main import main
from burnish.entry.arguments import FlagParser
from burnish.entry.guard import guard
from burnish.errors import ConfigError, DataError, NotAvailable, WorkerError


@pytest.fixture
def parser() -> FlagParser:
    parser = FlagParser("cook", "make a dish", "cook rice --minutes 12")
    parser.add_argument("dish")
    parser.add_argument("--minutes", type=int)
    return parser


def test_help_shows_the_example_as_plain_text(parser):
    assert parser.format_help().endswith("example:\n  burnish cook rice --minutes 12\n")
    assert "burnish x 'a=[50%]'" in FlagParser("x", "y", "x 'a=[50%]'").format_help()


@pytest.mark.parametrize(
    ("argv", "words"),
    [([], "dish"), (["rice", "--minutes", "long"], "invalid int value: 'long'"), (["rice", "--min", "3"], "--min")],
)
def test_mistakes_are_config_errors_that_point_to_the_help(parser, argv, words):
    with pytest.raises(ConfigError) as caught:
        parser.parse_args(argv)
    assert words in str(caught.value) and "`burnish cook --help` shows an example" in str(caught.value)


WORDLESS = type("Wordless", (WorkerError,), {"__str__": lambda self: 1 / 0})()


def ends(error: BaseException, *argv: str) -> int:
    def command(argv: list[str]) -> None:
        raise error

    return guard(command, list(argv))


def test_the_return_value_is_the_exit_code_and_a_bad_logging_level_a_mistake(monkeypatch, capsys):
    assert guard(lambda argv: None, []) == 0
    assert guard(lambda argv: 3, []) == 3
    assert guard(lambda argv: len(argv), ["a", "b"]) == 2
    monkeypatch.setenv("BURNISH_LOGGING_LEVEL", "loud")
    assert guard(lambda argv: 0, []) == 2
    assert "BURNISH_LOGGING_LEVEL=loud" in capsys.readouterr().err


@pytest.mark.parametrize("error", [ConfigError("data.[x]=1: no"), DataError("[red]row 3[/red]"), NotAvailable("it")])
def test_a_users_mistake_is_one_message_without_traceback(error, capsys):
    assert ends(error) == 2
    captured = capsys.readouterr()
    assert captured.err == f"burnish: error: {error}\n" and captured.out == ""


@pytest.mark.parametrize(
    ("error", "words", "code", "said"),
    [
        (ConfigError("bad"), ["data.x=1", "--debug"], 2, r"Traceback(.|\n)*ConfigError: bad\n"),
        (WorkerError("actor died"), [], 1, r"burnish: error: actor died\nburnish: add --debug for a traceback\n"),
        (WORDLESS, [], 1, r"burnish: error: \(its text cannot be shown: __str__ raised ZeroDivisionError\)\n.*\n"),
        (ZeroDivisionError("oops"), [], 1, r"Traceback(.|\n)*ZeroDivisionError: oops\n"),
        (BaseException("odd"), [], 1, r"Traceback(.|\n)*BaseException: odd\n"),
        (KeyboardInterrupt(), [], 130, r"burnish: stopped\n"),
    ],
)
def test_other_errors_have_a_traceback_or_say_how_to_see_it(error, words, code, said, capsys):
    assert ends(error, *words) == code
    assert re.fullmatch(said, capsys.readouterr().err)


def test_sys_exit_in_code_of_the_user_is_an_error_that_names_it(capsys):
    assert ends(SystemExit(0)) == 2
    said = rf"burnish: error: SystemExit\(0\) from \S*{Path(__file__).name}, line \d+, in command: .* raise another"
    assert re.match(said, capsys.readouterr().err)
    with pytest.raises(SystemExit):  # as argparse does for burnish
        main(["status", "--help"])


@pytest.mark.parametrize("words", [[], ["--debug"]])
@pytest.mark.parametrize("kind", [DataError, ValueError])
def test_what_a_message_quotes_cannot_command_the_terminal(kind, words, capsys):
    ends(kind("the columns are \x1b[2Jcol, \x9b31m,\n  é"), *words)
    error = capsys.readouterr().err
    assert "the columns are \\x1b[2Jcol, \\x9b31m,\n  é\n" in error and not {"\x1b", "\x9b"} & set(error)


def test_a_reader_that_leaves_early_is_no_error():
    """`burnish ppo --help | head -1`"""
    words, pipe = [sys.executable, "-m", "burnish.cli.main", "ppo", "--help"], subprocess.PIPE
    root, settings = Path(__file__).parents[2], {"PYTHONUNBUFFERED": "1", "PATH": ""}
    burnish = subprocess.Popen(words, cwd=root, stdout=pipe, stderr=pipe, text=True, env=settings)
    burnish.stdout.close()
    assert burnish.stderr.read() == ""
    assert burnish.wait() in (0, 141)


def test_a_command_may_be_started_with_its_outputs_closed():
    words = [sys.executable, "-m", "burnish.cli.main", "status", "nowhere"]
    closed = subprocess.run(words, cwd=Path(__file__).parents[2], preexec_fn=lambda: os.closerange(1, 3))
    assert closed.returncode == 2


@pytest.mark.parametrize(
    ("load", "given", "policy"), [(0.1, None, None), (9.0, None, "PASSIVE"), (9.0, "ACTIVE", "ACTIVE")]
)
@pytest.mark.parametrize("call", [lambda: guard(lambda argv: 0, []), public(lambda: 0)], ids=["command", "python"])
def test_threads_do_not_spin_on_busy_cores(monkeypatch, call, load, given, policy):
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setenv("OMP_WAIT_POLICY", given or "")  # put back afterwards, whatever the command sets
    if not given:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    assert call() == 0
    assert os.environ.get("OMP_WAIT_POLICY") == policy
