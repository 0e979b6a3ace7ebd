"""LoRA adapters in PEFT's format: read from a folder, applied to their base, and merged into it.

A folder may come from anyone: adapter_config.json is read as data, weights are read from safetensors only, and one that
is missing, unused or of another shape is an error. An `Adapter` needs no torch; peft is an extra.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.config.model import ModelConfig
from burnish.config.rules.models import need_peft
from burnish.errors import ConfigError, ModelError
from burnish.models.folder import (
    ADAPTER_CONFIG,
    StoredTensor,
    local_folder,
    newest_checkpoint,
    read_json,
    stored_tensors,
)
from burnish.models.loading import named

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

ADAPTER_WEIGHTS, PICKLED_WEIGHTS = "adapter_model.safetensors", "adapter_model.bin"
NAME = "default"  # peft's own name for an adapter that has none
PROBES = 16  # random inputs of a layer: two matrices that agree on all of them are the same
TOLERANCE = 1e-5  # of a layer's output, merged and unmerged in float32


@dataclass(frozen=True)
class Adapter:
    """An adapter folder, its settings as they are written there, and the tensors it holds."""

    folder: Path
    settings: dict[str, Any]
    tensors: dict[str, StoredTensor]

    @property
    def base(self) -> str | None:
        """The base model that adapter_config.json names: a folder or a hub id, wherever it was trained."""
        return self.settings.get("base_model_name_or_path") or None

    @property
    def rank(self) -> int:
        """The rank of its matrices, unless adapter_config.json makes exceptions (rank_pattern)."""
        return int(self.settings["r"])

    @property
    def revision(self) -> str | None:
        return self.settings.get("revision") or None


def is_adapter(folder: Path) -> bool:
    return (folder / ADAPTER_CONFIG).is_file()


def read_adapter(folder: Path) -> Adapter:
    """The adapter in `folder`; ModelError where it is not one that is safe to read and known here."""
    settings = read_json(folder / ADAPTER_CONFIG)
    kind = settings.get("peft_type")
    if kind != "LORA":
        raise ModelError(f"{folder / ADAPTER_CONFIG}: peft_type={kind} is not supported; LORA is")
    for name, what in (("base_model_name_or_path", "the name of a model"), ("revision", "a branch, tag or commit")):
        if not isinstance(value := settings.get(name), str | None):
            raise ModelError(f"{folder / ADAPTER_CONFIG}: {name}={value!r} should be {what}")
    if not isinstance(settings.get("r"), int):
        raise ModelError(f"{folder / ADAPTER_CONFIG}: r={settings.get('r')!r} should be the rank of the adapter")
    if settings.get("megatron_config"):
        raise ModelError(
            f"{folder / ADAPTER_CONFIG}: megatron_config is not supported; it asks for code to be imported"
        )
    weights = folder / ADAPTER_WEIGHTS
    if not weights.is_file():
        why = f"no {ADAPTER_WEIGHTS}"
        if (folder / PICKLED_WEIGHTS).is_file():
            why = f"{PICKLED_WEIGHTS} is a pickle, which can run code, and is not read"
        raise ModelError(f"{folder}: {why}; save the adapter with peft's save_pretrained, which writes safetensors")
    return Adapter(folder, settings, stored_tensors([weights]))


def initial_adapter(model: ModelConfig) -> Adapter | None:
    """The adapter that training starts from, or None. `lora_adapter_path` is the folder of an adapter, a
    `global_step_N` of a LoRA run or the run itself, or a hub id."""
    if model.lora_adapter_path is None:
        return None
    folder = local_folder(model.lora_adapter_path)
    if not is_adapter(folder):
        folder = newest_checkpoint(folder) or folder
        folder = folder if is_adapter(folder) else folder / "actor"
    if not is_adapter(folder):
        raise ModelError(
            f"lora_adapter_path={model.lora_adapter_path}: no {ADAPTER_CONFIG} there; name the folder of an adapter, "
            "or a checkpoint of a LoRA run"
        )
    adapter = read_adapter(folder)
    if model.lora_rank not in (0, adapter.rank):
        raise ConfigError(
            f"lora_rank={model.lora_rank} with lora_adapter_path={model.lora_adapter_path}: that adapter has rank "
            f"{adapter.rank}, which cannot be changed; leave lora_rank out"
        )
    return adapter


def apply_adapter(module: "PreTrainedModel", adapter: Adapter) -> "PeftModel":
    """`module` with the adapter on it, unmerged and in evaluation mode. The module itself is changed."""
    need_peft()
    import torch
    from peft import PeftConfig, PeftModel

    with peft_errors(adapter), torch.random.fork_rng():
        config = PeftConfig.from_pretrained(str(adapter.folder))
        check_settings(adapter, config)
        # Modules that were trained whole: each that the base has must be in the adapter. peft itself may not check.
        inside = [f".{name}." for name, _ in module.named_modules()]
        whole = getattr(config, "modules_to_save", None) or ()
        parts = [part for part in whole if any(name.endswith(f".{part}.") for name in inside)]
        if missing := [part for part in parts if not any(f".{part}." in name for name in adapter.tensors)]:
            raise incomplete(adapter, missing)
        config.inference_mode = True
        model = PeftModel(module, config, NAME)
        result = model.load_adapter(str(adapter.folder), NAME, torch_device=str(module.device))
    if result.missing_keys:  # peft only warns of these
        raise incomplete(adapter, result.missing_keys)
    if result.unexpected_keys:
        raise ModelError(
            f"{adapter.folder / ADAPTER_WEIGHTS}: {named(result.unexpected_keys)} does not fit the base model; name "
            "the adapter's own base with --base"
        )
    model.eval()
    return model


def merge(model: "PeftModel", adapter: Adapter) -> "PreTrainedModel":
    """The base with the adapter added to its weights; embeddings stay tied unless the adapter changes one of them.
    Linear layers and embeddings are merged one by one in float32, where each must compute what it did unmerged.
    Layers of other kinds, which peft merges as they are, show in the output of the model."""
    import torch
    from peft.tuners.lora import Embedding, Linear

    base: Any = model.get_base_model()
    pair = [base.get_input_embeddings(), base.get_output_embeddings()]
    own, tied = (getattr(part, "base_layer", part) for part in pair)
    adapted = own is not pair[0] or tied is not pair[1]
    if adapted and getattr(tied, "weight", None) is not None and tied.weight is own.weight:
        # merging the adapter of one of two tied embeddings would change the other one too: they get a copy
        tied.weight = torch.nn.Parameter(tied.weight.detach().clone(), requires_grad=False)
    with peft_errors(adapter):
        tuner: Any = model.base_model
        for name, layer in model.get_base_model().named_modules():
            if isinstance(layer, Linear | Embedding):
                _merge_layer(name, layer)
        merged: PreTrainedModel = tuner.merge_and_unload(safe_merge=True)
    inner, outer = merged.get_input_embeddings(), merged.get_output_embeddings()
    if outer is not None and inner.weight is not outer.weight:
        merged.config.get_text_config().tie_word_embeddings = merged.config.tie_word_embeddings = False
    return merged


def _merge_layer(name: str, layer: Any) -> None:
    """Merge and compare on inputs that show the weights: every row of an embedding, random vectors for a matrix."""
    import torch

    base = layer.get_base_layer()
    dtype, device = base.weight.dtype, base.weight.device
    layer.float()
    if isinstance(base, torch.nn.Embedding):
        inputs = torch.arange(base.num_embeddings, device=device).split(8192)
    else:
        generator = torch.Generator().manual_seed(0)
        inputs = (torch.randn(PROBES, layer.in_features, generator=generator).to(device),)
    with torch.no_grad():
        unmerged = [layer(part) for part in inputs]
        layer.merge(safe_merge=True)
        gaps = [torch.dist(base(part), before) for part, before in zip(inputs, unmerged, strict=True)]
    if any(not gap <= TOLERANCE * before.norm() for gap, before in zip(gaps, unmerged, strict=True)):
        raise ModelError(f"{name}: merged with the adapter, it computes something else than base and adapter unmerged")
    base.to(dtype)


def check_settings(adapter: Adapter, config: Any) -> None:
    """peft drops settings that it does not know; one that is set may mean another model."""
    import peft

    known = {field.name for field in fields(config)}
    if unknown := [name for name, value in adapter.settings.items() if value and name not in known]:
        raise ModelError(
            f"{adapter.folder / ADAPTER_CONFIG}: peft {peft.__version__} does not know the setting {named(unknown)}; "
            "install the version that the adapter was written with (peft_version in that file)"
        )


def incomplete(adapter: Adapter, missing: list[str]) -> ModelError:
    where = adapter.folder / ADAPTER_WEIGHTS
    return ModelError(f"{where}: lacks {named(missing)}; the adapter is incomplete or of another base model")


@contextmanager
def peft_errors(adapter: Adapter) -> Iterator[None]:
    """Whatever peft raises about an adapter becomes a ModelError on one line; what it warns of is checked here."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except ModelError:
        raise
    except Exception as error:  # a reader of foreign files: peft and safetensors raise their own types
        lines = str(error).strip().splitlines() or [type(error).__name__]
        sizes = [line.strip() for line in lines if "size mismatch for" in line]
        if sizes:
            raise ModelError(
                f"{adapter.folder}: the adapter does not fit the base model: {sizes[0].rstrip('.')} "
                f"({len(sizes)} such tensors); name the base it was trained on with --base"
            ) from error
        raise ModelError(f"{adapter.folder}: cannot use the adapter: {lines[0]}") from error
