"""Around each call from Python: the process belongs to the caller, and errors say what to do in one line.

A command may end its process, because it owns it; here what hangs is reported and left to Ctrl-C. An error of burnish
rises without the frames that only its developers read (with BURNISH_LOGGING_LEVEL=DEBUG, with them).
"""

import functools
import gc
import logging
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from burnish import user_code
from burnish.entry.guard import share_cores
from burnish.errors import BurnishError, ConfigError
from burnish.tracking.logs import configure_logging
from burnish.waits import never_ends

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("burnish")


def public(function: Callable[P, T]) -> Callable[P, T]:
    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if user_code.importing:
            raise ConfigError(
                f"{user_code.importing[-1]}: this file calls burnish.{function.__name__} while it is imported, and so "
                'would start itself again and again; put the call under `if __name__ == "__main__":`'
            )
        if not log.handlers:
            configure_logging()
        share_cores()
        try:
            with never_ends():
                return function(*args, **kwargs)
        except (BurnishError, KeyboardInterrupt) as error:
            if log.isEnabledFor(logging.DEBUG):
                raise
            raise _alone(error) from None
        except SystemExit as exited:  # which would end the caller's program
            raise (user_code.exit_error(exited) or exited) from None
        finally:
            release_memory()

    return call


def _alone(error: Any) -> Any:
    """Without its frames, which also keep the models of a run that failed in memory."""
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)


def release_memory() -> None:
    """Of models that nothing holds any more, for what the caller runs next."""
    gc.collect()
    if (torch := sys.modules.get("torch")) is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
