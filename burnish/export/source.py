"""Where the model to export lies, whether it is whole, and what it is; told without torch.

Consumes a `Request`; hands on a `Source`. A path may be a model folder, a `global_step_N`, a run folder (its newest
checkpoint), an `actor` or `critic` inside one, a hub id, or the folder of a LoRA adapter, whose base is found too.
"""

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.errors import CheckpointError, ConfigError, ModelError
from burnish.export.request import ROLES, Request, Tell
from burnish.models.adapters import ADAPTER_WEIGHTS, Adapter, is_adapter, need_peft, read_adapter
from burnish.models.folder import (
    ADAPTER_CONFIG,
    TOKENIZER_FILES,
    TRAINING_STATE,
    check_model,
    local_folder,
    newest_checkpoint,
    read_json,
    resolve_path,
    safetensors_files,
    stored_tensors,
)

MANIFEST = "manifest.json"  # written by trainer/checkpoint.py: every file of a checkpoint and its size
DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}  # as safetensors writes them
WIDTH = {"float32": 4, "bfloat16": 2, "float16": 2}
VALUE_MODEL = "ForTokenClassification"


@dataclass(frozen=True)
class Source:
    """What is exported. `model` holds configuration and weights: `folder` itself, or the base of its adapter."""

    folder: Path
    model: Path
    tokenizer: Path
    values: bool  # a value model: a token classifier with one label
    dtype: str  # of most stored weights
    elements: int  # stored weights, tied ones once
    within: frozenset[Path]  # folders that an export must stay out of
    adapter: Adapter | None = None

    def bytes_as(self, request: Request) -> int:
        """The space that the weights of the export take."""
        if self.adapter and request.adapter_only:
            return sum(WIDTH[request.dtype or "float32"] * math.prod(t.shape) for t in self.adapter.tensors.values())
        return WIDTH[request.dtype or self.dtype] * self.elements


def find_source(request: Request, tell: Tell) -> Source:
    top = local_folder(request.source)
    folder = _folder_of_role(top, request)
    checkpoint = _checkpoint(folder)
    if checkpoint:
        _check_whole(checkpoint, folder)
    adapter = None
    if is_adapter(folder):
        adapter = _adapter_in(folder)
    else:
        _refuse_adapter_flags(request, folder)
        check_model(folder, request.source)
    model = _base_of(adapter, request, tell) if adapter else folder
    config = read_json(model / "config.json")
    _check_kind(config, model, values=request.role == "critic", adapted=adapter is not None)
    if not safetensors_files(model):
        tell(f"{model}: pytorch_model.bin is a pickle; transformers reads it with weights_only, which runs no code")
    count = _stored(model, config)
    dtype = _dtype_of_most(count, model)
    if not request.dtype and (wider := [name for name in count if WIDTH.get(name, 0) > WIDTH[dtype]]):
        tell(
            f"{model}: most weights are {dtype}, some are {wider[0]} and become {dtype}; --dtype {wider[0]} keeps them"
        )
    return Source(
        folder=folder,
        model=model,
        tokenizer=_tokenizer_folder([folder, model]),
        values=request.role == "critic",
        dtype=dtype,
        elements=count.total(),
        within=frozenset(path.resolve() for path in (top, folder, checkpoint or folder, model)),
        adapter=adapter,
    )


def _folder_of_role(top: Path, request: Request) -> Path:
    """The folder of the policy or of the value model inside the one that was typed."""
    if not (top / "config.json").is_file() and not is_adapter(top):
        top = newest_checkpoint(top) or top
    if (top / request.role).is_dir():
        return top / request.role
    if others := [role for role in ROLES if (top / role).is_dir()]:
        raise CheckpointError(
            f"{top}: this checkpoint has no {request.role}; it has an {others[0]} (--role {others[0]})"
        )
    return top


def _checkpoint(folder: Path) -> Path | None:
    """The checkpoint that a folder is or is a part of."""
    candidates = [folder, folder.parent] if folder.name in ROLES else [folder]
    return next((path for path in candidates if (path / MANIFEST).is_file()), None)


