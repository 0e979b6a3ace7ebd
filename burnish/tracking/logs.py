"""Python logging of burnish: one handler, its level from BURNISH_LOGGING_LEVEL, or from the variable of verl. On a
terminal a line is its message and goes through the console that draws the progress line; elsewhere lines are plain, on
stderr, with time and origin."""

import logging
import os
import sys

from burnish.errors import ConfigError
from burnish.literal import literal, print_text

VARIABLES = ("BURNISH_LOGGING_LEVEL", "VERL_LOGGING_LEVEL")  # the first that is set counts
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
MARKS = {  # of a line on a terminal, and their style
    logging.DEBUG: ("debug:", "dim"),
    logging.INFO: ("·", "dim"),
    logging.WARNING: ("warning:", "yellow"),
    logging.ERROR: ("error:", "bold red"),
    logging.CRITICAL: ("error:", "bold red"),
}


def configure_logging(level: str | None = None) -> None:
    """Set the level (argument, else an environment variable, else INFO) and the handler. May be called again."""
    variable = next((name for name in VARIABLES if os.environ.get(name)), VARIABLES[0])
    given = level or os.environ.get(variable) or "INFO"
    name = "WARNING" if given.strip().upper() == "WARN" else given.strip().upper()
    if name not in LEVELS:
        raise ConfigError(f"{variable}={given}: no such level. There are: {', '.join(LEVELS)}")
    logger = logging.getLogger("burnish")
    logger.setLevel(name)
    logger.propagate = False
    logger.handlers.clear()
    logger.addHandler(TerminalHandler() if sys.stdout.isatty() else StderrHandler())


class TerminalHandler(logging.Handler):
    """Messages for someone who is watching: no time, no origin, no columns."""

    def emit(self, record: logging.LogRecord) -> None:
        import rich
        from rich.text import Text

        try:
            mark, style = MARKS.get(record.levelno, MARKS[logging.INFO])
            text = Text.assemble((mark, style), " ", literal(self.format(record)))
            rich.get_console().print(text, soft_wrap=True)
        except Exception:  # noqa: BLE001 - logging's own way: printed on stderr, never raised into the run
            self.handleError(record)


class StderrHandler(logging.Handler):
    """Lines with time and origin, on what sys.stderr is by then."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S"))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print_text(self.format(record), sys.stderr)
        except Exception:  # noqa: BLE001 - as above
            self.handleError(record)
