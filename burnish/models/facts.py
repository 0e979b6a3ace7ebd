"""Sizes of the model in a folder, for `--plan` and checks: from config.json and the headers of safetensors files.

Imports no torch and reads no weights. A config.json may come from anyone: what makes no model is an error, before a
library allocates what it asks for.
"""

import math
from pathlib import Path
from textwrap import shorten
from typing import Any

from burnish.config.passes import ModelFacts
from burnish.errors import ModelError
from burnish.models.folder import read_json, resolve_path, safetensors_files, stored_tensors

# By size, its names in the configurations of transformers.
SIZES = {
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "num_heads"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "vocab": ("vocab_size",),
    "kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "intermediate": ("intermediate_size", "n_inner"),
    "context": ("max_position_embeddings", "n_positions", "seq_length"),
}
NEEDED = ("hidden", "heads", "layers", "vocab")
LARGEST = 2**40  # of a size; a context may be "without a limit"
TOO_LARGE = 64  # times the weights there are: quantised ones are packed, and the estimate is rough
BYTES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2}


def read_model_facts(path: str | Path) -> ModelFacts:
    folder = resolve_path(path, weights=False)
    config, sizes, parameters = check_config(folder)
    if missing := [name for name in NEEDED if name not in sizes]:
        names = ", ".join(SIZES[missing[0]])
        raise ModelError(f"{folder / 'config.json'}: none of {names} is in it; burnish trains decoder models")
    if not parameters:  # from the size of .bin files: they are pickles, which are not opened to be counted
        width = BYTES.get(str(config.get("dtype") or config.get("torch_dtype") or "float32"), 4)
        parameters = sum(file.stat().st_size for file in folder.glob("pytorch_model*.bin")) // width
    context = sizes.pop("context", None)
    known = {"kv_heads": sizes["heads"], "head_dim": sizes["hidden"] // sizes["heads"]} | sizes
    known = {"intermediate": 4 * sizes["hidden"]} | known
    parameters = parameters or _estimate(config, known)
    return ModelFacts(model_type=config["model_type"], context=context, parameters=parameters, **known)


def check_config(folder: Path) -> tuple[dict[str, Any], dict[str, int], int]:
    """What config.json says, also of the decoder inside of a model that sees; the sizes in it, and the number of
    weights in safetensors files. ModelError where a size is none, or asks for a model that the weights are not of."""
    file = folder / "config.json"
    config = read_json(file)
    inner = config["text_config"] if isinstance(config.get("text_config"), dict) else {}
    config |= inner | {"model_type": str(config.get("model_type", "unknown"))}
    sizes: dict[str, int] = {}
    for size, names in SIZES.items():
        for name in names:
            value = config.get(name)
            if isinstance(value, str | bool | float) or (isinstance(value, int) and not 0 < value < LARGEST):
                raise ModelError(f"{file}: {name}={shorten(repr(value), 60)} is not a whole number above 0; correct it")
            if isinstance(value, int):
                sizes.setdefault(size, value)
    parameters, files = 0, safetensors_files(folder)
    if all(file.is_file() for file in files):
        parameters = sum(math.prod(tensor.shape) for tensor in stored_tensors(files).values())
    if parameters and all(name in sizes for name in NEEDED):
        needed = _estimate(config, sizes)
        if needed > TOO_LARGE * parameters:
            raise ModelError(
                f"{folder}: config.json and weights disagree: by the sizes in config.json the model has some "
                f"{needed:.1e} parameters, and its weights have {parameters}; copy the model again"
            )
    return config, sizes, parameters


def _estimate(config: dict[str, Any], sizes: dict[str, int]) -> int:
    """Of a model's parameters: norms and biases are too small to matter."""
    hidden, heads = sizes["hidden"], sizes["heads"]
    head_dim = sizes.get("head_dim") or hidden // heads
    attention = hidden * head_dim * 2 * (heads + sizes.get("kv_heads", heads))
    embeddings = sizes["vocab"] * hidden * (1 if config.get("tie_word_embeddings") else 2)
    return sizes["layers"] * (attention + 3 * hidden * sizes.get("intermediate", 4 * hidden)) + embeddings
