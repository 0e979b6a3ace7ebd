"""`model.override_config`: settings that replace those of a folder's config.json and still fit its weights.

A setting by which the model would have other weights than the folder is refused, as is one without effect here.
"""

import copy
import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.config.values import show
from burnish.errors import ConfigError
from burnish.models.loading import named, quiet_transformers, reading

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

KEY = "model.override_config"
TYING = "tie_word_embeddings"


def overridden(
    folder: Path, config: "PreTrainedConfig", overrides: Mapping[str, Any], trust_remote_code: bool
) -> "PreTrainedConfig":
    merged = before = config.to_dict()
    for name, value in overrides.items():
        merged = merged | _override(folder, config, merged, name, value)
    layers = config.attribute_map.get("num_hidden_layers", "num_hidden_layers")
    if merged.get(layers) != before.get(layers) and "layer_types" not in overrides:
        merged.pop("layer_types", None)  # one for each layer: they are derived again
    asked = ", ".join(f"{name}={show(value)}" for name, value in overrides.items())
    with reading(folder, f"config.json with {KEY} {asked}"), quiet_transformers():
        changed = type(config).from_dict(merged)
        there, wanted = (weight_shapes(kind, trust_remote_code) for kind in (config, changed))
    unused, missing = sorted(there.keys() - wanted.keys()), sorted(wanted.keys() - there.keys())
    other = sorted(name for name in there.keys() & wanted.keys() if there[name] != wanted[name])
    problems = [f"{named(unused)} would be left unused"] if unused else []
    problems += [f"there is no {named(missing)}"] if missing else []
    problems += [f"{other[0]} would be {wanted[other[0]]} and is {there[other[0]]}"] if other else []
    if problems:
        raise ConfigError(
            f"{KEY} with {asked}: the weights in {folder} are of a model without it: {', '.join(problems)}; leave it "
            "out, or name the folder of a model that was saved so"
        )
    return changed


def _override(
    folder: Path, config: "PreTrainedConfig", settings: dict[str, Any], name: str, value: Any
) -> dict[str, Any]:
    """What one override replaces among the settings; ConfigError where it would have no effect."""
    if name == "rope_theta" and "rope_theta" in (settings.get("rope_parameters") or {}):
        return {"rope_parameters": settings["rope_parameters"] | {name: value}}
    known = settings.keys() | config.attribute_map.keys()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
        raise ConfigError(f"{KEY}.{name}: {config.model_type} models have no such setting (nearest: {near})")
    if name == "model_type" and value != config.model_type:
        raise ConfigError(f"{KEY}.{name}={show(value)}: {folder} holds a {config.model_type} model; leave it out")
    if name == "dtype":
        raise ConfigError(f"{KEY}.{name}={show(value)}: the weights get the type that model.dtype names; set that")
    if name == TYING and value != settings[TYING]:
        own = "has no separate output layer" if settings[TYING] else "has an output layer that would be left unused"
        raise ConfigError(f"{KEY}.{name}={show(value)}: the model in {folder} {own}; leave it out")
    for setting, single in _flat(name, value):
        if is_dropout(setting) and single not in (0, None):
            raise ConfigError(f"{KEY}.{setting}={show(single)}: dropout is always 0 here; leave it out")
    name = config.attribute_map.get(name, name)
    both = isinstance(value, dict) and isinstance(settings.get(name), dict)
    return {name: settings[name] | value if both else value}


def is_dropout(setting: str) -> bool:
    return "dropout" in setting or setting.endswith("pdrop")


def weight_shapes(config: "PreTrainedConfig", trust_remote_code: bool) -> dict[str, tuple[int, ...]]:
    """The weights that a language model of this configuration has, by name; none is made."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"), torch.random.fork_rng():
        module = AutoModelForCausalLM.from_config(copy.deepcopy(config), trust_remote_code=trust_remote_code)
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A setting, or those below it with their dotted names."""
    if not isinstance(value, dict):
        yield name, value
        return
    for part, inside in value.items():
        yield from _flat(f"{name}.{part}", inside)
