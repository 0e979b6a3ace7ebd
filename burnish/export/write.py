"""The files of an export. Consumes modules and the folders they came from; writes into a folder that is still empty."""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from burnish.export.request import Request
from burnish.export.source import Source
from burnish.models.adapters import ADAPTER_WEIGHTS, Adapter
from burnish.models.folder import ADAPTER_CONFIG, TOKENIZER_FILES
from burnish.models.loading import quiet_transformers

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

BESIDE_TOKENIZERS = (
    "added_tokens.json", "special_tokens_map.json", "merges.txt", "chat_template.jinja", "chat_template.json",
)  # fmt: skip
NAMED_TEMPLATES = "additional_chat_templates"


def write_model(
    module: "PreTrainedModel", generation: "GenerationConfig | None", folder: Path, request: Request, source: Source
) -> None:
    """Configuration and weights, cut into files of `max_shard_bytes`; with remote code, that code."""
    if generation is not None:
        module.generation_config = generation
    with quiet_transformers():
        module.save_pretrained(folder, max_shard_size=request.max_shard_bytes)
    if request.trust_remote_code:
        for file in source.model.glob("*.py"):
            shutil.copyfile(file, folder / file.name)


def write_adapter(adapter: Adapter, base: str | None, dtype: str | None, folder: Path) -> None:
    """The adapter's settings, with `base` as the name of its base model, and its weights, as they are or as `dtype`."""
    settings = adapter.settings | {"base_model_name_or_path": base, "inference_mode": True}
    (folder / ADAPTER_CONFIG).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    save_file(adapter_tensors(adapter, dtype), folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})


def adapter_tensors(adapter: Adapter, dtype: str | None) -> dict[str, Tensor]:
    tensors = load_file(adapter.folder / ADAPTER_WEIGHTS)
    if dtype is None:
        return tensors
    return {name: t.to(getattr(torch, dtype)) if t.is_floating_point() else t for name, t in tensors.items()}


def copy_tokenizer(source: Path, tokenizer: "PreTrainedTokenizerBase", folder: Path) -> None:
    """The tokenizer's files and chat templates byte by byte: writing it anew could change what it does elsewhere."""
    names = {*TOKENIZER_FILES, *BESIDE_TOKENIZERS, *tokenizer.vocab_files_names.values()}
    for name in sorted(names):
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)  # what a link leads to, not the link
    templates = sorted((source / NAMED_TEMPLATES).glob("*.jinja"))
    for file in templates:
        (folder / NAMED_TEMPLATES).mkdir(exist_ok=True)
        shutil.copyfile(file, folder / NAMED_TEMPLATES / file.name)
