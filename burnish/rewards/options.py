"""The values that an option of a built-in scorer takes, as the annotation of its parameter says.

Choices (`Literal`), switches (`bool`) and numbers (`float`) are looked at; any other annotation takes everything.
"""

import functools
import inspect
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

from burnish.user_code import nearest


@functools.cache
def annotations(function: Callable[..., Any]) -> Mapping[str, Any]:
    """The parameters of a scorer, with their annotations."""
    return {name: parameter.annotation for name, parameter in inspect.signature(function).parameters.items()}


def takes(annotation: Any, value: Any) -> bool:
    """Whether an option so annotated takes the value."""
    if get_origin(annotation) is Literal:
        return value in get_args(annotation)
    if annotation is bool:
        return isinstance(value, bool)
    return annotation is not float or (isinstance(value, numbers.Real) and not isinstance(value, bool))


def value_problem(of_scorers: Sequence[Any], value: Any) -> str | None:
    """What a value must be instead, where none of the scorers that have the option, annotated so, takes it."""
    if any(takes(annotation, value) for annotation in of_scorers):
        return None
    choices = [str(choice) for annotation in of_scorers for choice in get_args(annotation)]
    if choices:
        return f"must be one of {', '.join(choices)}{nearest(str(value), choices)}"
    return "must be true or false" if bool in of_scorers else "must be a number"
