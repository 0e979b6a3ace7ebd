"""Messages about worker processes that are late or gone: who, where, why, and what they wrote last."""

import textwrap
from collections.abc import Sequence
from typing import NamedTuple

SHOWN_WHOLE = 4  # late processes that a message shows whole
NO_CALL = "no call"
SILENT = "its process ended without a word: killed, crashed, or out of memory"


class WorkerStatus(NamedTuple):
    doing: str
    stack: str  # of the thread that does it
    lines: str  # the last of its log
    peers: tuple[tuple[str, float], ...] = ()  # calls for others: what, and for how many seconds; the longest first

    def __str__(self) -> str:
        if not self.peers:
            return f"is in {self.doing}"
        what, seconds = self.peers[0]
        calls = f"runs {what} for others since {seconds:.0f} s"
        calls += f" (and {len(self.peers) - 1} more such calls)" if len(self.peers) > 1 else ""
        return f"is in {self.doing} and {calls}" if self.doing != NO_CALL else calls


class LateProcess(NamedTuple):
    name: str
    log: str
    there: WorkerStatus | None  # what it says
    lines: str = ""  # the log's last, where it says nothing


def quoted(title: str, text: str) -> str:
    """Lines of a file or a stack, to go below a message."""
    return f"\n{title}:\n{textwrap.indent(text.rstrip() or '(nothing)', '    ')}"


def late(deadline: str, workers: int, processes: Sequence[LateProcess], others: Sequence[LateProcess] = ()) -> str:
    """Who has not finished, and where each is; and those of other pools that they may wait for."""
    lines = [f"{deadline}; of {workers} workers, these are late:", *_described(processes)]
    if others:
        lines += ["they may wait for these, which run calls of others, or do not answer:", *_described(others)]
    return "\n".join(lines)


def order(there: WorkerStatus | None) -> float:
    """Those that do not answer come first, then those that have run calls of others for longest."""
    return float("-inf") if there is None else -max((seconds for _, seconds in there.peers), default=0.0)


def _described(processes: Sequence[LateProcess]) -> list[str]:
    lines = []
    for number, process in enumerate(sorted(processes, key=lambda process: order(process.there))):
        there = process.there
        lines.append(f"- {process.name}: {there or 'does not answer: stopped, or stuck'}")
        if number < SHOWN_WHOLE and there:
            lines[-1] += quoted("where", there.stack)
            lines[-1] += quoted(
                f"last lines of {process.log}, which continues with the stacks of all threads", there.lines
            )
        elif number < SHOWN_WHOLE:
            lines[-1] += quoted(f"last lines of {process.log}", process.lines)
    return lines


def reason(text: str) -> str:
    """Why a process died, from Ray's many lines."""
    text = " ".join(text.split())
    for before in ("The actor is dead because ", "Worker exit detail: "):
        text = text.partition(before)[2] or text
    if "connection error code 2" in text:  # all that Ray says when a process dies suddenly
        return SILENT
    if "temporarily unavailable" in text:
        return "its process or its node cannot be reached any more"
    return text[-600:] if "creation task" in text else text[:600]  # a traceback ends with what it is about


def no_room(text: str) -> str:
    """Where something did not fit, and what helps."""
    return (
        f"Ray's object store: {' '.join(text.split())[:300]}; lower data.train_batch_size, make room in /dev/shm and "
        "on the disk of Ray's temporary folder, or start Ray with more --object-store-memory"
    )
