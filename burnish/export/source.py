"""What was asked for, where that model (or adapter and base) is, whether it is complete, and what it is. No torch."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.errors import CheckpointError, ConfigError, ModelError
from burnish.models.adapters import ADAPTER_WEIGHTS, Adapter, is_adapter, need_peft, read_adapter
from burnish.models.folder import (
    ADAPTER_CONFIG,
    MANIFEST,
    STEP_FOLDER,
    TOKENIZER_FILES,
    check_model,
    check_whole,
    local_folder,
    newest_checkpoint,
    read_json,
    resolve_path,
    safetensors_files,
    stored_tensors,
)

Log = Callable[[str], None]  # a line on what is happening, for whoever waits

ROLES = ("actor", "critic")
DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}  # as safetensors writes them
WIDTH = {"float32": 4, "bfloat16": 2, "float16": 2}
VALUE_MODEL, REWARD_MODEL = "ForTokenClassification", "ForSequenceClassification"


@dataclass(frozen=True)
class ExportRequest:
    """One export. `dtype=None` keeps the type of the stored weights."""

    source: str
    out: Path
    role: str = "actor"
    dtype: str | None = None
    max_shard_bytes: int = 5 * 10**9
    adapter_only: bool = False
    base: str | None = None
    device: str = "cpu"
    trust_remote_code: bool = False
    overwrite: bool = False


@dataclass(frozen=True)
class ExportSource:
    """What is exported. `model` holds configuration and weights: `folder` itself, or the base of its adapter."""

    folder: Path
    model: Path
    tokenizer: Path
    values: bool  # a value model: a token classifier with one label
    dtype: str  # of most stored weights
    types: frozenset[str]  # of all of them
    elements: int  # stored weights, tied ones once
    within: frozenset[Path]  # folders that an export must stay out of
    adapter: Adapter | None = None

    def is_exact_in(self, dtype: str) -> bool:
        return dtype == "float32" or self.types <= {dtype}

    def bytes_as(self, request: ExportRequest) -> int:
        if self.adapter and request.adapter_only:
            return sum(WIDTH[request.dtype or "float32"] * math.prod(t.shape) for t in self.adapter.tensors.values())
        return WIDTH[request.dtype or self.dtype] * self.elements


def find_source(request: ExportRequest, log: Log) -> ExportSource:
    top = local_folder(request.source)
    folder = _folder_of_role(top, request)
    # A folder is a checkpoint, or a part of one, by its name or its manifest.
    whole = folder.absolute()
    candidates = [whole, whole.parent] if whole.name in ROLES else [whole]
    named = (p for p in candidates if STEP_FOLDER.fullmatch(p.name) or (p / MANIFEST).is_file())
    checkpoint = next(named, None)
    if checkpoint:
        check_whole(checkpoint, "export an earlier one", part=folder.absolute())  # training state is not exported
    adapter = None
    if is_adapter(folder):
        adapter = _read_adapter(folder, request)
    else:
        for flag, given in (("--adapter-only", request.adapter_only), ("--base", request.base is not None)):
            if given:
                raise ConfigError(f"{flag} is for LoRA adapters, but {folder} has no {ADAPTER_CONFIG}; leave it out")
        check_model(folder, request.source)
    model = _base_of(adapter, request, log) if adapter else folder
    config = read_json(model / "config.json")
    _check_kind(config, model, values=request.role == "critic", adapted=adapter is not None)
    if not safetensors_files(model):
        log(f"{model}: pytorch_model.bin is a pickle; transformers reads it with weights_only, which runs no code")
    count = _stored(model, config)
    dtype = count.most_common(1)[0][0] if count else "float32"
    if dtype not in WIDTH:
        raise ModelError(f"{model}: its weights are stored as {dtype}; {', '.join(WIDTH)} can be exported")
    if not request.dtype and (wider := [name for name in count if WIDTH.get(name, 0) > WIDTH[dtype]]):
        log(f"{model}: most weights are {dtype}, some are {wider[0]} and become {dtype}; --dtype {wider[0]} keeps them")
    with_tokenizer = [f for f in (folder, model) if any((f / name).is_file() for name in TOKENIZER_FILES)]
    if not with_tokenizer:
        raise ModelError(f"{model}: no tokenizer; save one there with tokenizer.save_pretrained")
    return ExportSource(
        folder=folder,
        model=model,
        tokenizer=with_tokenizer[0],
        values=request.role == "critic",
        dtype=dtype,
        types=frozenset(count.keys() & WIDTH.keys()),
        elements=count.total(),
        within=frozenset(path.resolve() for path in (top, folder, checkpoint or folder, model)),
        adapter=adapter,
    )


def _folder_of_role(top: Path, request: ExportRequest) -> Path:
    if not (top / "config.json").is_file() and not is_adapter(top):
        top = newest_checkpoint(top) or top
    if (top / request.role).is_dir():
        return top / request.role
    if others := [role for role in ROLES if (top / role).is_dir()]:
        raise CheckpointError(
            f"{top}: this checkpoint has no {request.role}; it has an {others[0]} (--role {others[0]})"
        )
    return top


def _read_adapter(folder: Path, request: ExportRequest) -> Adapter:
    """The adapter in a folder; ModelError where it is mixed with a whole model, or was trained for another task."""
    need_peft()
    whole = [file.name for file in safetensors_files(folder) if file.name != ADAPTER_WEIGHTS]
    whole += [file.name for file in folder.glob("pytorch_model*.bin")]
    if whole:
        raise ModelError(
            f"{folder}: holds both an adapter ({ADAPTER_CONFIG}) and a whole model ({whole[0]}); "
            "move one of them to a separate folder"
        )
    adapter = read_adapter(folder)
    task = adapter.settings.get("task_type")
    if task == "SEQ_CLS":
        raise ModelError(
            f"{folder}: the adapter of a reward model, which scores as it is: name its base in "
            "reward_model.model.path and this folder in reward_model.model.lora_adapter_path"
        )
    if task == "TOKEN_CLS" and request.role != "critic":
        raise ModelError(f"{folder}: the adapter of a value model, not of a policy; export it with --role critic")
    return adapter


def _base_of(adapter: Adapter, request: ExportRequest, log: Log) -> Path:
    named_by, base, revision = str(adapter.folder / ADAPTER_CONFIG), adapter.base, adapter.revision
    if request.base:
        named_by, base, revision = "--base", request.base, None
    if base is None:
        raise ModelError(f"{named_by} names no base model; give its folder with --base")
    at = f" at revision {revision}" if revision else ""
    log(f"base model: {base}{at} (named by {named_by})")
    if revision and Path(base).expanduser().is_dir():
        log(f"{base}: a folder has no revisions, so it is taken as it is")
    try:
        return resolve_path(base, revision=revision)
    except ModelError as error:
        raise ModelError(f"the adapter's base, named by {named_by}: {error}; or give its folder with --base") from error


def _check_kind(config: dict[str, Any], folder: Path, *, values: bool, adapted: bool) -> None:
    """A value model read as a policy would get a head from its tied embeddings, and the other way round a new one."""
    if config.get("quantization_config"):
        raise ModelError(f"{folder}: quantised weights cannot be exported; name the folder of the unquantised model")
    names = ", ".join(map(str, config.get("architectures") or ()))
    if REWARD_MODEL in names:
        raise ModelError(
            f"{folder}: a reward model ({names}); burnish rm writes it as a Hugging Face folder, so copy it as it is"
        )
    if names and not values and VALUE_MODEL in names:
        raise ModelError(f"{folder}: a value model ({names}), not a policy; export it with --role critic")
    if names and values and not adapted and VALUE_MODEL not in names:
        raise ModelError(f"{folder}: {names} is not a value model; name the checkpoint, or leave out --role critic")


def _stored(folder: Path, config: dict[str, Any]) -> Counter[str]:
    count, files = Counter[str](), safetensors_files(folder)
    for tensor in stored_tensors(files).values():
        count[DTYPES.get(tensor.dtype, tensor.dtype)] += math.prod(tensor.shape)
    if not files:
        dtype = str(config.get("dtype") or config.get("torch_dtype") or "float32")
        size = sum(file.stat().st_size for file in folder.glob("pytorch_model*.bin"))
        count[dtype] = size // WIDTH.get(dtype, 4)
    return count
