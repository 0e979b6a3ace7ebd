"""A scoring function: can it be called, and what does a call of it give?

`load_function` finds what the user named. `bind` makes a `ScoreFunction` of it, which is called with the parameters it
names and nothing else; a class is first constructed, once, with those of the user's arguments that its constructor
names. Errors are ConfigErrors (signature.py words most of them). `answers` reads what a call returned: an answer per
sample, {"score", "info"} or {"error"}. `score_here` does all of it in this process. No torch.
"""

import inspect
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from burnish.errors import ConfigError
from burnish.rewards.contract import (
    BATCH_PARAMETERS,
    PARAMETERS,
    BadResult,
    ScoreRequest,
    ScoreResult,
    checked_result,
    checked_results,
)
from burnish.rewards.signature import EXPECTED, accepted_names, init_names, read_signature, refuse_unknown
from burnish.user_code import load_object, user_traceback

#: What is said of a function in the batch form where nothing gathers a batch for it.
NEEDS_BATCH = (
    "it takes lists of samples (the batch form), which only the manager batch passes: set "
    f"reward_model.reward_manager=batch, or write it for one sample: {EXPECTED}"
)
_SINGULAR = dict(zip((*PARAMETERS, *BATCH_PARAMETERS), PARAMETERS * 2, strict=True))


@dataclass(frozen=True)
class ScoreFunction:
    """A checked scoring function. `concurrent`: it is a coroutine function, so one process may run several at once.
    `batch`: a call takes many samples; otherwise it takes one."""

    call: Callable[..., Any]
    fields: tuple[str, ...]  # those of PARAMETERS or of BATCH_PARAMETERS it takes
    constants: Mapping[str, Any]
    concurrent: bool
    required: tuple[str, ...] = ()  # those of PARAMETERS it insists on
    batch: bool = False

    def __call__(self, *requests: ScoreRequest) -> Any:
        """What the function returns for these requests (an awaitable for an async function)."""
        lists = {name: [getattr(request, _SINGULAR[name]) for request in requests] for name in self.fields}
        if self.batch:
            return self.call(**lists, **self.constants)
        (_,) = requests
        return self.call(**{name: value for name, (value,) in lists.items()}, **self.constants)


def load_function(path: str, name: str = "compute_score") -> Callable[..., Any]:
    """The function, class or callable object `name` of a file (`my_reward.py`) or module (`package.rewards`)."""
    found: Callable[..., Any] = load_object(path, name, "custom_reward_function.path", "custom_reward_function.name")
    return found


def bind(
    found: Callable[..., Any], where: str, reward_kwargs: Mapping[str, Any] = MappingProxyType({})
) -> ScoreFunction:
    """Check that we can call `found` by keyword with what a row has and `reward_kwargs`; `where` names it. A class is
    constructed here, and its object is what is called."""
    built_with, of_class = frozenset[str](), frozenset[str]()
    if inspect.isclass(found):
        of_class = accepted_names(found)[0]
        found, built_with = construct(found, where, reward_kwargs)
    signature = read_signature(found, where, reward_kwargs)
    constants = {
        name: value
        for name, value in reward_kwargs.items()
        if name in signature.own or (signature.rest and name not in built_with)
    }
    unused = [name for name in reward_kwargs if name not in constants and name not in built_with]
    refuse_unknown(where, signature.own | of_class, unused)
    is_async = any(inspect.iscoroutinefunction(f) for f in (found, getattr(found, "__call__", None)))  # noqa: B004
    needed = tuple(_SINGULAR[name] for name in signature.required)
    return ScoreFunction(found, signature.fields, constants, is_async, needed, signature.batch)


def construct(cls: type, where: str, reward_kwargs: Mapping[str, Any]) -> tuple[Callable[..., Any], frozenset[str]]:
    """An object of the user's class, and the names of what its constructor took."""
    if not any("__call__" in vars(base) for base in cls.__mro__):
        raise ConfigError(
            f"{where}: {cls.__name__} is a class whose objects cannot be called; give it "
            f"__call__(self, {', '.join(PARAMETERS)}=None), with any subset of these names"
        )
    names, takes_rest = init_names(cls, where, reward_kwargs)
    of_call = accepted_names(cls.__call__)[0] if takes_rest else frozenset()
    arguments = {
        name: value for name, value in reward_kwargs.items() if name in names or (takes_rest and name not in of_call)
    }
    try:
        return cls(**arguments), frozenset(arguments)
    except (Exception, SystemExit):  # noqa: BLE001  whatever a user's class raises is the user's to fix
        raise ConfigError(f"{where}: constructing {cls.__name__} failed\n{user_traceback()}") from None


def answers(function: ScoreFunction, value: Any, count: int, label: str) -> list[dict[str, Any]]:
    """What a call for `count` samples returned, one answer each; BadResult where it is nothing that can be read."""
    results = checked_results(value, count, label) if function.batch else [checked_result(value, label)]
    return [
        {"error": result} if isinstance(result, str) else {"score": result[0], "info": result[1]} for result in results
    ]


def result_of(request: ScoreRequest, answer: Mapping[str, Any], seconds: float) -> ScoreResult:
    """An answer as the result of its request."""
    if "error" in answer:
        return ScoreResult.failure(request, answer["error"], seconds)
    return ScoreResult.of(request, answer["score"], answer["info"], seconds)


def score_here(function: ScoreFunction, requests: Sequence[ScoreRequest], label: str) -> list[ScoreResult]:
    """Score in this process, without a time limit: for our own quick scorers, and functions given as objects."""
    if not function.batch:
        return [_call_here(function, [request], label)[0] for request in requests]
    return _call_here(function, requests, label) if requests else []


def _call_here(function: ScoreFunction, requests: Sequence[ScoreRequest], label: str) -> list[ScoreResult]:
    began = time.perf_counter()
    try:
        value = function(*requests)
        if inspect.iscoroutine(value):
            import asyncio  # here, as are threads: a scoring process that needs neither starts faster
            from concurrent.futures import ThreadPoolExecutor

            with ThreadPoolExecutor(max_workers=1) as thread:  # an event loop may run in this one, as in a notebook
                value = thread.submit(asyncio.run, value).result()
        found = answers(function, value, len(requests), label)
    except Exception:  # noqa: BLE001  the boundary of user code: a failing sample is data
        found = [{"error": failure_text()}] * len(requests)
    each = (time.perf_counter() - began) / len(requests)
    return [result_of(request, answer, each) for request, answer in zip(requests, found, strict=True)]


def failure_text() -> str:
    """The exception being handled, as the user should read it: what a bad result was, or the traceback."""
    error = sys.exception()
    return str(error) if isinstance(error, BadResult) else user_traceback()
