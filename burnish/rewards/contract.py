"""What crosses the boundaries of rewards: the request, the result, the function's address, and what a score may be.

A user writes `compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs)` and returns a number
or a dict with a number under "score"; or the batch form, which takes lists and returns a list of those. The key
`new_prompts` of such a dict is rows to train on. No torch, no numpy: this is loaded by every child.
"""

import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

#: The parameters a scoring function may name, filled from the row and the response.
PARAMETERS = ("data_source", "solution_str", "ground_truth", "extra_info")
#: Those of the batch form, in the same order; each is a list with an entry per sample.
BATCH_PARAMETERS = ("data_sources", "solution_strs", "ground_truths", "extra_infos")

#: Where a scoring function's dict, an agent loop's extra fields and a manager's extra info hold rows to train on.
NEW_PROMPTS = "new_prompts"
#: The column of a batch with what the turns of a response earn besides its score.
TURN_REWARDS = "added_turn_rewards"

#: Levels of lists and objects that a value may have, and bits of a whole number in it.
DEEPEST, MOST_BITS = 100, 10_000
#: Characters of a response that a report of its failure shows.
SHOWN_RESPONSE = 200

_NEEDED = 'return a finite number, or a dict with one under "score"'


@dataclass(frozen=True)
class FunctionSpec:
    """Where the scoring function is: a file or module, and a name. Without a path: the scorer of the data source."""

    path: str | None = None
    name: str = "compute_score"
    reward_kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """How messages about a sample name the function."""
        return f"{self.name} of {self.path}" if self.path else "the built-in scorer"

    @property
    def key(self) -> str:
        """How messages about the configuration name it."""
        return f"custom_reward_function.name={self.name} ({self.path})" if self.path else self.label


@dataclass(frozen=True)
class ScoreRequest:
    """One finished response. `solution_str` is the policy's own text: no prompt, no tool or retrieved text."""

    data_source: str
    solution_str: str
    ground_truth: Any = None
    extra_info: dict[str, Any] = field(default_factory=dict)
    index: Any = None  # of the row, for reports


@dataclass(frozen=True)
class ScoreResult:
    """A score, or the reason there is none. Exactly one of `score` and `error` is None, except under
    `reward.on_error=zero`, where a failed sample has score 0 and keeps its error. `turn_rewards` are those an agent
    loop gave its turns, one per unbroken run of the policy's tokens; `score` is then their sum."""

    score: float | None
    info: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    seconds: float = 0.0
    data_source: str = ""
    turn_rewards: tuple[float, ...] | None = None
    new_prompts: Any = None  # as the function returned them, JSON-able and not yet checked
    index: Any = None  # of the row, to report an error
    response: str = ""  # its start, as `shortened` shows it, to report an error
    of_tool: bool = False  # the error is that of a tool, a retriever or an interaction: no trajectory to score

    @classmethod
    def failure(cls, request: ScoreRequest, error: str, seconds: float = 0.0) -> Self:
        shown = shortened(request.solution_str)
        return cls(None, {}, error, seconds, request.data_source, index=request.index, response=shown)


class BadResult(ValueError):
    """A scoring function returned something that is not a score."""


def checked_result(value: Any, label: str = "the reward function") -> dict[str, Any]:
    """{"score", "info"} of what a scoring function returned; `info` holds the other keys of a dict, JSON-able."""
    if not isinstance(value, Mapping):
        return {"score": _number(value, f"{label} returned"), "info": {}}
    if "score" not in value:
        raise BadResult(f'{label} returned a dict without "score" (keys: {sorted(map(str, value))}); {_NEEDED}')
    score = _number(value["score"], f'{label} returned "score":')
    return {"score": score, "info": {str(key): plain(item) for key, item in value.items() if key != "score"}}


def checked_results(value: Any, count: int, label: str) -> list[dict[str, Any]]:
    """Per sample {"score", "info"}, or {"error"}: what is wrong with its result; BadResult if any sample lacks one."""
    is_one = isinstance(value, Mapping | str | bytes) or getattr(value, "shape", None) == ()
    items = None if is_one or not (hasattr(value, "__len__") and hasattr(value, "__iter__")) else list(value)
    if items is None or len(items) != count:
        found = _kind(value) if items is None else f"{len(items)} results"
        samples = "sample" if count == 1 else "samples"
        raise BadResult(f"{label} returned {found} for {count} {samples}; return a list with a result for each")
    results: list[dict[str, Any]] = []
    for i, item in enumerate(items):
        try:
            results.append(checked_result(item, f"{label}, for sample {i},"))
        except BadResult as error:
            results.append({"error": str(error)})
    return results


def shortened(text: str, length: int = SHOWN_RESPONSE) -> str:
    """The start of a text on one line, with everything that could command a terminal as codes."""
    cut = text if len(text) <= length else text[:length] + "…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)


def proposed_by(who: str, rows: Any) -> dict[str, Any]:
    """{who: rows}, or {} where none are proposed: what a batch holds of a trajectory in its column `new_prompts`."""
    nothing = rows is None or (isinstance(rows, list | tuple) and not rows)
    return {} if nothing else {who: rows}


def plain(value: Any) -> Any:
    """`value` in JSON's types: array scalars become numbers, arrays and tuples lists, anything else its text. What is
    nested too deeply, or holds itself, is replaced by a note, and so is a whole number too long for Python to write."""
    try:
        return _plain(value, DEEPEST)
    except RecursionError:
        return f"nested more than {DEEPEST} levels deep"


def _plain(value: Any, levels: int) -> Any:
    value = unboxed(value)
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        return f"a whole number of {value.bit_length()} bits"
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if not levels:
        raise RecursionError
    if isinstance(value, Mapping):
        return {str(key): _plain(item, levels - 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, levels - 1) for item in value]
    return str(value)


def unboxed(value: Any) -> Any:
    """Arrays and scalars of numpy and torch as Python lists and numbers (neither need be imported); others as is."""
    return value.tolist() if hasattr(value, "tolist") and hasattr(value, "shape") else value


def is_empty(value: Any) -> bool:
    return value is None or (hasattr(value, "__len__") and len(value) == 0)


def _number(value: Any, what: str) -> float:
    given = unboxed(value)
    if not isinstance(given, numbers.Real):
        raise BadResult(f"{what} {_kind(value)}; {_NEEDED}")
    try:
        number = float(given)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise BadResult(f"{what} {number}; {_NEEDED}")
    return number


def _kind(value: Any) -> str:
    shown = repr(value)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return shown if value is None else f"{shown} ({type(value).__name__})"
