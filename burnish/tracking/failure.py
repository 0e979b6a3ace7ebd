"""`error.json`: the error that ended a run, in its folder. The next attempt that begins to write there removes it."""

import json
import os
import socket
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from burnish.errors import CheckpointError, text_of
from burnish.literal import json_text
from burnish.tracking.disk import write_atomically
from burnish.tracking.timer import PHASE

ERROR_FILE = "error.json"
CAUSES = 20  # looked at for the phase


def write_failure(folder: Path, error: BaseException, *, step: int | None, steps: int | None, phase: str = "") -> None:
    """`step` is the last that was logged; `phase` what the run was at, where the error does not know. Never fails: the
    error itself is about to be raised."""
    record = {
        "time": time.time(), "type": type(error).__name__, "message": text_of(error), "step": step, "steps": steps,
        "phase": phase_of(error) or phase, "traceback": "".join(traceback.format_exception(error)),
        "pid": os.getpid(), "host": socket.gethostname(),
    }  # fmt: skip
    with suppress(CheckpointError):
        write_atomically(folder / ERROR_FILE, [json_text(record, indent=1) + "\n"])


def phase_of(error: BaseException) -> str | None:
    """The phase of a step that it left, by itself or what it came from."""
    return next((found for one in _chain(error) if isinstance(found := vars(one).get(PHASE), str)), None)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what it came from, the first cause first."""
    chain: list[BaseException] = []
    while error is not None and len(chain) < CAUSES:
        chain.append(error)
        error = error.__cause__ or error.__context__
    yield from reversed(chain)


def read_failure(folder: Path) -> dict[str, Any] | None:
    """The record, where there is one that was written here."""
    try:
        value = json.loads((folder / ERROR_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    texts = ("type", "message", "phase")
    if not isinstance(value, dict) or not all(isinstance(value.get(name), str) for name in texts):
        return None
    return value if isinstance(value.get("time"), int | float) else None
