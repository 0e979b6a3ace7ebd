"""The configuration in words: the short form that is printed, and the full YAML that is kept."""

import dataclasses
from typing import Any

from burnish.config.key import keys_of, read
from burnish.config.values import show


def explain(config: Any, explicit: frozenset[str] = frozenset()) -> str:
    """What differs from the defaults, a line per key.

    A key that was left null and filled in since is still at its default; one that another key changed is marked.
    """
    changed = {
        name: (read(config, name), name in explicit)
        for name, known in keys_of(type(config)).items()
        if read(config, name) != known.default and (name in explicit or known.default is not None)
    }
    width = max((len(name) for name in changed), default=0)
    return "\n".join(
        f"{name:<{width}}  {show(value)}{'' if was_set else '  (follows from other keys)'}"
        for name, (value, was_set) in changed.items()
    )


def to_yaml(config: Any) -> str:
    """Every key with its value, as YAML that --config-name reads back."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.create(dataclasses.asdict(config)))
