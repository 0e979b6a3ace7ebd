"""A scoring function: can it be called, and what does a call of it give?

`load_function` finds what the user named. `bind` makes a `ScoreFunction` of it, which is called with the parameters it
names and nothing else; a class is first constructed, once. What cannot be filled is a ConfigError that names the
parameter, the known names and the fix. Several functions are called as one, a `WeightedSum`; `bound` makes of a spec
what it stands for. `score_here` calls one in this process. No torch.
"""

import contextlib
import inspect
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from burnish.errors import ConfigError
from burnish.rewards import contract
from burnish.rewards.contract import (
    BATCH_PARAMETERS,
    HERE,
    PARAMETERS,
    BadResult,
    FunctionSpec,
    ScoreRequest,
    ScoreResult,
)
from burnish.user_code import listed, load_object, nearest, user_traceback

SECTION = "custom_reward_function"  # of the configuration
EXPECTED = f"compute_score({', '.join(PARAMETERS)}=None, **kwargs): any subset of these names"
#: What is said of a function in the batch form where nothing gathers a batch for it.
NEEDS_BATCH = (
    "it takes lists of samples (the batch form), which only the manager batch passes: set "
    f"reward_model.reward_manager=batch, or write it for one sample: {EXPECTED}"
)
objects: dict[str, Callable[..., Any]] = {}  # functions of the running program, by the name in the configuration
_SINGULAR = dict(zip((*PARAMETERS, *BATCH_PARAMETERS), PARAMETERS * 2, strict=True))


@dataclass(frozen=True)
class ScoreFunction:
    """A checked scoring function."""

    call: Callable[..., Any]
    fields: tuple[str, ...]  # those of PARAMETERS or of BATCH_PARAMETERS it takes
    constants: Mapping[str, Any]
    concurrent: bool  # a coroutine function, so one process may run several at once
    required: tuple[str, ...] = ()  # those of PARAMETERS it insists on
    batch: bool = False  # a call takes many samples; otherwise it takes one

    def __call__(self, *requests: ScoreRequest) -> Any:
        """What the function returns for these requests (an awaitable for an async function)."""
        lists = {name: [getattr(request, _SINGULAR[name]) for request in requests] for name in self.fields}
        if self.batch:
            return self.call(**lists, **self.constants)
        (_,) = requests
        return self.call(**{name: value for name, (value,) in lists.items()}, **self.constants)

    def answers(self, value: Any, count: int, label: str) -> list[dict[str, Any]]:
        """{"score", "info"} or {"error"} for each of `count` samples; BadResult where nothing can be read."""
        if self.batch:
            return contract.checked_results(value, count, label)
        return [contract.checked_result(value, label)]


@dataclass(frozen=True)
class Part:
    """One of several functions."""

    name: str
    weight: float
    function: ScoreFunction
    label: str


class WeightedSum:
    """Several functions of one form, called as one. The score is the weighted sum of theirs. `info` has the score of
    each under its name, then what else they return: under `<function>.<key>` where a name is taken."""

    def __init__(self, parts: Sequence[Part]):
        self.parts, functions = parts, [part.function for part in parts]
        self.concurrent = all(function.concurrent for function in functions)  # a plain one blocks its process
        self.batch = functions[0].batch
        self.required = tuple(dict.fromkeys(name for function in functions for name in function.required))

    def __call__(self, *requests: ScoreRequest) -> Any:
        """What each part returns, by name; awaitable where one of them is."""
        ordered = sorted(self.parts, key=lambda part: part.function.concurrent)  # plain ones raise before others begin
        values = {part.name: part.function(*requests) for part in ordered}
        waits = any(issubclass(type(value), Awaitable) for value in values.values())
        return _all_of(values) if waits else values

    def answers(self, value: Any, count: int, label: str) -> list[dict[str, Any]]:
        by_part = [part.function.answers(value[part.name], count, part.label) for part in self.parts]
        return [self._sum(results, label) for results in zip(*by_part, strict=True)]

    def _sum(self, results: Sequence[dict[str, Any]], label: str) -> dict[str, Any]:
        """Of one sample."""
        if failed := [result for result in results if "error" in result]:
            return failed[0]
        if sum(contract.NEW_PROMPTS in result["info"] for result in results) > 1:
            return {"error": f"{label}: several of them returned {contract.NEW_PROMPTS}; let one propose rows"}
        scores = {part.name: result["score"] for part, result in zip(self.parts, results, strict=True)}
        total: dict[str, Any] = {"score": sum(part.weight * scores[part.name] for part in self.parts), **scores}
        for part, result in zip(self.parts, results, strict=True):
            total |= {key if key not in total else f"{part.name}.{key}": item for key, item in result["info"].items()}
        try:
            return contract.checked_result(total, label)
        except BadResult as error:
            return {"error": str(error)}


