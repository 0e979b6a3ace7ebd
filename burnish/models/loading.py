"""Tokenizers, policies, value and reward models from a model folder, loaded with transformers.

Modules have dropout off and every weight accounted for: one that the folder lacks is an error, never a silent random
one, except for the head of a value model or of a reward model that is to be trained. On no device (None) weights are
left in their files where that is possible, mapped: they are read when they are used. torch and transformers are
imported inside the functions: `check_reward_model` needs none.
"""

import copy
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.config.model import ModelConfig
from burnish.errors import ModelError
from burnish.models.device import dtype_on
from burnish.models.facts import check_config
from burnish.models.folder import (
    TOKENIZER_FILES,
    check_tokenizer,
    read_json,
    resolve_path,
    safetensors_files,
    stored_tensors,
)
from burnish.user_code import import_libraries

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from burnish.models.adapters import Adapter


logger = logging.getLogger(__name__)
_gate = threading.Lock()  # transformers sets defaults of the whole process while it loads

ALIGNMENT = 64  # bytes: what torch's own memory has
CLASSIFIER = "Classification"  # in the names of the architectures that have a head with labels
HEADS = ("score.weight", "classifier.weight")  # the names of such a head
STORED_TYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}  # as safetensors writes them
COMPUTE_TYPE = "compute_type"  # of a module whose mapped weights are of another one, until they are read
LABELS_BY_DEFAULT = ("LABEL_0", "LABEL_1")  # transformers' own, which config.json leaves out


@dataclass(frozen=True)
class LoadedModel:
    """A module in evaluation mode, and how the folder's weights differ from the architecture's."""

    module: "PreTrainedModel"
    missing: list[str]  # weights that the folder does not hold: the module has random ones there
    unused: list[str]  # weights that the architecture does not have

    @property
    def missing_backbone(self) -> list[str]:
        return [name for name in self.missing if name.startswith(f"{self.module.base_model_prefix}.")]


def load_tokenizer(path: str | Path, trust_remote_code: bool = False) -> "PreTrainedTokenizerBase":
    """The tokenizer in `path`. Without a pad token it pads with end-of-sequence, and warns; one that was sampled is
    trained all the same, because padding is recognised by masks."""
    folder = resolve_path(path, weights=False)
    check_tokenizer(folder)
    tokenizer = read_tokenizer(folder, trust_remote_code)
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token is None:
            raise ModelError(f"{folder}: the tokenizer has neither a pad nor an end-of-sequence token; set one")
        tokenizer.pad_token = tokenizer.eos_token
        logger.warning("%s: no pad token; %s is used for padding, which is masked", folder, tokenizer.eos_token)
    return tokenizer


def read_tokenizer(folder: Path, trust_remote_code: bool = False) -> "PreTrainedTokenizerBase":
    from transformers import AutoTokenizer

    with reading(folder, "the tokenizer"), quiet_transformers():
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)


def load_causal_lm(
    path: str | Path,
    model_config: ModelConfig,
    device: "str | torch.device | None" = "cpu",
    dtype: str | None = None,
    *,
    seed: int = 0,
) -> "PreTrainedModel":
    """The policy in `path`, in `dtype` or else `model_config.dtype`; a new adapter is from `seed`."""
    from transformers import AutoModelForCausalLM

    folder = resolve_path(path)
    config = _read_config(folder, model_config)
    if classifiers := [name for name in config.architectures or [] if CLASSIFIER in name]:
        raise ModelError(
            f"{folder}: {', '.join(classifiers)} gives scores (a reward model, or a critic) and cannot write; name the "
            "folder of a language model, e.g. the one that it was trained from"
        )
    loaded = _load(AutoModelForCausalLM, folder, config, model_config, dtype or model_config.dtype, device)
    _refuse_missing(folder, loaded.missing)
    return _prepared(loaded.module, model_config, device, seed)


def load_value_model(
    path: str | Path,
    model_config: ModelConfig,
    device: "str | torch.device | None" = "cpu",
    seed: int = 0,
    dtype: str | None = None,
) -> "PreTrainedModel":
    """A token classifier with one label: the folder's own head where it has one (a reward model's counts, with bias 0),
    else a new one from `seed`."""
    from transformers import AutoModelForTokenClassification

    folder = resolve_path(path)
    config = _read_config(folder, model_config)
    config.num_labels = 1
    config.classifier_dropout = 0.0  # where it is absent, transformers drops a tenth of the head's input
    loaded = _load(AutoModelForTokenClassification, folder, config, model_config, dtype or model_config.dtype, device)
    _refuse_missing(folder, loaded.missing_backbone)
    _initialise(loaded.module, _adopt_head(folder, loaded), seed)
    return _prepared(loaded.module, model_config, device, seed)


