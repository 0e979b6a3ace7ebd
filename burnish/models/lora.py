"""LoRA in training: adapters added to a module in place, switched off for the reference, and saved separately.

The module keeps its class; its linear layers become peft's. What trains is the adapter and, in a value or reward model,
the head. The base is never written, and the adapter stays unmerged for training and rollouts.

Left out: dropout (always 0, also where the initial adapter was trained with some), adapters of embeddings and output
layers, and PEFT's variants of LoRA, such as DoRA.
"""

import copy
import json
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from burnish.config.model import ModelConfig
from burnish.config.rules.models import need_peft
from burnish.errors import ConfigError, ModelError, NotAvailable
from burnish.models.adapters import (
    ADAPTER_WEIGHTS,
    NAME,
    Adapter,
    check_settings,
    incomplete,
    initial_adapter,
    peft_errors,
)
from burnish.models.folder import resolve_path
from burnish.models.loading import named

if TYPE_CHECKING:
    from peft import LoraConfig
    from transformers import PreTrainedModel

ALL_LINEAR = "all-linear"
PREFIX = "base_model.model."  # of every name in an adapter's file
HEADS = ("score", "classifier")  # of value and reward models: trained whole, next to the adapter
TASKS = {"ForTokenClassification": "TOKEN_CLS", "ForSequenceClassification": "SEQ_CLS"}
# Settings of an initial adapter, with the values that are known here; others may be another kind of layer.
KNOWN_SETTINGS: dict[str, tuple[Any, ...]] = {
    "bias": ("none",),
    "init_lora_weights": (True, False, "gaussian", "orthogonal", "eva"),  # the rest change weights of the base
    "layer_replication": (None,),
    "trainable_token_indices": (None,),
    "target_parameters": (None, []),
}


def has_adapter(module: nn.Module) -> bool:
    return bool(getattr(module, "peft_config", None))


def add_adapter(module: "PreTrainedModel", model_config: ModelConfig, *, seed: int) -> None:
    """Put the adapter of `model_config` into `module` and freeze the rest, but for the head of a value or reward model.
    A new adapter changes nothing yet: B is 0, A is drawn from `seed`. A given one gets the module's type."""
    need_peft()
    from peft import LoraConfig, inject_adapter_in_model

    adapter = initial_adapter(model_config)
    if adapter:
        config = _settings_of(adapter, module)
    else:
        targets = _targets(module, model_config.target_modules, model_config.exclude_modules or [])
        config = LoraConfig(r=model_config.lora_rank, lora_alpha=model_config.lora_alpha, target_modules=targets)  # type: ignore[arg-type]  # any number will do
    linear, brought = set(_linear_names(module)), set(config.modules_to_save or ())
    config.modules_to_save = None  # heads are trained where they are, without peft's copy
    config.base_model_name_or_path = _full_path(model_config.path or module.name_or_path)  # while it is there
    kind = type(module).__name__
    config.task_type = next((task for end, task in TASKS.items() if kind.endswith(end)), "CAUSAL_LM")
    # peft draws weights, which are drawn again here, and warns of what it then does right (Conv1D)
    with (
        torch.random.fork_rng(devices=[]),
        warnings.catch_warnings(),
        peft_errors(adapter) if adapter else nullcontext(),
    ):
        warnings.simplefilter("ignore")
        inject_adapter_in_model(config, module, NAME)
    for parameter in _stored_names(module).values():  # peft has frozen the rest; its own are of the base's type
        parameter.requires_grad_(True)
    if adapter:
        _fill(adapter, module, linear, brought)
        return
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():  # A as wide as a new linear layer of torch, on any device and in any type; B stays 0
        for layer in _layers(module).values():
            weight = layer.lora_A[NAME].weight
            drawn = torch.empty(weight.shape, dtype=torch.float32)
            weight.copy_(nn.init.kaiming_uniform_(drawn, a=math.sqrt(5), generator=generator))
            layer.lora_B[NAME].weight.zero_()


@contextmanager
def adapter_off(module: nn.Module) -> Iterator[None]:
    """Inside, the module computes what its base does; afterwards what was on is on again, and what required gradients
    requires them. Not for a value or reward model, whose head is trained without a copy."""
    layers = _layers(module)
    were_on = [not layer.disable_adapters for layer in layers.values()]
    gradients = [(p, p.requires_grad) for layer in layers.values() for p in layer.parameters()]
    for layer in layers.values():
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer, was_on in zip(layers.values(), were_on, strict=True):
            layer.enable_adapters(was_on)
        for parameter, required in gradients:
            parameter.requires_grad_(required)


