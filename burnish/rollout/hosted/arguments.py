"""What hosted programs have in common before they start: the environment of their processes, and what a token takes."""

import os
import site
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import burnish


def environment(temporary: Path, defaults: Mapping[str, str], fixed: Mapping[str, str]) -> dict[str, str]:
    """Of a program's processes: this one's, with `defaults` for what the user did not set, and with what is `fixed`.
    Their sockets and other files go to `temporary`, because programs leave them behind."""
    own = {"PYTHONPATH": python_path(), "PYTHONUNBUFFERED": "1", "TMPDIR": str(temporary)}
    return {**defaults, **os.environ, **own, **fixed}


def python_path() -> str:
    """PYTHONPATH for another process that imports burnish: this one's, and where burnish lies. That is left out where
    Python looks for packages anyway: the others there must not come before the standard library."""
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    root = Path(burnish.__file__).resolve().parents[1]
    found = [*paths, *site.getsitepackages(), site.getusersitepackages()]
    if root not in (Path(path).resolve() for path in found):
        paths.append(str(root))
    return os.pathsep.join(paths)


def token_bytes(model: Any, itemsize: int) -> int:
    """Memory for the keys and values of one token, by the model's configuration."""
    text = model.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return int(2 * text.num_hidden_layers * heads * size * itemsize)