async def _all_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values by name, awaited at the same time where they can be."""
    import asyncio  # a scoring process that needs none starts faster

    waiting = {name: value for name, value in values.items() if issubclass(type(value), Awaitable)}
    running = {name: asyncio.ensure_future(value) for name, value in waiting.items()}
    try:
        return {**values, **dict(zip(running, await asyncio.gather(*running.values()), strict=True))}
    finally:
        for one in running.values():
            one.cancel()


def bound(spec: FunctionSpec) -> ScoreFunction | WeightedSum:
    """What the configuration names, loaded and checked."""
    if spec.functions:
        parts = [Part(name, one.weight, _bound(one), f"{name} ({one.label})") for name, one in spec.functions.items()]
        lists, single = ([part.name for part in parts if part.function.batch is batch] for batch in (True, False))
        if lists and single:
            raise ConfigError(
                f"{spec.key}: {', '.join(lists)} takes lists of samples (the batch form) and {', '.join(single)} one "
                "sample; write all of them in one form"
            )
        return WeightedSum(parts)
    return _bound(spec)


def _bound(spec: FunctionSpec) -> ScoreFunction:
    if spec.path:
        found = load_function(spec.path, spec.name, spec.section)
    else:
        from burnish.rewards.routing import default_compute_score as found
    return bind(found, spec.key, spec.reward_kwargs, spec.section)


def load_function(path: str, name: str = "compute_score", section: str = SECTION) -> Callable[..., Any]:
    """The function, class or callable object `name` of a file (`my_reward.py`) or module (`package.rewards`)."""
    if path == HERE:
        if name not in objects:
            raise ConfigError(
                f"{section}.path={path}: {name} was a function of a Python program or notebook, which no other process "
                "has; save it in a file, and name that"
            )
        return objects[name]
    found: Callable[..., Any] = load_object(path, name, f"{section}.path", f"{section}.name")
    return found


def bind(
    found: Callable[..., Any],
    where: str,
    reward_kwargs: Mapping[str, Any] = MappingProxyType({}),
    section: str = SECTION,
) -> ScoreFunction:
    """Check that we can call `found` by keyword with what a row has and `reward_kwargs`; `where` and the `section` of
    the configuration name it. A class is constructed here, and its object is what is called."""
    built_with, of_class = frozenset[str](), frozenset[str]()
    if inspect.isclass(found):
        of_class = _accepted_names(found)[0]
        found, built_with = _construct(found, where, reward_kwargs, section)
    known, required = _form(found, where, reward_kwargs, section)
    names, takes_rest = _accepted_names(found)
    own = names - set(known)
    constants = {
        name: value for name, value in reward_kwargs.items() if name in own or (takes_rest and name not in built_with)
    }
    for name in reward_kwargs:
        if name not in constants and name not in built_with:
            there = own | of_class
            raise ConfigError(
                f"{section}.reward_kwargs.{name}: {where} has no such parameter (its own: {listed(there)})"
                f"{nearest(name, there)}"
            )
    fields = tuple(name for name in known if name in names or takes_rest)
    is_async = any(inspect.iscoroutinefunction(f) for f in (found, getattr(found, "__call__", None)))  # noqa: B004
    needed = tuple(_SINGULAR[name] for name in required)
    return ScoreFunction(found, fields, constants, is_async, needed, known is BATCH_PARAMETERS)


def _construct(
    cls: type, where: str, reward_kwargs: Mapping[str, Any], section: str
) -> tuple[Callable[..., Any], frozenset[str]]:
    """An object of the user's class, and the names of what its constructor took."""
    if not any("__call__" in vars(base) for base in cls.__mro__):
        raise ConfigError(
            f"{where}: {cls.__name__} is a class whose objects cannot be called; give it "
            f"__call__(self, {', '.join(PARAMETERS)}=None), with any subset of these names"
        )
    missing = [p.name for p in _without_default(_parameters(cls, where)) if p.name not in reward_kwargs]
    if missing:
        raise ConfigError(
            f"{where}: the constructor of {cls.__name__} requires {', '.join(missing)}; give it a value in "
            f"{section}.reward_kwargs.{missing[0]}, or a default"
        )
    names, takes_rest = _accepted_names(cls)
    of_call = _accepted_names(cls.__call__)[0] if takes_rest else frozenset()
    arguments = {
        name: value for name, value in reward_kwargs.items() if name in names or (takes_rest and name not in of_call)
    }
    try:
        return cls(**arguments), frozenset(arguments)
    except (Exception, SystemExit):  # noqa: BLE001  whatever a user's class raises is the user's to fix
        raise ConfigError(f"{where}: constructing {cls.__name__} failed\n{user_traceback()}") from None


