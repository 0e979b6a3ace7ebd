"""A scoring function: is its signature one we can call, and what does a call of it give?

`bind` checks a signature against the names we can fill and gives a `ScoreFunction` that is called with the parameters
it names and nothing else. Errors are ConfigErrors that name the parameter, the known names and the fix. `score_here`
calls one in this process. No torch.
"""

import asyncio
import inspect
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from burnish.config.user_code import listed, load_object, nearest, user_traceback
from burnish.errors import ConfigError, NotAvailable
from burnish.rewards.contract import (
    BATCH_PARAMETERS,
    NEW_PROMPTS,
    PARAMETERS,
    BadResult,
    ScoreRequest,
    ScoreResult,
    checked_result,
)

_EXPECTED = f"compute_score({', '.join(PARAMETERS)}=None, **kwargs): any subset of these names"


@dataclass(frozen=True)
class ScoreFunction:
    """A checked scoring function. `concurrent`: it is a coroutine function, so one process may run several at once."""

    call: Callable[..., Any]
    fields: tuple[str, ...]  # those of PARAMETERS it takes
    constants: Mapping[str, Any]
    concurrent: bool
    required: tuple[str, ...] = ()  # those it names without a default

    def __call__(self, request: ScoreRequest) -> Any:
        """What the function returns for this request (an awaitable for an async function)."""
        return self.call(**{name: getattr(request, name) for name in self.fields}, **self.constants)


def load_function(path: str, name: str = "compute_score") -> Callable[..., Any]:
    """The function `name` of a file (`my_reward.py`) or module (`package.rewards`)."""
    found = load_object(path, name, "custom_reward_function.path", "custom_reward_function.name")
    if inspect.isclass(found):
        raise ConfigError(f"custom_reward_function.name={name}: in {path} it is a class; name a function: {_EXPECTED}")
    return found


def bind(
    function: Callable[..., Any], where: str, reward_kwargs: Mapping[str, Any] = MappingProxyType({})
) -> ScoreFunction:
    """Check that we can call `function` by keyword with what a row has and `reward_kwargs`; `where` names it."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: its signature cannot be read ({error}); wrap it in a def {_EXPECTED}") from None
    names, takes_rest = accepted_names(function)
    taken = sorted(set(PARAMETERS) & set(reward_kwargs))
    if taken:
        raise ConfigError(f"custom_reward_function.reward_kwargs.{taken[0]}: filled from the row; use another name")
    _refuse_batch_form(where, [p.name for p in parameters])
    _check_required(where, parameters, reward_kwargs)
    if not takes_rest:
        _check_kwargs(where, names, reward_kwargs)
    fields = tuple(name for name in PARAMETERS if name in names or takes_rest)
    required = tuple(p.name for p in parameters if p.name in PARAMETERS and p.default is p.empty)
    return ScoreFunction(function, fields, dict(reward_kwargs), _is_async(function), required)


def accepted_names(function: Callable[..., Any]) -> tuple[frozenset[str], bool]:
    """The names `function` takes by keyword, and whether it takes any other (**kwargs)."""
    parameters = inspect.signature(function).parameters.values()
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = frozenset(p.name for p in parameters if p.kind in by_name)
    return names, any(p.kind is p.VAR_KEYWORD for p in parameters)


def score_here(function: ScoreFunction, request: ScoreRequest, label: str) -> ScoreResult:
    """Score in this process, without a time limit: for our own quick scorers, and functions given as objects."""
    began = time.perf_counter()
    score: float | None = None
    info: dict[str, Any] = {}
    error: str | None = None
    try:
        value = function(request)
        if inspect.iscoroutine(value):
            with ThreadPoolExecutor(max_workers=1) as thread:  # an event loop may run in this one, as in a notebook
                value = thread.submit(asyncio.run, value).result()
        score, info = checked_result(value, label)
    except Exception:  # noqa: BLE001  the boundary of user code: a failing sample is data
        error = failure_text()
    proposed = info.pop(NEW_PROMPTS, None)
    seconds = time.perf_counter() - began
    return ScoreResult(score, info, error, seconds, request.data_source, new_prompts=proposed)


def failure_text() -> str:
    """The exception being handled, as the user should read it: what a bad result was, or the traceback."""
    error = sys.exception()
    return str(error) if isinstance(error, BadResult) else user_traceback()


def _refuse_batch_form(where: str, names: list[str]) -> None:
    plural = [name for name in names if name in BATCH_PARAMETERS]
    if plural:
        raise NotAvailable(
            f"{where} takes lists ({', '.join(plural)}), which is the form of reward_model.reward_manager=batch",
            f"For now, write it for one sample: {_EXPECTED}",
        )


def _check_required(where: str, parameters: Iterable[inspect.Parameter], given: Mapping[str, Any]) -> None:
    skip = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = [p for p in parameters if p.default is p.empty and p.kind not in skip]
    positional = [p.name for p in required if p.kind is p.POSITIONAL_ONLY]
    if positional:
        raise ConfigError(
            f"{where}: {', '.join(positional)} cannot be given by keyword (positional-only); drop the '/'"
        )
    unknown = [p.name for p in required if p.name not in PARAMETERS and p.name not in given]
    if unknown:
        near = nearest(unknown[0], PARAMETERS)
        raise ConfigError(
            f"{where}: it requires {', '.join(unknown)}, which no row can fill{near}. "
            f"Known names: {', '.join(PARAMETERS)}. Give one of your own a default, or a value in "
            "custom_reward_function.reward_kwargs"
        )


def _check_kwargs(where: str, names: frozenset[str], given: Mapping[str, Any]) -> None:
    own = sorted(names - set(PARAMETERS))
    for key in given:
        if key not in names:
            raise ConfigError(
                f"custom_reward_function.reward_kwargs.{key}: {where} has no such parameter"
                f" (its own: {listed(own)}){nearest(key, own)}"
            )


def _is_async(function: Callable[..., Any]) -> bool:
    return any(inspect.iscoroutinefunction(f) for f in (function, getattr(function, "__call__", None)))  # noqa: B004