def adapter_writer(module: "PreTrainedModel", hosted: Callable[[Tensor], Tensor]) -> Callable[[Path], None]:
    """Writes the adapter, with the head where it trains, so that peft reads it: when it is called, the weights of now
    if `hosted`, which brings a tensor to the host, copies it."""
    config: Any = copy.deepcopy(module.peft_config[NAME])
    config.base_model_name_or_path = _full_path(config.base_model_name_or_path)
    if not isinstance(config.target_modules, str):
        config.target_modules = sorted(config.target_modules)  # from a set: files of equal adapters are equal
    config.modules_to_save = _head_names(module) or None
    config.inference_mode = True
    # labels, and the padding token before which a reward model reads: not the base's
    of_head = copy.deepcopy(module.config) if _head_names(module) else None
    tensors = {name: hosted(p) for name, p in _stored_names(module).items()}

    def write(folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        config.save_pretrained(str(folder))
        if of_head is not None:
            of_head.save_pretrained(folder)
        save_file(tensors, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})

    return write


def adapter_settings(module: "PreTrainedModel") -> dict[str, Any]:
    """What the adapter computes with besides its weights, as it reads back from JSON; rank 0 where there is none."""
    if not has_adapter(module):
        return {"lora_rank": 0}
    config: Any = module.peft_config[NAME]
    names = ("use_rslora", "rank_pattern", "alpha_pattern", "layers_to_transform", "layers_pattern")
    targets = config.target_modules if isinstance(config.target_modules, str) else sorted(config.target_modules)
    settings = {"lora_rank": config.r, "lora_alpha": config.lora_alpha, "target_modules": targets}
    return json.loads(json.dumps(settings | {name: getattr(config, name) for name in names}))


def lora_of(linear: nn.Module) -> tuple[nn.Linear, list[tuple[Tensor, Tensor, float]]] | None:
    """The frozen layer and the (A (r, in), B (out, r), scale) that are added to it: y = base(x) + scale·B(A x).

    None for a plain Linear; an empty list while the adapter is off. NotAvailable for any other layer, also for an
    adapter of a kind whose arithmetic is another.
    """
    if type(linear) is nn.Linear:
        return None
    base: Any = None
    if hasattr(linear, "get_base_layer"):  # else it is none of peft's, which need not be installed
        from peft.tuners.lora import Linear

        base = linear.get_base_layer() if isinstance(linear, Linear) else None
    if type(base) is not nn.Linear:
        raise NotAvailable(f"the low-rank update of a {type(linear).__module__}.{type(linear).__name__}")
    layer: Any = linear
    if layer.disable_adapters and not layer.merged:
        return base, []
    if problem := _layer_problem(layer):
        raise NotAvailable(f"the low-rank update of a layer {problem}")
    parts = [name for name in layer.active_adapters if name in layer.lora_A]
    return base, [(layer.lora_A[n].weight, layer.lora_B[n].weight, float(layer.scaling[n])) for n in parts]


def _layer_problem(layer: Any) -> str | None:
    """Why a layer of peft is not base(x) + scale·B(A x), or None where it is."""
    active = layer.active_adapters
    if layer.merged:
        return "whose adapter is merged into its base"
    if len(active) > 1:
        return f"with several adapters ({', '.join(active)})"
    if any(layer.lora_variant.get(name) is not None for name in active):
        return f"with {type(layer.lora_variant[active[0]]).__name__}, which is not plain LoRA"
    if any(layer.lora_bias.get(name) for name in active):
        return "whose adapter has a bias (lora_bias)"
    if any(type(layer.lora_dropout[name]) is not nn.Identity for name in active if name in layer.lora_dropout):
        return "whose adapter has dropout"
    return None


def _targets(module: "PreTrainedModel", wanted: list[str], excluded: list[str]) -> list[str]:
    """The linear layers that get an adapter: by the ends of their names, or where those say too much, by all of it."""
    kind, linear = type(module).__name__, _linear_names(module)
    there = ", ".join(sorted({name.rpartition(".")[2] for name in linear}))
    chosen = set(linear) if [name.lower() for name in wanted] == [ALL_LINEAR] else set()
    for name in wanted if not chosen else ():
        found = {layer for layer in linear if _ends_with(layer, name)}
        if not found:
            problem = f"{kind} has no linear layer {name} that an adapter could be put on; it has"
            if any(_ends_with(other, name) for other, _ in module.named_modules()):
                problem = f"{name} of {kind} takes no adapter here; the linear layers that do are"
            raise ConfigError(f"model.target_modules: {problem} {there}, or all of them: {ALL_LINEAR}")
        chosen |= found
    for name in excluded:
        if not any(_ends_with(other, name) for other, _ in module.named_modules()):
            raise ConfigError(f"model.exclude_modules: {kind} has no module {name}; its linear layers are {there}")
        chosen = {layer for layer in chosen if not _ends_with(layer, name)}
    if not chosen:
        raise ConfigError(f"model.exclude_modules leaves nothing of model.target_modules; {kind} has {there}")
    ends = {name.rpartition(".")[2] for name in chosen}
    by_ends = {name for name, _ in module.named_modules() if any(_ends_with(name, end) for end in ends)}
    return sorted(ends if by_ends == chosen else chosen)


