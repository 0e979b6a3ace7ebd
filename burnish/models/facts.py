"""What a model folder says about itself, read without torch and without its weights: sizes for `--plan` and checks.

Consumes config.json and the headers of safetensors files; hands on `ModelFacts`.
"""

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.errors import ModelError
from burnish.models.folder import resolve_path, safetensors_files

BYTES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2}


@dataclass(frozen=True)
class ModelFacts:
    """Sizes of a decoder. `parameters` counts stored weights, or is estimated where there are none to look at."""

    model_type: str
    context: int | None
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    parameters: int


def read_model_facts(path: str | Path) -> ModelFacts:
    folder = resolve_path(path, weights=False)
    config = _read_config(folder)
    text = config | config.get("text_config", {})  # models that also see keep their decoder's sizes one level down
    hidden = _first(text, folder, "hidden_size", "n_embd", "d_model")
    heads = _first(text, folder, "num_attention_heads", "n_head", "num_heads")
    sizes = {
        "layers": _first(text, folder, "num_hidden_layers", "n_layer", "num_layers"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": text.get("num_key_value_heads") or heads,
        "head_dim": text.get("head_dim") or hidden // heads,
        "intermediate": int(text.get("intermediate_size") or text.get("n_inner") or 4 * hidden),
        "vocab": _first(text, folder, "vocab_size"),
    }
    context = next((text[k] for k in ("max_position_embeddings", "n_positions", "seq_length") if text.get(k)), None)
    parameters = _count_safetensors(folder) or _count_bin(folder, text) or _estimate(text, sizes)
    return ModelFacts(model_type=config.get("model_type", "unknown"), context=context, parameters=parameters, **sizes)


def _read_config(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{file}: not readable as JSON ({error})") from error
    if not isinstance(config, dict):
        raise ModelError(f"{file}: expected an object, found a {type(config).__name__}")
    return config


def _first(config: dict[str, Any], folder: Path, *names: str) -> int:
    for name in names:
        if config.get(name) is not None:
            return int(config[name])
    raise ModelError(f"{folder / 'config.json'}: none of {', '.join(names)} is in it; burnish trains decoder models")


def _count_safetensors(folder: Path) -> int:
    """Elements of all tensors of the model, from the header that opens each file; 0 where a file is not there."""
    files = safetensors_files(folder)
    if not all(file.is_file() for file in files):
        return 0
    return sum(
        math.prod(entry["shape"])
        for file in files
        for name, entry in _safetensors_header(file).items()
        if name != "__metadata__"
    )


def _safetensors_header(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > file.stat().st_size:
                raise ValueError(f"its header claims {length} bytes, the file has {file.stat().st_size}")
            return json.loads(stream.read(length))
    except (OSError, ValueError, struct.error) as error:
        raise ModelError(f"{file}: damaged or cut off ({error})") from error


def _count_bin(folder: Path, config: dict[str, Any]) -> int:
    """From the file sizes: a .bin file is a pickle, which is not opened to be counted."""
    width = BYTES.get(str(config.get("dtype") or config.get("torch_dtype") or "float32"), 4)
    return sum(file.stat().st_size for file in folder.glob("pytorch_model*.bin")) // width


def _estimate(config: dict[str, Any], sizes: dict[str, int]) -> int:
    """Attention, a gated feed-forward and the embeddings; norms and biases are too small to matter."""
    hidden = sizes["hidden"]
    attention = hidden * sizes["head_dim"] * 2 * (sizes["heads"] + sizes["kv_heads"])
    feed_forward = 3 * hidden * sizes["intermediate"]
    embeddings = sizes["vocab"] * hidden * (1 if config.get("tie_word_embeddings") else 2)
    return sizes["layers"] * (attention + feed_forward) + embeddings
