"""Command lines that are not Hydra's: `burnish data check FILE --tokenizer …`, `burnish export …`.

A `Parser` is argparse with an example in its help and mistakes as ConfigErrors, so that they are told like any other.
"""

import argparse
from typing import Any, NoReturn

from burnish.cli.errors import DEBUG
from burnish.errors import ConfigError


class Parser(argparse.ArgumentParser):
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
        self.add_argument(DEBUG, action="store_true", help="a traceback with an error")

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{self.prog}: {message}. `{self.prog} --help` shows an example")
