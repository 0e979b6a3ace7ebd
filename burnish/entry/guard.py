"""How a command ends: one readable message and an exit code, for `burnish X` and `python3 -m burnish.trainer.X` alike.

| what happened | stderr | exit code |
|---|---|---|
| a `UserError` | its message (`--debug`: a traceback) | 2 |
| another `BurnishError` | its message (`--debug`: a traceback) | 1 |
| an unexpected exception | a traceback | 1 |
| `sys.exit` in users' code | the file and line that called it | 2 |
| Ctrl-C | a short line | 130 |
"""

import io
import logging
import os
import sys
import traceback
from collections.abc import Callable

from burnish import __version__
from burnish.errors import BurnishError, UserError, text_of
from burnish.literal import print_text
from burnish.tracking.logs import configure_logging
from burnish.tracking.transcript import recorded
from burnish.user_code import exit_error

DEBUG = "--debug"
BUSY = 0.7  # of the cores, by the load of the last minute


def guard(command: Callable[[list[str]], int | None], argv: list[str]) -> int:
    """Run `command(argv)` and return the exit code; `leave(guard(main, sys.argv[1:]))` is a whole entry point."""
    if os.getcwd() not in sys.path:  # unlike `python -m`, the `burnish` script does not look in the working directory
        sys.path.append(os.getcwd())
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # whoever started the command has closed it
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr: what the terminal cannot encode is no error
    share_cores()
    with recorded():
        return _guarded(command, argv)


def share_cores() -> None:
    """Threads of torch that wait for each other spin, from which small models gain on an idle machine; on busy
    cores they take the time of those they wait for. Read by OpenMP when torch is imported."""
    if os.getloadavg()[0] > BUSY * (os.cpu_count() or 1):
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def _guarded(command: Callable[[list[str]], int | None], argv: list[str]) -> int:
    try:
        configure_logging()
        versions = __version__, sys.version.split()[0]
        logging.getLogger(__name__).debug("burnish %s, Python %s, in %s", *versions, os.getcwd())
        return command(argv) or 0
    except BurnishError as error:
        if DEBUG in argv:
            print_traceback(error)
        else:
            hint = "" if isinstance(error, UserError) else f"\nburnish: add {DEBUG} for a traceback"
            say(f"error: {text_of(error)}{hint}")
        return error.exit_code
    except KeyboardInterrupt:
        say("stopped")
        return 130
    except BrokenPipeError:
        # Nobody reads our output any more (`burnish --help | head`): nothing can be printed, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except SystemExit as exited:
        if (mistake := exit_error(exited)) is None:
            raise
        say(f"error: {mistake}")
        return mistake.exit_code
    except BaseException as error:  # noqa: BLE001 - the boundary of the program
        print_traceback(error)
        return 1


def say(text: str) -> None:
    """Plain text on stderr: a message may quote brackets that a markup would swallow, or escapes of a terminal."""
    print_text(f"burnish: {text}", sys.stderr)


def print_traceback(error: BaseException) -> None:
    print_text("".join(traceback.format_exception(error)).rstrip("\n"), sys.stderr)
