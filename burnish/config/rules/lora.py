"""LoRA: the package that it needs, and keys of an adapter where there is none, or where one brings its own."""

import importlib.util

from burnish.config.model import ModelConfig
from burnish.config.rules.given import Given
from burnish.errors import ConfigError, install_command

OF_AN_ADAPTER = ("lora_alpha", "target_modules", "exclude_modules")


def lora(model: ModelConfig, section: str, given: Given, *, trains: bool = True) -> None:
    """Check the adapter of the model at the key `section`; where nothing trains, it must be one that was trained."""
    keys = [f"{section}.{name}" for name in OF_AN_ADAPTER]
    if not model.has_lora:
        given.unused(f"{section}.lora_rank is 0: all weights are trained", *keys)
        return
    if not trains and model.lora_adapter_path is None:
        raise ConfigError(
            f"{section}.lora_rank={model.lora_rank}: this model is not trained, and a new adapter changes nothing; "
            f"leave it out, or name a trained adapter in {section}.lora_adapter_path"
        )
    need_peft()
    if model.lora_adapter_path is not None:
        given.unused(f"{section}.lora_adapter_path has its own", *keys)


def need_peft() -> None:
    if importlib.util.find_spec("peft") is None:
        raise ConfigError(f"a LoRA adapter needs the package peft; install it with `{install_command('lora')}`")
