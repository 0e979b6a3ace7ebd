"""How a command ends: one readable message and an exit code, for `burnish X` and `python3 -m burnish.trainer.X` alike.

| what happened | stderr | exit code |
|---|---|---|
| a `UserError` | its message (`--debug`: a traceback) | 2 |
| another `BurnishError` | its message (`--debug`: a traceback) | 1 |
| an exception nobody foresaw | a traceback | 1 |
| Ctrl-C | a short line | 130 |
"""

import os
import sys
import traceback
from collections.abc import Callable

from burnish.errors import BurnishError, UserError
from burnish.tracking.literal import literal
from burnish.tracking.logs import configure_logging

DEBUG = "--debug"


def guard(command: Callable[[list[str]], int | None], argv: list[str]) -> int:
    """Run `command(argv)` and return the exit code; `sys.exit(guard(main, sys.argv[1:]))` is a whole entry point."""
    if os.getcwd() not in sys.path:  # the `burnish` script, unlike `python -m`, does not look where the user stands
        sys.path.append(os.getcwd())
    try:
        configure_logging()
        return command(argv) or 0
    except BurnishError as error:
        report(error, debug=DEBUG in argv)
        return error.exit_code
    except KeyboardInterrupt:
        say("stopped")
        return 130
    except BrokenPipeError:
        # The reader of our output has gone (`burnish --help | head`). Nothing more can be said, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:  # noqa: BLE001 - the boundary of the program
        print_traceback(error)
        return 1


def report(error: BurnishError, debug: bool) -> None:
    if debug:
        print_traceback(error)
        return
    say(f"error: {error}")
    if not isinstance(error, UserError):
        say(f"add {DEBUG} for a traceback")


def say(text: str) -> None:
    """Plain text on stderr: a message may quote brackets that a markup would swallow, or escapes of a terminal."""
    print(f"burnish: {literal(text)}", file=sys.stderr, flush=True)


def print_traceback(error: Exception) -> None:
    print(literal("".join(traceback.format_exception(error))), end="", file=sys.stderr, flush=True)
