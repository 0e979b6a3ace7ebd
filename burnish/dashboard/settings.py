"""Configurations of runs next to each other: what differs from the defaults, or from one run to another."""

import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from burnish.config import PPOConfig, RMConfig, SFTConfig
from burnish.config.build import flatten
from burnish.config.key import KnownKey, keys_of
from burnish.dashboard.folders import read_yaml
from burnish.tracking.run_folder import CONFIG_FILE, RECIPE_FILE
from burnish.web import HttpProblem

_repr = reprlib.Repr()  # aliases can make a value of YAML huge
_repr.maxlevel, _repr.maxstring, _repr.maxlist, _repr.maxdict, _repr.maxother = 3, 2000, 50, 50, 200


def compare(folders: Mapping[str, Path], every: bool = False) -> list[dict[str, Any]]:
    """A row for each key: its default, what it means, and of each run the value and whether it was set. Without `every`
    only keys that differ from the default in a run, or between runs."""
    values = {name: read_yaml(folder / CONFIG_FILE) for name, folder in folders.items()}
    known = _keys(next(iter(values.values())))
    flat = {name: flatten(one, known) for name, one in values.items()}
    given = {name: flatten(_recipe(folder), known) for name, folder in folders.items()}
    rows = []
    for key, about in known.items():
        row = [flat[name].get(key, about.default) for name in folders]  # one that an older run does not know
        was_set = [key in given[name] for name in folders]
        # A key left null or auto and filled in since is still at its default.
        differs = any(
            value != about.default and (was or about.default not in (None, "auto"))
            for value, was in zip(row, was_set, strict=True)
        )
        if every or differs or any(value != row[0] for value in row):
            rows.append(
                {
                    "key": key,
                    "meaning": about.about.doc,
                    "default": _repr.repr(about.default),
                    "values": [_repr.repr(value) for value in row],
                    "set": was_set,
                }
            )
    return rows


def _recipe(folder: Path) -> dict[str, Any]:
    try:
        return read_yaml(folder / RECIPE_FILE)
    except HttpProblem:  # a run that was copied without it, or that set nothing
        return {}


def _keys(values: Mapping[str, Any]) -> Mapping[str, KnownKey]:
    """Those of the command that wrote it: the one that knows most of them."""
    tables = [keys_of(root) for root in (PPOConfig, SFTConfig, RMConfig)]
    return max(tables, key=lambda known: sum(name in known for name in flatten(values, known)))
