"""Rollout engines by name. The contract is `rollout/base.py`; an engine is imported only when it is made.

Adding an engine is adding a folder and a line in `ENGINES`: the module with its `SPEC` (`config/engines.py`), which
imports no torch and names the engine's class.
"""

from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from burnish.config.engines import engine_spec
from burnish.config.rules import Given

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from transformers import PreTrainedTokenizerBase

    from burnish.config.model import ModelConfig
    from burnish.config.rollout import BaseRolloutConfig
    from burnish.rollout.base import RolloutEngine

ENGINES = {
    "native": "burnish.rollout.native.spec",
    "hf": "burnish.rollout.hf.spec",
    "vllm": "burnish.rollout.vllm.spec",
    "sglang": "burnish.rollout.sglang.spec",
}


def make_engine(
    name: str, module: Any, tokenizer: Any, config: "BaseRolloutConfig", logs: "Path | None" = None
) -> "RolloutEngine":
    """The engine called `name`, generating with `module` as `actor_rollout_ref.rollout` says. `logs`: of its separate
    processes; None: the temporary folder, where only the log of an engine that was lost stays."""
    made: RolloutEngine = engine_class(name).from_config(module, tokenizer, config, logs)
    return made


def engine_class(name: str) -> Any:
    module_name, class_name = engine_spec(name).path.split(":")
    return getattr(import_module(module_name), class_name)


def load_engine(
    model: "ModelConfig",
    tokenizer: "PreTrainedTokenizerBase",
    rollout: "BaseRolloutConfig",
    device: "torch.device",
    dtype: str | None = None,
    choice: str = "rollout.name=",
) -> "RolloutEngine":
    """An engine that generates with the weights of a model folder, where nothing is trained. Its caller closes it.
    `choice` and a name is what errors call the choice of another engine. A program is given the weights from the CPU's
    memory, so that all of the GPU's is left to it, must give a fixed sequence the log-probs that they give it there,
    and is replaced when it is lost."""
    import torch

    from burnish.models.device import dtype_on
    from burnish.models.loading import load_causal_lm

    spec = engine_spec(rollout.name, choice)
    spec.check_devices(rollout, "rollout", torch.cuda.device_count() if device.type == "cuda" else 0, choice)
    if device.type == "cpu":
        spec.check_cpu(rollout, "rollout", Given(), choice)
    dtype = dtype_on(device, dtype or model.dtype)
    if not spec.own_weights:
        module = load_causal_lm(model.path, model, device, dtype).requires_grad_(False)
        return make_engine(rollout.name, module, tokenizer, rollout)
    from burnish.rollout.hosted.weights import proof_by
    from burnish.rollout.replacing import ReplacingEngine

    model = replace(model, attn_implementation="auto")  # the others may be for GPUs only
    module = load_causal_lm(model.path, model, "cpu", dtype).requires_grad_(False)
    program: Any = make_engine(rollout.name, module, tokenizer, rollout)
    engine = ReplacingEngine(program)
    try:
        program.expect(proof_by(module, 0, engine.context, program.dtype))
        engine.publish([{name: parameter} for name, parameter in module.named_parameters()], 0)
    except BaseException:
        engine.close()
        raise
    return engine