def _ends_with(name: str, end: str) -> bool:
    return f".{name}".endswith(f".{end}")


def _linear_names(module: "PreTrainedModel") -> list[str]:
    """All linear layers but the output layer, whose weight others may share, and heads, which are trained whole."""
    outside = [module.get_output_embeddings(), *(getattr(module, name) for name in _head_names(module))]
    heads = {id(part) for head in outside if head is not None for part in head.modules()}
    return [n for n, part in module.named_modules() if isinstance(part, nn.Linear | Conv1D) and id(part) not in heads]


def _head_names(module: nn.Module) -> list[str]:
    return [name for name in HEADS if isinstance(getattr(module, name, None), nn.Module)]


def _settings_of(adapter: Adapter, module: "PreTrainedModel") -> "LoraConfig":
    """The settings in the adapter's folder, of a kind that is known here."""
    from peft import LoraConfig, PeftConfig

    with peft_errors(adapter):
        config = PeftConfig.from_pretrained(str(adapter.folder))
        check_settings(adapter, config)
    assert isinstance(config, LoraConfig)
    for name, values in KNOWN_SETTINGS.items():
        if (value := getattr(config, name, values[0])) not in values:
            raise _other_kind(adapter, f"{name}={value}")
    if other := set(config.modules_to_save or ()) - set(_head_names(module)):
        raise _other_kind(adapter, f"modules_to_save={', '.join(sorted(other))}")
    config.lora_dropout, config.init_lora_weights, config.inference_mode = 0.0, True, False
    return config


def _other_kind(adapter: Adapter, what: str) -> NotAvailable:
    return NotAvailable(
        f"training from an adapter with {what} (lora_adapter_path={adapter.folder})",
        f"Merge it with `burnish export {adapter.folder} --out FOLDER` and train that model.",
    )


def _fill(adapter: Adapter, module: nn.Module, linear: set[str], heads: set[str]) -> None:
    """Load the weights of the adapter's file, each of which must have its place; a head that it has not got stays.
    NotAvailable unless every layer is plain LoRA on one of the `linear` layers."""
    from peft.tuners.lora import Linear

    for name, layer in _layers(module).items():
        if type(layer) is not Linear or name not in linear:
            raise _other_kind(adapter, f"{name} among its modules")
        if problem := _layer_problem(layer):
            raise _other_kind(adapter, f"a layer {problem}")
    where, parameters = adapter.folder / ADAPTER_WEIGHTS, _stored_names(module)
    own = tuple(f"{PREFIX}{name}." for name in _head_names(module) if name not in heads)
    if missing := sorted(n for n in parameters.keys() - adapter.tensors.keys() if not n.startswith(own)):
        raise incomplete(adapter, missing)
    if unexpected := sorted(adapter.tensors.keys() - parameters.keys()):
        raise ModelError(
            f"{where}: {named(unexpected)} does not fit {type(module).__name__}; it was made for another base"
        )
    for name, stored in adapter.tensors.items():
        if stored.shape != (here := tuple(parameters[name].shape)):
            raise ModelError(
                f"{where}: {name} is {stored.shape} there, {here} in this model; it was made for another base"
            )
    with torch.no_grad():
        for name, tensor in load_file(where).items():
            parameters[name].copy_(tensor)


def _layers(module: nn.Module) -> dict[str, Any]:
    """The layers with an adapter, by name; without peft there are none."""
    if not has_adapter(module):
        return {}
    from peft.tuners.tuners_utils import BaseTunerLayer

    return {name: part for name, part in module.named_modules() if isinstance(part, BaseTunerLayer)}


def _stored_names(module: nn.Module) -> dict[str, nn.Parameter]:
    """What trains, the adapter and the head, by its name in an adapter's file, which leaves out peft's name for it."""
    heads = tuple(f"{name}." for name in _head_names(module))
    inside = tuple(f"{name}." for name in _layers(module))
    return {
        f"{PREFIX}{name.replace(f'.{NAME}.', '.')}": parameter
        for name, parameter in module.named_parameters()
        if name.startswith(heads) or (name.startswith(inside) and f".{NAME}." in name)
    }


def _full_path(base: str) -> str:
    """A folder by its full path, so that it is found from anywhere; a hub id as it is."""
    if not Path(base).expanduser().is_dir():
        return base
    return str(resolve_path(base, weights=False).resolve())
