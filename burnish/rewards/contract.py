"""What crosses the boundaries of rewards: the request, the result, the function's address, and what a score may be.

A user writes `compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs)` and returns a number
or a dict with a number under "score"; or the batch form, which takes lists and returns a list of those. The key
`new_prompts` of such a dict is rows to train on. No torch, no numpy: this is loaded by every child.
"""

import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Self

#: The parameters a scoring function may name, filled from the row and the response.
PARAMETERS = ("data_source", "solution_str", "ground_truth", "extra_info")
#: Those of the batch form, in the same order; each is a list with an entry per sample.
BATCH_PARAMETERS = ("data_sources", "solution_strs", "ground_truths", "extra_infos")

#: The path of a function that is an object of the running program, which no other process has.
HERE = "the running program"

#: Where a scoring function's dict, an agent loop's extra fields and a manager's extra info hold rows to train on.
NEW_PROMPTS = "new_prompts"
#: The column of a batch with what the turns of a response earn besides its score.
TURN_REWARDS = "added_turn_rewards"

#: The largest score, of either sign: sums and squares of such scores stay far below what float32 holds.
LARGEST_SCORE = 1e15
#: Keys of a returned dict, and characters of a key.
MOST_KEYS, LONGEST_KEY = 1000, 200
#: Characters and items of a value in such a dict; of its `new_prompts`.
MOST_CONTENT, MOST_PROPOSED = 2**20, 2**26
#: Levels of lists and objects that a value may have, bits of a whole number in it, and of one that becomes a metric.
DEEPEST, MOST_BITS, FLOAT_BITS = 100, 10_000, 1023
#: Characters of a response that a report of its failure shows.
SHOWN_RESPONSE = 200

_NEEDED = 'return a finite number, or a dict with one under "score"'


@dataclass(frozen=True)
class FunctionSpec:
    """Where the scoring function is: a file or module, and a name; or several by name, whose weighted sum is the score.
    With neither: the scorer of the data source."""

    path: str | None = None
    name: str = "compute_score"
    reward_kwargs: Mapping[str, Any] = field(default_factory=dict)
    weight: float = 1.0  # in the sum
    functions: Mapping[str, "FunctionSpec"] = field(default_factory=dict)
    section: str = "custom_reward_function"  # of the configuration, which names it

    @property
    def is_custom(self) -> bool:
        return self.path is not None or bool(self.functions)

    @property
    def is_here(self) -> bool:
        return HERE in (self.path, *(one.path for one in self.functions.values()))

    @property
    def label(self) -> str:
        """How messages about a sample name the function."""
        if self.functions:
            return f"the sum of {' and '.join(self.functions)}"
        return f"{self.name} of {self.path}" if self.path else "the built-in scorer"

    @property
    def key(self) -> str:
        """How messages about the configuration name it."""
        if self.functions:
            return f"{self.section}.functions ({', '.join(self.functions)})"
        return f"{self.section}.name={self.name} ({self.path})" if self.path else self.label


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


class ScoringFailed(Exception):
    """This attempt failed; the text says why and is what the user reads."""


class NotLoaded(ScoringFailed):
    """The function cannot be loaded or called, so no other attempt could do better."""


def checked_result(value: Any, label: str = "the reward function") -> dict[str, Any]:
    """{"score", "info"} of what a scoring function returned, in JSON's types: `score` is a float that `score_problem`
    accepts, and `info` holds the other keys of a dict. Whatever the value does when it is read, the only error is
    BadResult."""
    try:
        if not isinstance(value, Mapping):
            return {"score": _number(value, f"{label} returned"), "info": {}}
        if "score" not in value:
            keys = shortened(str(sorted(str(key) for key in islice(value, MOST_KEYS))))
            raise BadResult(f'{label} returned a dict without "score" (keys: {keys}); {_NEEDED}')
        score = _number(value["score"], f'{label} returned "score":')
        info: dict[str, Any] = {}
        for count, (key, item) in enumerate(value.items()):
            name = str.__str__(str(key))
            if count > MOST_KEYS:
                raise BadResult(
                    f"{label} returned a dict with more than {MOST_KEYS} keys next to the score; return fewer"
                )
            if len(name) > LONGEST_KEY:
                raise BadResult(f"{label} returned a key of {len(name)} characters; {LONGEST_KEY} are allowed")
            if name in info:
                raise BadResult(f"{label} returned two keys that are both written {shortened(name)}; rename one")
            info[name] = None if name == "score" else info_value(item, name)
        del info["score"]
    except BadResult:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001  any method of a user's object may raise anything
        raise BadResult(f"{label} returned {_kind(value)}, which cannot be read: {_kind(error)}; {_NEEDED}") from None
    return {"score": score, "info": info}


