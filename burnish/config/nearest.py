"""The known key a user most likely meant by an unknown one."""

from collections.abc import Iterable
from difflib import SequenceMatcher

ENOUGH = 0.6
LONGEST = 100  # characters that are compared: the time for it grows with their square, and names may be a stranger's


def nearest(unknown: str, known: Iterable[str]) -> str | None:
    """The closest of `known`, or None where none is close or the name is longer than any. A key typed without its first
    sections (`optim.lr`) wins at once, the first such in the tree; otherwise the whole name and its last part count
    alike, so that both a slip in the middle and a right name in the wrong place are found."""
    if len(unknown) > LONGEST:
        return None
    best = max(known, key=lambda name: _likeness(unknown, name), default=None)
    return best if best is not None and _likeness(unknown, best) >= ENOUGH else None


def _likeness(unknown: str, name: str) -> float:
    if name.endswith("." + unknown):
        return 2.0
    whole = SequenceMatcher(None, unknown, name).ratio()
    last = SequenceMatcher(None, unknown.rpartition(".")[2], name.rpartition(".")[2]).ratio()
    return (whole + last) / 2
