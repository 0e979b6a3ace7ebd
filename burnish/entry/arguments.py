"""Command lines with flags: argparse with an example in its help, and mistakes as ConfigErrors. What a command reads
comes first, `--out` is where it writes, and a flag may also be written as a key: `port=8001`."""

import argparse
import os
import sys
from importlib.util import find_spec
from typing import Any, NoReturn

from burnish.entry.guard import DEBUG
from burnish.errors import ConfigError, install_command


class FlagParser(argparse.ArgumentParser):
    """The arguments of one command; `example` is what follows `burnish` in a command that works."""

    def __init__(self, command: str, summary: str, example: str, **options: Any):
        super().__init__(
            prog=f"burnish {command}",
            description=summary,
            epilog=f"example:\n  burnish {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            **options,
        )
        self.add_argument(DEBUG, action="store_true", help="show a traceback with an error")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = sys.argv[1:] if args is None else args
        return super().parse_known_args([self._as_flag(word) for word in words], namespace)

    def _as_flag(self, word: str) -> str:
        name, is_key, value = word.partition("=")
        flag = "--" + name.replace("_", "-")
        return f"{flag}={value}" if is_key and flag in self._option_string_actions else word

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{self.prog}: {message}. `{self.prog} --help` shows an example")


def positive(text: str) -> int:
    return _at_least(1, text)


def not_negative(text: str) -> int:
    return _at_least(0, text)


def _at_least(least: int, text: str) -> int:
    number = int(text)
    if number < least:
        raise argparse.ArgumentTypeError(f"{text} is not {least} or more")
    return number


def add_input(to: argparse.ArgumentParser, name: str, metavar: str, about: str) -> None:
    """What a command reads: its first word, or the flag of that name."""
    either = to.add_mutually_exclusive_group(required=True)
    either.add_argument(name, nargs="?", default=argparse.SUPPRESS, metavar=metavar, help=about)
    either.add_argument(f"--{name}", help=argparse.SUPPRESS)


def add_address(to: argparse.ArgumentParser, port: int) -> None:
    """Each server has its own default `port`, so that all of them can run at the same time."""
    to.add_argument("--host", default="127.0.0.1", help="address to listen on [127.0.0.1]; 0.0.0.0: all")
    to.add_argument("--port", type=int, default=port, help=f"port to listen on [{port}]; 0: any free one")


def add_key(to: argparse.ArgumentParser, variable: str) -> None:
    to.add_argument("--api-key", metavar="KEY", help=f"key that clients must send [the variable {variable}, or none]")


def read_key(flag: str | None, variable: str) -> str | None:
    """What clients must send. An empty key is most likely a variable that was never set, and would let everyone in."""
    name, key = ("--api-key", flag) if flag is not None else (variable, os.environ.get(variable))
    if key is None:
        return None
    if not (key := key.strip()):  # as of a file that ends with a line break; no header could hold that
        raise ConfigError(f"{name} is empty; give a key, or leave it out to serve without one")
    return key


def check_address(flags: argparse.Namespace) -> None:
    if not 0 <= flags.port <= 65535:
        raise ConfigError(f"--port {flags.port}: ports go from 1 to 65535; 0 takes any free one")


def need_packages(command: str, extra: str, *others: str) -> None:
    """ConfigError if what HTTP servers need, or one of `others`, is not installed."""
    missing = [name for name in ("fastapi", "uvicorn", *others) if find_spec(name) is None]
    if missing:
        needed = " and ".join(missing)
        raise ConfigError(f"{command} needs the package {needed}; install it with {install_command(extra)}")
