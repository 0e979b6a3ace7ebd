"""The `burnish` command: main.py has the table of commands, the other files the flags of each. Nothing here imports
torch: a command's module is imported when that command runs. No other part imports this one."""

from typing import NoReturn

from burnish.entry.ending import importing, leave


def start() -> NoReturn:
    """The `burnish` script."""
    with importing():
        from burnish.cli.main import main
    leave(main())