def _adopt_head(folder: Path, loaded: LoadedModel) -> list[str]:
    """Use a reward model's head under the name that it has here (GPT-2's `score`, `classifier`); returns what still
    is missing."""
    from safetensors import safe_open

    wanted = [name for name in loaded.missing if name in HEADS]
    there = [name for name in loaded.unused if name in HEADS]
    if len(wanted) != 1 or len(there) != 1:
        return loaded.missing
    tensor = None
    for file in safetensors_files(folder):
        with safe_open(file, framework="pt") as tensors:
            if there[0] in tensors.keys():  # noqa: SIM118 - a safetensors file is no dict
                tensor = tensors.get_tensor(there[0])
    parameter = loaded.module.get_parameter(wanted[0])
    if tensor is None or tensor.shape != parameter.shape:
        raise ModelError(
            f"{folder}: its head {there[0]} cannot be used as the value head {wanted[0]}, which needs one label and "
            "safetensors weights; name another folder, or save this one with num_labels=1 as safetensors"
        )
    parameter.data.copy_(tensor)
    return [name for name in loaded.missing if name != wanted[0]]


def load_reward_model(
    path: str | Path,
    model_config: ModelConfig,
    device: "str | torch.device | None" = "cpu",
    *,
    pad_token_id: int | None = None,
    new_head_seed: int | None = None,
    dtype: str | None = None,
) -> "PreTrainedModel":
    """A classifier of sequences, or of tokens, with one label, which gives a conversation its score. For training,
    `new_head_seed` draws a head for a folder without one, and one that names no padding token gets `pad_token_id`.
    Otherwise a missing head or several labels are an error."""
    from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

    folder = resolve_path(path)
    config = _read_config(folder, model_config)
    is_classifier = any(CLASSIFIER in name for name in config.architectures or [])
    if is_classifier and config.num_labels != 1:
        raise ModelError(_other_labels(folder, config.num_labels))
    config.num_labels, config.classifier_dropout = 1, 0.0
    if (judge := _adapter_with_head(model_config)) and (judge.folder / "config.json").is_file():
        own = _config_of(judge.folder, model_config.trust_remote_code).get_text_config()
        config.get_text_config().pad_token_id = own.pad_token_id
    if new_head_seed is not None and config.get_text_config().pad_token_id is None:
        config.get_text_config().pad_token_id = pad_token_id
    of_tokens = is_classifier and any("TokenClassification" in name for name in config.architectures)
    auto_class = AutoModelForTokenClassification if of_tokens else AutoModelForSequenceClassification
    loaded = _load(auto_class, folder, config, model_config, dtype or model_config.dtype, device)
    _refuse_missing(folder, loaded.missing_backbone)
    if loaded.missing and new_head_seed is None and judge is None:
        raise ModelError(_no_head(folder, f"the weights lack {named(loaded.missing)}, the head that gives the score"))
    _initialise(loaded.module, loaded.missing, new_head_seed or 0)
    return _prepared(loaded.module, model_config, device, new_head_seed or 0)


def check_reward_model(model: ModelConfig) -> None:
    """ModelError if the files of `reward_model.model` show, unloaded and without torch, that it cannot score."""
    with naming("reward_model.model.tokenizer_path" if model.tokenizer_path else "reward_model.model.path"):
        tokenizer = resolve_path(model.tokenizer_path or model.path, weights=False)
        if not any((tokenizer / name).is_file() for name in TOKENIZER_FILES):
            raise ModelError(
                f"{tokenizer}: no tokenizer, and a reward model reads with its own; save the one it was trained with "
                "there, or name a folder that has it in reward_model.model.tokenizer_path"
            )
    with naming("reward_model.model.lora_adapter_path"):
        if _adapter_with_head(model):
            return
    with naming("reward_model.model.path"):
        folder = resolve_path(model.path, weights=False)
        config = read_json(folder / "config.json")
        architectures = config.get("architectures") or []
        labels = config.get("num_labels") or len(config.get("id2label") or LABELS_BY_DEFAULT)
        if any(CLASSIFIER in name for name in architectures):
            if labels != 1:
                raise ModelError(_other_labels(folder, labels))
            return
        tensors = stored_tensors([file for file in safetensors_files(folder) if file.is_file()])
        if tensors and not any(name in tensors for name in HEADS):
            kind = ", ".join(architectures) or "a model without a head"
            what = f"config.json says {kind}, and the weights have no head that gives a score"
            raise ModelError(_no_head(folder, what))