def _form(
    function: Callable[..., Any], where: str, given: Mapping[str, Any], section: str
) -> tuple[tuple[str, ...], list[str]]:
    """PARAMETERS or BATCH_PARAMETERS, by what it names, and those of them that it insists on."""
    parameters = _parameters(function, where)
    if taken := sorted({*PARAMETERS, *BATCH_PARAMETERS} & set(given)):
        raise ConfigError(f"{section}.reward_kwargs.{taken[0]}: filled from the row; use another name")
    names, _ = _accepted_names(function)
    one, many = ([name for name in form if name in names] for form in (PARAMETERS, BATCH_PARAMETERS))
    if one and many:
        raise ConfigError(
            f"{where}: it takes both {', '.join(many)} (lists, the batch form) and {', '.join(one)} (one sample); "
            "use names of one form"
        )
    known = BATCH_PARAMETERS if many else PARAMETERS
    unknown = [p.name for p in _without_default(parameters) if p.name not in known and p.name not in given]
    if unknown:
        raise ConfigError(
            f"{where}: it requires {', '.join(unknown)}, which no row can fill{nearest(unknown[0], known)}. "
            f"Known names: {', '.join(known)}. Give one of your own a default, or a value in {section}.reward_kwargs"
        )
    return known, [p.name for p in parameters if p.name in known and p.default is p.empty]


def _accepted_names(function: Callable[..., Any]) -> tuple[frozenset[str], bool]:
    """The names `function` takes by keyword, and whether it takes any other (**kwargs)."""
    parameters = inspect.signature(function).parameters.values()
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return frozenset(p.name for p in parameters if p.kind in by_name), any(p.kind is p.VAR_KEYWORD for p in parameters)


def _without_default(parameters: Iterable[inspect.Parameter]) -> list[inspect.Parameter]:
    skip = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p for p in parameters if p.default is p.empty and p.kind not in skip]


def _parameters(function: Callable[..., Any], where: str) -> list[inspect.Parameter]:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: its signature cannot be read ({error}); wrap it in a def {EXPECTED}") from None
    positional = [p.name for p in _without_default(parameters) if p.kind is p.POSITIONAL_ONLY]
    if positional:
        raise ConfigError(
            f"{where}: {', '.join(positional)} cannot be given by keyword (positional-only); drop the '/'"
        )
    return parameters


def is_answer(answer: Any) -> bool:
    """Whether it is one of a function's `answers`. What ran in a scoring process may have sent anything."""
    match answer:
        case {"error": str()}:
            return True
        case {"score": float(score), "info": dict(info)}:
            with contextlib.suppress(BadResult):
                return contract.checked_result({**info, "score": score}) == {"score": score, "info": info}
    return False


def result_of(request: ScoreRequest, answer: Mapping[str, Any], seconds: float) -> ScoreResult:
    if "error" in answer:
        return ScoreResult.failure(request, answer["error"], seconds)
    info = dict(answer["info"])
    proposed = info.pop(contract.NEW_PROMPTS, None)
    return ScoreResult(answer["score"], info, None, seconds, request.data_source, new_prompts=proposed)


def score_here(
    function: ScoreFunction | WeightedSum, requests: Sequence[ScoreRequest], label: str
) -> list[ScoreResult]:
    """Score in this process, without a time limit: for our own quick scorers, and functions given as objects."""
    if not function.batch:
        return [_call_here(function, [request], label)[0] for request in requests]
    return _call_here(function, requests, label) if requests else []


def _call_here(
    function: ScoreFunction | WeightedSum, requests: Sequence[ScoreRequest], label: str
) -> list[ScoreResult]:
    began = time.perf_counter()
    found = answers_here(function, requests, label)
    each = (time.perf_counter() - began) / len(requests)
    return [result_of(request, answer, each) for request, answer in zip(requests, found, strict=True)]


def answers_here(
    function: ScoreFunction | WeightedSum, requests: Sequence[ScoreRequest], label: str
) -> list[dict[str, Any]]:
    """What a call in this thread gives, an entry per request."""
    count = len(requests)
    try:
        value = function(*requests)
        if issubclass(type(value), Coroutine):  # unlike inspect, it asks nothing of the value itself
            from burnish.loop_thread import run_to_end

            return run_to_end(awaited_answers(function, value, count, label))
        return function.answers(value, count, label)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001  the boundary of user code: a failing sample is data
        return [{"error": failure_text()}] * count


async def awaited_answers(
    function: ScoreFunction | WeightedSum, value: Awaitable[Any], count: int, label: str
) -> list[dict[str, Any]]:
    """Read in the task, for asyncio shows what a task returns or raises, and what cannot be shown would harm it."""
    import asyncio  # a scoring process that needs none starts faster

    try:
        return function.answers(await value, count, label)
    except BaseException:
        task = asyncio.current_task()
        if task is not None and task.cancelling():  # Ctrl-C
            raise
        return [{"error": failure_text()}] * count


def failure_text() -> str:
    """The exception being handled, as the user should read it: what a bad result was, or the traceback."""
    error = sys.exception()
    try:
        return str(error) if isinstance(error, BadResult) else user_traceback()
    except (Exception, SystemExit):  # noqa: BLE001  its class may raise when it is named
        return "it raised an exception that cannot be shown"
