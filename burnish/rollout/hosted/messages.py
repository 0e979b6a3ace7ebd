"""What the engine and the process that hosts its program say to each other, over a pipe, in order.

The first message is `Start`, and the first answer is `Ready` or `NotStarted`. After that the engine sends `Ask`,
`Abort`, `Call` and at last `Close`; the host sends lists of the others, as they come.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Start:
    arguments: dict[str, Any]  # of the program's engine
    beat_s: float  # between two signs of life


@dataclass(frozen=True)
class Ready:
    pids: list[int]  # of the processes that compute


@dataclass(frozen=True)
class NotStarted:
    problem: str
    is_config: bool  # whether the arguments are to blame


@dataclass(frozen=True)
class Ask:
    """One request. `sampling` are the program's own arguments, without those that change on the way."""

    number: int
    prompt_ids: list[int]
    sampling: dict[str, Any]
    seed: int
    limit: int
    streams: bool  # tokens as they come, or all at the end


@dataclass(frozen=True)
class Tokens:
    number: int
    token_ids: list[int]
    log_probs: list[float]
    version: int
    end: str | None  # why no more come; None: more may come


@dataclass(frozen=True)
class Failed:
    number: int
    problem: str


@dataclass(frozen=True)
class Abort:
    """End a request; it is answered by `Tokens` with what it has, unless it has ended."""

    number: int


@dataclass(frozen=True)
class Call:
    """Do something else, and answer when it is done: the host's method `do_…` of that name."""

    number: int
    method: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Answer:
    number: int
    value: Any
    problem: str | None


@dataclass(frozen=True)
class Alive:
    """All processes of the program have answered just now."""


@dataclass(frozen=True)
class Lost:
    """The program is dead."""

    reason: str


@dataclass(frozen=True)
class Close:
    pass
