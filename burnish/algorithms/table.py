"""A table of algorithms: a name or an import path in, a function and its `Needs` out. Imports no torch.

Built-in entries are import paths, so that a name can be checked and its needs read before anything heavy is loaded. A
user adds an entry with the table's decorator, or none at all: `my.module:function` or `my_loss.py:function` is imported
as it stands, and what it needs is read off its `needs` attribute.
"""

import difflib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from burnish.config.needs import OUTPUTS, Needs
from burnish.errors import ConfigError
from burnish.user_code import load_target

NOTHING = Needs()
Function = Callable[[Any], Any]
Fn = TypeVar("Fn", bound=Function)


@dataclass(frozen=True)
class Entry:
    """One algorithm: where its function is (or the function itself) and what it needs from the run.

    `choose` is for losses that compare the tokens of a whole mini-batch, see `losses`.
    """

    function: str | Function
    needs: Needs = NOTHING
    choose: str | Callable[..., Any] | None = None


@dataclass
class AlgorithmTable:
    key: str  # the configuration key, for messages
    entries: dict[str, Entry] = field(default_factory=dict)
    elsewhere: dict[str, str] = field(default_factory=dict)  # names that are something else here, and what to type

    def needs_of(self, name: str) -> Needs:
        """What the algorithm needs; a built-in name is answered without importing it."""
        return self._entry(name).needs

    def load(self, name: str) -> Function:
        function = self._entry(name).function
        return self._import(function) if isinstance(function, str) else function

    def is_built_in(self, name: str) -> bool:
        """Whether the algorithm is one of burnish's own, of which everything it reads is known."""
        entry = self.entries.get(name)
        return entry is not None and isinstance(entry.function, str)

    def load_choice(self, name: str) -> Callable[..., Any] | None:
        """The function that picks tokens for the algorithm; None where it needs none."""
        choose = self._entry(name).choose
        return load_target(choose, self.key) if isinstance(choose, str) else choose

    def register(
        self, name: str, needs: Needs = NOTHING, choose: Callable[..., Any] | None = None
    ) -> Callable[[Fn], Fn]:
        """Decorator that adds a user's function under `name`."""

        def add(function: Fn) -> Fn:
            known = self.entries.get(name)
            if known is not None and _origin(known.function) != _origin(function):
                raise ConfigError(f"{self.key}: the name {name!r} belongs to {_origin(known.function)}; choose another")
            self.entries[name] = Entry(function, needs, choose)
            function.entry = self.entries[name]  # type: ignore[attr-defined]  # read when it is named by import path
            return function

        return add

    def _entry(self, name: str) -> Entry:
        if name in self.entries:
            entry = self.entries[name]
        elif ":" in name:
            function = self._import(name)
            entry = getattr(function, "entry", None) or Entry(function, getattr(function, "needs", NOTHING))
        else:
            near = difflib.get_close_matches(name.lower(), self.entries, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            if name.lower() in self.elsewhere:
                hint = f": {self.elsewhere[name.lower()]}."
            raise ConfigError(
                f"{self.key}={name}: no such name{hint} There are {', '.join(sorted(self.entries))}; a custom "
                "function is named by its import path, my.module:function, or is registered in a module of "
                "actor_rollout_ref.model.external_lib"
            )
        needs, whose = entry.needs, f"{self.key}={name}: its needs"  # a user's own are whatever was written
        if not isinstance(needs, Needs):
            raise ConfigError(f"{whose} are of type {type(needs).__name__}; they must be a burnish.config.Needs(...)")
        if not isinstance(needs.outputs, tuple) or not all(output in OUTPUTS for output in needs.outputs):
            raise ConfigError(f"{whose} have outputs={needs.outputs!r}; it must be a tuple of {', '.join(OUTPUTS)}")
        return entry

    def _import(self, path: str) -> Function:
        function: Function = load_target(path, self.key)
        try:
            inspect.signature(function).bind(None)
        except TypeError as error:
            raise ConfigError(f"{self.key}={path} must be a function of one argument, the inputs ({error})") from error
        return function


def _origin(function: str | Function) -> str:
    return function if isinstance(function, str) else f"{function.__module__}:{function.__qualname__}"