def info_value(value: Any, name: str = "") -> Any:
    """What is kept of a value next to the score: `plain`, and a number only if a float holds it, for metrics."""
    kept = plain(value, MOST_PROPOSED if name == NEW_PROMPTS else MOST_CONTENT)
    return _long_int(kept) if isinstance(kept, int) and kept.bit_length() > FLOAT_BITS else kept


def score_problem(number: float) -> str | None:
    """Why this number is no score, and what to return instead; None: it is one."""
    if not math.isfinite(number):
        return _NEEDED
    if abs(number) > LARGEST_SCORE:
        return f"scores are at most {LARGEST_SCORE:g} in size, so that their statistics fit in float32; scale them"
    return None


def checked_results(value: Any, count: int, label: str) -> list[dict[str, Any]]:
    """Per sample {"score", "info"}, or {"error"}: what is wrong with its result; BadResult if any sample lacks one."""
    is_one = isinstance(value, Mapping | str | bytes) or getattr(value, "shape", None) == ()
    is_list = not is_one and hasattr(value, "__len__") and hasattr(value, "__iter__")
    items = list(islice(value, count + 1)) if is_list else None
    if items is None or len(items) != count:
        found = _kind(value) if items is None else f"{len(value)} results"
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


def plain(value: Any, most: float = math.inf) -> Any:
    """`value` in JSON's types: array scalars become numbers, arrays and tuples lists, anything else its text. A note
    replaces what is nested too deeply, holds itself, has more than `most` characters and items or cannot be read, and
    a whole number too long for Python to write."""
    try:
        return _plain(value, DEEPEST, [most])
    except RecursionError:
        return f"nested more than {DEEPEST} levels deep"
    except _TooLarge:
        return f"more than {most} characters and items"
    except (Exception, SystemExit) as error:  # noqa: BLE001  any method of a user's object may raise anything
        return f"cannot be read: {_kind(error)}"


class _TooLarge(Exception):
    """A value has more content than is kept."""


def _plain(value: Any, levels: int, left: list[float]) -> Any:
    """`left`: how much more content is kept. Of a subclass of a number or text the value, without its methods."""
    value = unboxed(value)
    if isinstance(value, int) and not isinstance(value, bool):
        value = int.__int__(value)
        value = _long_int(value) if value.bit_length() > MOST_BITS else value
    elif isinstance(value, float):
        value = float.__float__(value)
    elif not (value is None or isinstance(value, bool | Mapping | list | tuple | set | frozenset)):
        value = str.__str__(value if isinstance(value, str) else str(value))
    left[0] -= len(value) if isinstance(value, str) else 1
    if left[0] < 0:
        raise _TooLarge
    is_object, is_list = isinstance(value, Mapping), isinstance(value, list | tuple | set | frozenset)
    if not levels and (is_object or is_list):
        raise RecursionError
    if is_object:
        pairs = ((_plain(str(key), levels, left), item) for key, item in value.items())
        return {name: _plain(item, levels - 1, left) for name, item in pairs}
    return [_plain(item, levels - 1, left) for item in value] if is_list else value


def _long_int(value: int) -> str:
    return f"a whole number of {value.bit_length()} bits"


def unboxed(value: Any) -> Any:
    """Arrays and scalars of numpy and torch as Python lists and numbers (neither need be imported); others as is."""
    if not (hasattr(value, "tolist") and hasattr(value, "shape")):
        return value
    found = value.tolist()
    return float(found) if type(found) is type(value) else found  # numpy's long double has no number of Python's


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
    if problem := score_problem(number):
        raise BadResult(f"{what} {number}; {problem}")
    return number


def _kind(value: Any) -> str:
    """The start of a value's text and its type, on one line."""
    try:
        return shortened(repr(value), 80) + ("" if value is None else f" ({type(value).__name__})")
    except (Exception, SystemExit):  # noqa: BLE001  as above
        return "an object that cannot be shown"
