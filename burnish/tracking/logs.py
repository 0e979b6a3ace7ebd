"""Python logging of burnish: one handler on the `burnish` logger, its level from BURNISH_LOGGING_LEVEL.

On a terminal the lines go through the console that also draws the live table, so that neither garbles the other; in
a log file they are plain lines on stderr.
"""

import logging
import os
import sys

from burnish.errors import ConfigError

VARIABLE = "BURNISH_LOGGING_LEVEL"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def configure_logging(level: str | None = None) -> None:
    """Set the level (argument, else the environment variable, else INFO) and the handler. May be called again."""
    name = (level or os.environ.get(VARIABLE) or "INFO").strip().upper()
    name = "WARNING" if name == "WARN" else name
    if name not in LEVELS:
        raise ConfigError(f"{VARIABLE}={level or os.environ[VARIABLE]}: no such level. There are: {', '.join(LEVELS)}")
    logger = logging.getLogger("burnish")
    logger.setLevel(name)
    logger.propagate = False
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
    logger.addHandler(terminal_handler() if sys.stdout.isatty() else plain_handler())


def terminal_handler() -> logging.Handler:
    import rich
    from rich.logging import RichHandler

    return RichHandler(console=rich.get_console(), show_path=False, markup=False, rich_tracebacks=False)


def plain_handler() -> logging.Handler:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S"))
    return handler
