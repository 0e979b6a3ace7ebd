"""What a model folder says about itself, read without torch and without its weights: sizes for `--plan` and checks.

Consumes config.json and the headers of safetensors files; hands on `ModelFacts`.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.errors import ModelError
from burnish.models.folder import read_json, resolve_path, safetensors_files, stored_tensors

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
    config = read_json(folder / "config.json")
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
    return sum(math.prod(tensor.shape) for tensor in stored_tensors(files).values())


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
