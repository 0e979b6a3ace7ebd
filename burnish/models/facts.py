"""Sizes of the model in a folder, for `--plan` and checks: from config.json and the headers of safetensors files.

Imports no torch and reads no weights.
"""

import math
from pathlib import Path
from typing import Any

from burnish.config.passes import ModelFacts
from burnish.errors import ModelError
from burnish.models.folder import read_json, resolve_path, safetensors_files, stored_tensors

BYTES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2}


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
    files, parameters = safetensors_files(folder), 0
    if all(file.is_file() for file in files):
        parameters = sum(math.prod(tensor.shape) for tensor in stored_tensors(files).values())
    if not parameters:  # from the size of .bin files: they are pickles, which are not opened to be counted
        width = BYTES.get(str(text.get("dtype") or text.get("torch_dtype") or "float32"), 4)
        parameters = sum(file.stat().st_size for file in folder.glob("pytorch_model*.bin")) // width
    if not parameters:  # estimated: norms and biases are too small to matter
        attention = hidden * sizes["head_dim"] * 2 * (heads + sizes["kv_heads"])
        embeddings = sizes["vocab"] * hidden * (1 if text.get("tie_word_embeddings") else 2)
        parameters = sizes["layers"] * (attention + 3 * hidden * sizes["intermediate"]) + embeddings
    return ModelFacts(model_type=config.get("model_type", "unknown"), context=context, parameters=parameters, **sizes)


def _first(config: dict[str, Any], folder: Path, *names: str) -> int:
    for name in names:
        if config.get(name) is not None:
            return int(config[name])
    raise ModelError(f"{folder / 'config.json'}: none of {', '.join(names)} is in it; burnish trains decoder models")
