"""The configuration in words: the short form that is printed, the full YAML that is kept, and the recipe of a run."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from burnish.config.key import keys_of, read
from burnish.config.values import show

RESOLVED = "# Every key of a run, with what follows from other keys filled in. To run it again, use recipe.yaml."


def explain(config: Any, explicit: frozenset[str] = frozenset()) -> str:
    """What differs from the defaults, a line per key.

    A key left null or auto and filled in since is still at its default; one that another key changed is marked.
    """
    changed = {
        name: (read(config, name), name in explicit)
        for name, known in keys_of(type(config)).items()
        if read(config, name) != known.default and (name in explicit or known.default not in (None, "auto"))
    }
    width = max((len(name) for name in changed), default=0)
    return "\n".join(
        f"{name:<{width}}  {show(value)}{'' if was_set else '  (follows from other keys)'}"
        for name, (value, was_set) in changed.items()
    )


def to_yaml(config: Any) -> str:
    """Every key with its value. For reading, not for running again: it does not show which keys were set.

    The first line states this; `command.py` refuses a recipe that begins with it.
    """
    from omegaconf import OmegaConf

    return f"{RESOLVED}\n{OmegaConf.to_yaml(OmegaConf.create(dataclasses.asdict(config)))}"


def to_recipe(given: Mapping[str, Any]) -> str:
    """The keys that were set, by dotted name, as a recipe: it reproduces the run, and takes overrides."""
    from omegaconf import OmegaConf

    recipe = OmegaConf.create({})
    for name, value in given.items():
        OmegaConf.update(recipe, name, value, force_add=True)
    return OmegaConf.to_yaml(recipe)
