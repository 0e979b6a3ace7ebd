"""What the specs of engines have in common that burnish only hosts: a package to install, found without importing it,
the arguments that its program may be given, and the memory of its processes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from burnish.config.engines import EngineSpec, RolloutLoad
from burnish.config.nearest import nearest
from burnish.config.rollout import BaseRolloutConfig
from burnish.errors import ConfigError, NotAvailable


def token_bytes(model: Any, itemsize: int) -> int:
    """Memory for the keys and values of one token, by the model's configuration."""
    text = model.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return int(2 * text.num_hidden_layers * heads * size * itemsize)


@dataclass(frozen=True)
class HostedSpec(EngineSpec):
    """`name` is also that of the package that is imported."""

    packages: tuple[str, ...] = ()  # names that it is installed under
    least: tuple[int, ...] = ()  # the version that the engine was written against and is tested with
    install: str = ""
    keys: Mapping[str, str] = field(default_factory=dict)  # arguments that have a key in `rollout`
    fixed: Mapping[str, Any] = field(default_factory=dict)  # arguments that burnish relies on
    tried: frozenset[str] = frozenset()  # arguments that it was run with; all others are refused
    own_weights: bool = True
    in_flight_updates: bool = True
    lora: bool = False
    deterministic: bool = False
    has_pool: bool = True

    def check_installed(self, asked: str, choice: str) -> None:
        others = f"or use {choice}native, which takes the same keys"
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

    def check_arguments(self, rollout: BaseRolloutConfig, section: str) -> None:
        for name in rollout.engine_kwargs.get(self.name) or {}:
            key = f"{section}.engine_kwargs.{self.name}.{name}"
            if name in self.keys:
                raise ConfigError(f"{key}: set {section}.{self.keys[name]}")
            if name in self.fixed:
                raise ConfigError(
                    f"{key}: burnish sets it itself, because weights, token ids and log-probs are exchanged by it; "
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

    def kv_bytes(self, load: RolloutLoad) -> int:
        """Of keys and values on a CPU."""
        raise NotImplementedError

    def memory(self, load: RolloutLoad) -> int:
        """On a GPU its share, whatever it needs. On a CPU weights, the files that they come by, keys and values; of an
        engine that several processes share, the part of one of them."""
        if load.on_gpu and load.share is not None:
            return load.share
        shared_by = load.rollout.tensor_model_parallel_size if load.processes > 1 else 1
        return (2 * load.weights + self.kv_bytes(load)) // shared_by

    def memory_line(self, load: RolloutLoad, keeps: bool) -> tuple[str, str]:
        more = "" if load.on_gpu else ", and the files that its weights come by"
        more += ", also while it trains" if keeps else ""
        return "rollout engine", f"weights, keys and values of {self.name}'s own processes{more}"