def _adapter_with_head(model: ModelConfig) -> "Adapter | None":
    from burnish.models.adapters import initial_adapter

    adapter = initial_adapter(model)
    return adapter if adapter and any(name.endswith(HEADS) for name in adapter.tensors) else None


def _other_labels(folder: Path, labels: int) -> str:
    return (
        f"{folder}: the classifier has {labels} labels, a reward model has 1 (num_labels in config.json); train one "
        "with `burnish rm`"
    )


def _no_head(folder: Path, what: str) -> str:
    return f"{folder}: {what}: this is no reward model. Train one from it with `burnish rm`"


def _refuse_missing(folder: Path, missing: list[str]) -> None:
    if missing:
        raise ModelError(f"{folder}: the weights lack {named(missing)}; the folder is incomplete or of another model")


def load_unchanged(
    folder: Path, *, values: bool = False, dtype: str | None = None, trust_remote_code: bool = False
) -> LoadedModel:
    """The model as a plain `from_pretrained` gives it, for copies; `values`: as a token classifier with one label.
    Without a `dtype` it gets the one that config.json names."""
    from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

    settings = ModelConfig(trust_remote_code=trust_remote_code)
    config = _config_of(folder, trust_remote_code)
    if values:
        config.num_labels = 1
    auto_class = AutoModelForTokenClassification if values else AutoModelForCausalLM
    return _load(auto_class, folder, config, settings, dtype, "cpu")


def _config_of(folder: Path, trust_remote_code: bool) -> "PreTrainedConfig":
    from transformers import AutoConfig

    check_config(folder)
    with reading(folder, "config.json"):
        return AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)


def _read_config(folder: Path, model_config: ModelConfig) -> "PreTrainedConfig":
    """The folder's configuration with `override_config` applied and every dropout at 0."""
    from burnish.models.overrides import is_dropout, overridden

    import_libraries({"model.external_lib": model_config.external_lib})
    if model_config.has_lora:  # report what is wrong with an adapter before the weights of its base are loaded
        from burnish.models.adapters import initial_adapter, need_peft

        need_peft()
        initial_adapter(model_config)
    config = _config_of(folder, model_config.trust_remote_code)
    if model_config.override_config:
        config = overridden(folder, config, model_config.override_config, model_config.trust_remote_code)
    for part in {id(c): c for c in (config, config.get_text_config())}.values():
        for name, value in part.to_dict().items():
            if is_dropout(name) and isinstance(value, float):
                setattr(part, name, 0.0)
    return config


def _load(
    auto_class: Any,
    folder: Path,
    config: "PreTrainedConfig",
    model_config: ModelConfig,
    dtype: str | None,
    device: "str | torch.device | None",
) -> LoadedModel:
    """Without a `dtype` the weights get the one that config.json names."""
    import torch

    attention: str | None = model_config.attn_implementation
    if attention == "auto":  # None: sdpa, or eager where it has none. sdpa leaves out capped scores without a word
        capped = getattr(config.get_text_config(), "attn_logit_softcapping", None) is not None
        attention = "eager" if capped else None
    settings = {"attn_implementation": attention, "trust_remote_code": model_config.trust_remote_code}
    wanted: Any = getattr(torch, dtype_on(device or "cpu", dtype)) if dtype else "auto"

    def load(dtype: Any) -> tuple[Any, dict[str, Any]]:
        return auto_class.from_pretrained(
            folder,
            config=copy.deepcopy(config),
            dtype=dtype,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # to name them below
            **settings,
        )

    with _gate, reading(folder, "the model"), quiet_transformers(), torch.random.fork_rng():
        stored = _stored_type(folder) if device is None and not model_config.has_lora else None
        module, info = load(stored or wanted)
        if stored not in (None, wanted):
            with torch.device("meta"):
                meant = auto_class.from_config(copy.deepcopy(config), dtype=wanted, **settings)
            if info["missing_keys"] or not _differ_in_weights_alone(module, meant):
                module, info = load(wanted)
            else:
                setattr(module, COMPUTE_TYPE, wanted)
                module.config.dtype = wanted
    if info["mismatched_keys"]:
        name, stored, expected = min(info["mismatched_keys"])
        raise ModelError(
            f"{folder}: config.json and weights disagree: {name} is {tuple(stored)} in the weights and "
            f"{tuple(expected)} by the configuration ({len(info['mismatched_keys'])} such tensors)"
        )
    return LoadedModel(module, sorted(info["missing_keys"]), sorted(info["unexpected_keys"]))


