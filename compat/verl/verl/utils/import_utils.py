"""Users' own modules and files, imported by name."""

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from burnish.user_code import import_libraries, load_module

Function = TypeVar("Function", bound=Callable[..., Any])


def import_external_libs(external_libs: str | Sequence[str] | None = None) -> None:
    import_libraries({"external_libs": external_libs})


def load_extern_object(module_path: str, object_name: str) -> Any:
    """What a file, or a module (`pkg://package.module`), calls so."""
    return getattr(load_module(module_path.removeprefix("pkg://").removeprefix("file://"), module_path), object_name)


def load_extern_type(file_path: str, type_name: str) -> Any:
    return load_extern_object(file_path, type_name)


def deprecated(replacement: str = "") -> Callable[[Function], Function]:
    """Decorator: a call warns, and names what replaces the function."""

    def decorate(function: Function) -> Function:
        words = f"{function.__qualname__} is deprecated" + (f"; use {replacement}" if replacement else "")

        @functools.wraps(function)
        def called(*arguments: Any, **named: Any) -> Any:
            warnings.warn(words, FutureWarning, stacklevel=2)
            return function(*arguments, **named)

        return called  # type: ignore[return-value]

    return decorate
