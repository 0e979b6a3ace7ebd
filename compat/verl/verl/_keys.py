"""burnish's configuration, read as users' files read verl's: `config.lr`, `config["lr"]`, `config.get("lr", 1e-6)`."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any


class KeyView(Mapping[str, Any]):
    """One section of the configuration; `more` are names that verl has there and burnish has not."""

    def __init__(self, section: Any, **more: Any):
        self.section, self._more = section, more

    def __getitem__(self, name: str) -> Any:
        if name in self._more:
            return self._more[name]
        if name not in list(self):
            raise KeyError(name)
        value = getattr(self.section, name)
        return KeyView(value) if is_dataclass(value) else value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self:
            raise AttributeError(f"{type(self.section).__name__} has no key {name!r}")
        return self[name]

    def __iter__(self) -> Iterator[str]:
        yield from (item.name for item in fields(self.section))
        yield from self._more

    def __len__(self) -> int:
        return sum(1 for _ in self)


def section_of(config: Any, cls: type) -> Any:
    """The section of burnish's configuration that a view shows; else one of `cls` with the keys that `config` has, any
    mapping or object."""
    found = getattr(config, "section", config)
    if isinstance(found, cls):
        return found

    def given(name: str) -> Any:
        return (
            config.get(name) if isinstance(config, Mapping) or hasattr(config, "get") else getattr(config, name, None)
        )

    values = {item.name: given(item.name) for item in fields(cls)} if config is not None else {}
    return cls(**{name: value for name, value in values.items() if isinstance(value, bool | int | float | str)})
