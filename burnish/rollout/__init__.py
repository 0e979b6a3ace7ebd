"""Rollout engines by name. The contract is `rollout/base.py`; an engine is imported only when it is made.

Adding an engine is adding a file and a line in `ENGINES`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from burnish.errors import ConfigError, NotAvailable

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

    from burnish.config.model import ModelConfig
    from burnish.config.rollout import RolloutConfig
    from burnish.rollout.base import RolloutEngine

ENGINES = {"native": "burnish.rollout.native.engine:NativeEngine", "hf": "burnish.rollout.hf:HFEngine"}
LATER = {
    "vllm": "the vllm rollout engine, which needs the package vllm (pip install 'burnish[vllm]')",
    "sglang": "the sglang rollout engine, which needs the package sglang (pip install 'burnish[sglang]')",
}


def make_engine(name: str, module: Any, tokenizer: Any, config: "RolloutConfig") -> "RolloutEngine":
    """The engine called `name`, generating with `module` as `actor_rollout_ref.rollout` says."""
    there = ", ".join(f"rollout.name={known}" for known in ENGINES)
    if name in LATER:
        raise NotAvailable(LATER[name], f"This version has {there}.")
    if name not in ENGINES:
        raise ConfigError(f"actor_rollout_ref.rollout.name={name!r} is no rollout engine; this version has {there}")
    module_name, class_name = ENGINES[name].split(":")
    return getattr(import_module(module_name), class_name).from_config(module, tokenizer, config)


def load_engine(
    model: "ModelConfig",
    tokenizer: "PreTrainedTokenizerBase",
    rollout: "RolloutConfig",
    device: "torch.device",
    dtype: str | None = None,
) -> "RolloutEngine":
    """An engine that generates with the weights of a model folder, where nothing is trained."""
    from burnish.models.loading import load_causal_lm

    module = load_causal_lm(model.path, model, device, dtype).requires_grad_(False)
    return make_engine(rollout.name, module, tokenizer, rollout)