def _check_whole(checkpoint: Path, folder: Path) -> None:
    """CheckpointError where a file of the model is not as the manifest has it. Training state is not exported."""
    files = read_json(checkpoint / MANIFEST).get("files")
    for name, size in files.items() if isinstance(files, dict) else ():
        path = checkpoint / name
        if not path.is_relative_to(folder) or path.name in TRAINING_STATE:
            continue
        found = path.stat().st_size if path.is_file() else None
        if found != size:
            state = "is missing" if found is None else f"has {found} bytes instead of {size}"
            raise CheckpointError(
                f"checkpoint {checkpoint} is truncated: {name} {state}. Copy it again, or export an earlier one"
            )


def _adapter_in(folder: Path) -> Adapter:
    need_peft()
    whole = [file.name for file in safetensors_files(folder) if file.name != ADAPTER_WEIGHTS]
    whole += [file.name for file in folder.glob("pytorch_model*.bin")]
    if whole:
        raise ModelError(
            f"{folder}: holds both an adapter ({ADAPTER_CONFIG}) and a whole model ({whole[0]}); "
            "move one of them to a folder of its own"
        )
    return read_adapter(folder)


def _refuse_adapter_flags(request: Request, folder: Path) -> None:
    for flag, given in (("--adapter-only", request.adapter_only), ("--base", request.base is not None)):
        if given:
            raise ConfigError(f"{flag} is for LoRA adapters, but {folder} has no {ADAPTER_CONFIG}; leave it out")


def _base_of(adapter: Adapter, request: Request, tell: Tell) -> Path:
    named_by = "--base" if request.base else str(adapter.folder / ADAPTER_CONFIG)
    base = request.base or adapter.base
    if base is None:
        raise ModelError(f"{named_by} names no base model; give its folder with --base")
    tell(f"base model: {base} (named by {named_by})")
    try:
        return resolve_path(base)
    except ModelError as error:
        raise ModelError(f"the adapter's base, named by {named_by}: {error}; or give its folder with --base") from error


def _check_kind(config: dict[str, Any], folder: Path, *, values: bool, adapted: bool) -> None:
    """A value model read as a policy would get a head from its tied embeddings, and the other way round a new one."""
    if config.get("quantization_config"):
        raise ModelError(f"{folder}: quantised weights cannot be exported; name the folder of the unquantised model")
    names = ", ".join(map(str, config.get("architectures") or ()))
    if names and not values and VALUE_MODEL in names:
        raise ModelError(f"{folder}: a value model ({names}), not a policy; export it with --role critic")
    if names and values and not adapted and VALUE_MODEL not in names:
        raise ModelError(f"{folder}: {names} is not a value model; name the checkpoint, or leave out --role critic")


def _stored(folder: Path, config: dict[str, Any]) -> Counter[str]:
    """How many weights there are of each type."""
    count: Counter[str] = Counter()
    files = safetensors_files(folder)
    for tensor in stored_tensors(files).values():
        count[DTYPES.get(tensor.dtype, tensor.dtype)] += math.prod(tensor.shape)
    if not files:
        dtype = str(config.get("dtype") or config.get("torch_dtype") or "float32")
        size = sum(file.stat().st_size for file in folder.glob("pytorch_model*.bin"))
        count[dtype] = size // WIDTH.get(dtype, 4)
    return count


def _dtype_of_most(count: Counter[str], folder: Path) -> str:
    dtype = count.most_common(1)[0][0] if count else "float32"
    if dtype not in WIDTH:
        raise ModelError(f"{folder}: its weights are stored as {dtype}; {', '.join(WIDTH)} can be exported")
    return dtype


def _tokenizer_folder(folders: list[Path]) -> Path:
    for folder in folders:
        if any((folder / name).is_file() for name in TOKENIZER_FILES):
            return folder
    raise ModelError(f"{folders[-1]}: no tokenizer; save one there with tokenizer.save_pretrained")