def _stored_type(folder: Path) -> "torch.dtype | None":
    """The type of a folder's weights; None where they have several, or are no safetensors."""
    import torch

    found = {tensor.dtype for tensor in stored_tensors(safetensors_files(folder)).values()}
    name = STORED_TYPES.get(found.pop()) if len(found) == 1 else None
    return getattr(torch, name) if name else None


def _differ_in_weights_alone(module: "PreTrainedModel", meant: "PreTrainedModel") -> bool:
    """Whether of two modules, made in different types, buffers are the same, and no weight is kept in a type of its
    own."""
    types = [{name: buffer.dtype for name, buffer in one.named_buffers()} for one in (module, meant)]
    kept = (getattr(module, name, None) for name in ("_keep_in_fp32_modules", "_keep_in_fp32_modules_strict"))
    return types[0] == types[1] and not any(kept)


def _initialise(module: "PreTrainedModel", names: list[str], seed: int) -> None:
    """Weights from a normal distribution as wide as the model's own initialisation, biases 0."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    width = getattr(module.config.get_text_config(), "initializer_range", 0.02)
    with torch.no_grad():
        for name in names:
            parameter = module.get_parameter(name)
            fresh = torch.randn(parameter.shape, generator=generator) * width
            parameter.copy_(fresh if parameter.ndim > 1 else torch.zeros_like(fresh))


def _prepared(
    module: "PreTrainedModel", model_config: ModelConfig, device: "str | torch.device | None", seed: int
) -> "PreTrainedModel":
    if model_config.has_lora:
        from burnish.models.lora import add_adapter

        add_adapter(module, model_config, seed=seed)
    is_recomputed = model_config.enable_gradient_checkpointing is not False  # also where auto was decided by nobody
    if is_recomputed and module.supports_gradient_checkpointing:
        module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if device is None:
        return module
    module.to(device)
    for parameter in module.parameters():
        # Weights have any address in memory, as in their file, and a CPU's products may differ in the last bit by it:
        # the same weights from another file would give other numbers.
        if parameter.data_ptr() % ALIGNMENT:
            parameter.data = parameter.data.clone()
    return module


def named(names: list[str]) -> str:
    """The first few names of a list, for a message."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


@contextmanager
def naming(key: str) -> Iterator[None]:
    """A ModelError inside is raised with the key that names the model."""
    try:
        yield
    except ModelError as error:
        raise ModelError(f"{key}: {error}") from error


@contextmanager
def reading(folder: Path, what: str) -> Iterator[None]:
    """Whatever transformers raises about a folder becomes a ModelError that names it."""
    try:
        yield
    except Exception as error:  # readers of foreign files: tokenizers and safetensors raise their own types
        text = str(error).strip()
        if "trust_remote_code" in text:
            text = (
                "it runs its own Python code; if you trust it, set trust_remote_code=True next to the key that names "
                "it (the policy: actor_rollout_ref.model.trust_remote_code=True; burnish sft, burnish rm: "
                "model.trust_remote_code=True; commands with flags: --trust-remote-code)"
            )
        if text.startswith("Unrecognized configuration class"):
            text = text.splitlines()[0]  # the rest lists every class that there is
        raise ModelError(f"{folder}: cannot load {what}: {text or type(error).__name__}") from error


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Without transformers' progress bars and its report on missing weights, which are checked here."""
    from transformers.utils import logging as hf_logging

    level, bars = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        hf_logging.set_verbosity(level)
        if bars:
            hf_logging.enable_progress_bar()
