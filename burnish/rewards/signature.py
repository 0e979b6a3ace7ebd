"""The signature of a scoring function against what can be given to it: the row's names, and the user's own.

`read_signature` says which form a function has (one sample, or lists of many) and which names it takes; what cannot be
filled is a ConfigError that names the parameter, the known names and the fix. Used by function.py. No torch.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from burnish.errors import ConfigError
from burnish.rewards.contract import BATCH_PARAMETERS, PARAMETERS
from burnish.user_code import listed, nearest

EXPECTED = f"compute_score({', '.join(PARAMETERS)}=None, **kwargs): any subset of these names"
KWARGS = "custom_reward_function.reward_kwargs"


@dataclass(frozen=True)
class Signature:
    """What a function takes: the row's `fields`, and `own` names besides; `required` are the fields without a default.
    `rest`: it takes any other keyword. `batch`: its fields are lists, named in the plural."""

    fields: tuple[str, ...]
    required: tuple[str, ...]
    own: frozenset[str]
    rest: bool
    batch: bool


def read_signature(function: Callable[..., object], where: str, given: Mapping[str, object]) -> Signature:
    """Check that `function` can be called by keyword with what a row has and those of `given` that it takes."""
    parameters = _parameters(function, where)
    taken = sorted({*PARAMETERS, *BATCH_PARAMETERS} & set(given))
    if taken:
        raise ConfigError(f"{KWARGS}.{taken[0]}: filled from the row; use another name")
    names, rest = accepted_names(function)
    one = [name for name in PARAMETERS if name in names]
    many = [name for name in BATCH_PARAMETERS if name in names]
    if one and many:
        raise ConfigError(
            f"{where}: it takes both {', '.join(many)} (lists, the batch form) and {', '.join(one)} (one sample); "
            "use names of one form"
        )
    known = BATCH_PARAMETERS if many else PARAMETERS
    unknown = [p.name for p in required(parameters) if p.name not in known and p.name not in given]
    if unknown:
        raise ConfigError(
            f"{where}: it requires {', '.join(unknown)}, which no row can fill{nearest(unknown[0], known)}. "
            f"Known names: {', '.join(known)}. Give one of your own a default, or a value in {KWARGS}"
        )
    return Signature(
        fields=tuple(name for name in known if name in names or rest),
        required=tuple(p.name for p in parameters if p.name in known and p.default is p.empty),
        own=names - set(known),
        rest=rest,
        batch=known is BATCH_PARAMETERS,
    )


def accepted_names(function: Callable[..., object]) -> tuple[frozenset[str], bool]:
    """The names `function` takes by keyword, and whether it takes any other (**kwargs)."""
    parameters = inspect.signature(function).parameters.values()
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = frozenset(p.name for p in parameters if p.kind in by_name)
    return names, any(p.kind is p.VAR_KEYWORD for p in parameters)


def init_names(cls: type, where: str, given: Mapping[str, object]) -> tuple[frozenset[str], bool]:
    """`accepted_names` of a class's constructor, which can only be filled from `given`."""
    parameters = _parameters(cls, where)
    missing = [p.name for p in required(parameters) if p.name not in given]
    if missing:
        raise ConfigError(
            f"{where}: the constructor of {cls.__name__} requires {', '.join(missing)}; give it a value in "
            f"{KWARGS}.{missing[0]}, or a default"
        )
    return accepted_names(cls)


def refuse_unknown(where: str, own: Iterable[str], given: Iterable[str]) -> None:
    """ConfigError for the first of the `given` names that is not among `own`."""
    own = list(own)
    for key in given:
        if key not in own:
            raise ConfigError(
                f"{KWARGS}.{key}: {where} has no such parameter (its own: {listed(own)}){nearest(key, own)}"
            )


def required(parameters: Iterable[inspect.Parameter]) -> list[inspect.Parameter]:
    """Those without a default."""
    skip = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p for p in parameters if p.default is p.empty and p.kind not in skip]


def _parameters(function: Callable[..., object], where: str) -> list[inspect.Parameter]:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: its signature cannot be read ({error}); wrap it in a def {EXPECTED}") from None
    positional = [p.name for p in required(parameters) if p.kind is p.POSITIONAL_ONLY]
    if positional:
        raise ConfigError(
            f"{where}: {', '.join(positional)} cannot be given by keyword (positional-only); drop the '/'"
        )
    return parameters
