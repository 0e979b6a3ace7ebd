"""A program that a rollout engine hosts: whether it is installed, found without importing it, and which arguments it
may be given. `vllm.py` and `sglang.py` have one each."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from burnish.config.nearest import nearest
from burnish.errors import ConfigError, NotAvailable


@dataclass(frozen=True)
class Program:
    """`name` is that of the engine and of what is imported, `label` is for people."""

    name: str
    label: str
    packages: tuple[str, ...]  # names that it is installed under
    least: tuple[int, ...]  # the version that the engine was written against and is tested with
    install: str
    instead: str  # the engine that needs no other package
    keys: Mapping[str, str]  # arguments that have a key of their own in `rollout`
    fixed: Mapping[str, Any]  # arguments that what burnish does with it rests on
    tried: frozenset[str]  # arguments that it was run with; all others are refused

    def need(self, asked: str, choice: str) -> None:
        """ConfigError where it is missing or too old. `asked` is what asks for it; `choice` and a name chooses one."""
        others = f"or use {choice}{self.instead}, which takes the same keys"
        if find_spec(self.name) is None:
            raise ConfigError(
                f"{asked} needs the package {self.name}, which is not installed ({self.install}); install it, {others}"
            )
        _, found = self.installed() or ("", None)
        numbers = re.findall(r"\d+", found or "")[: len(self.least)]
        if found is not None and tuple(int(number) for number in numbers) < self.least:
            least = ".".join(map(str, self.least))
            raise ConfigError(
                f"{asked} needs {self.label} {least} or newer, and {found} is installed ({self.install}); "
                f"install that, {others}"
            )

    def check_arguments(self, names: Iterable[str], section: str) -> None:
        """ConfigError for the first of `section`.engine_kwargs that is not the user's to give."""
        for name in names:
            key = f"{section}.engine_kwargs.{self.name}.{name}"
            if name in self.keys:
                raise ConfigError(f"{key}: set {section}.{self.keys[name]}")
            if name in self.fixed:
                raise ConfigError(
                    f"{key}: burnish sets it itself, because weights, token ids and log-probs pass between them by it; "
                    "leave it out"
                )
            if name not in self.tried:
                near = nearest(name, self.tried)
                raise NotAvailable(
                    f"{key}: {self.label} was never run with it here, so tokens, log-probs or weights could be wrong",
                    f"Did you mean {near}?" if near else f"Leave it out; taken are {', '.join(sorted(self.tried))}",
                )

    def installed(self) -> tuple[str, str] | None:
        """Package and version. None: installed in a way that does not say, such as from a source tree."""
        for name in self.packages:
            try:
                return name, version(name)
            except PackageNotFoundError:
                continue
        return None
