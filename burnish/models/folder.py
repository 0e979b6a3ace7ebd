"""From the path of a model, as a user wrote it, to a folder on this machine, with clear errors; imports no torch.

A path is a folder of ours or of anyone's, a `global_step_N` (or the run folder that holds them), a hub id, or
`hdfs://…`, which is copied first. What comes out holds a config.json and, unless only the facts are wanted, weights.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

from burnish.errors import ModelError

LATEST = "latest_checkpointed_iteration.txt"
WEIGHTS = "*.safetensors, pytorch_model*.bin"
INDEX = "model.safetensors.index.json"
TRAINING_STATE = ("optimizer.safetensors", "rng.safetensors")  # beside the weights in a checkpoint (engine/state.py)
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
)
HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
HDFS_DEADLINE_S = 3600


def resolve_path(path: str | Path, *, weights: bool = True) -> Path:
    """The local folder behind `path`. With `weights=False` a folder with only a configuration will do."""
    text = str(path)
    if text.startswith("hdfs://"):
        folder = _copied_from_hdfs(text)
    else:
        folder = Path(text).expanduser()
        if not folder.is_dir():
            folder = _from_hub(text, weights)
    folder = _model_inside(folder)
    _check(folder, text, weights)
    return folder


def safetensors_files(folder: Path) -> list[Path]:
    """The model's weights: the files that its index names, or all but a checkpoint's training state."""
    index = folder / INDEX
    if not index.is_file():
        return sorted(file for file in folder.glob("*.safetensors") if file.name not in TRAINING_STATE)
    try:
        names = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        return [folder / name for name in sorted(set(names))]
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise ModelError(f"{index}: not readable as an index of weights ({error})") from error


def check_tokenizer(folder: Path) -> None:
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise ModelError(
            f"{folder}: no tokenizer (looked for {', '.join(TOKENIZER_FILES)}); save one with "
            "tokenizer.save_pretrained, or name a folder that has it in actor_rollout_ref.model.tokenizer_path "
            "(burnish sft: model.tokenizer_path)"
        )


def _model_inside(folder: Path) -> Path:
    """A checkpoint of ours keeps the policy in `actor/`; a run folder names its newest checkpoint."""
    if (folder / "config.json").is_file():
        return folder
    if (folder / LATEST).is_file():
        folder = folder / f"global_step_{(folder / LATEST).read_text().strip()}"
    return folder if (folder / "config.json").is_file() or not (folder / "actor").is_dir() else folder / "actor"


def _check(folder: Path, text: str, weights: bool) -> None:
    where = f"{folder}" if str(folder) == text else f"{folder} (from the model path {text})"
    if not (folder / "config.json").is_file():
        raise ModelError(f"{where}: no config.json; the model path must name a Hugging Face model folder")
    if not weights or any(folder.glob("pytorch_model*.bin")):
        return
    files = safetensors_files(folder)
    if missing := [file.name for file in files if not file.is_file()]:
        raise ModelError(f"{where}: {INDEX} names {', '.join(missing)}, which is not there; copy the model again")
    if not files:
        raise ModelError(
            f"{where}: config.json is there but no weights (looked for {WEIGHTS}); copy them there, or name "
            "another folder"
        )


def _from_hub(text: str, weights: bool) -> Path:
    if not HUB_ID.fullmatch(text) or text in (".", ".."):
        raise ModelError(
            f"the model path {text}: there is no such folder; name a model folder or a hub id such as Qwen/Qwen2.5-0.5B"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    wanted = None if weights else ["*.json", "*.model", "*.txt", "*.jinja"]
    ignored = ["*.msgpack", "*.h5", "*.onnx", "*.gguf", "original/*"]
    try:
        return Path(snapshot_download(text, allow_patterns=wanted, ignore_patterns=ignored))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"the model path {text}: there is no such folder ({Path(text).absolute()}), it is not in the local hub "
            f"cache, and it could not be fetched from the hub as a model id ({first}). "
            "Give the folder of a downloaded model, or connect to the hub"
        ) from error


def _copied_from_hdfs(address: str) -> Path:
    """Copy once into the cache; the copy appears under its name only when it is complete."""
    cache = Path(os.environ.get("BURNISH_CACHE", "~/.cache/burnish")).expanduser() / "hdfs"
    name = address.rstrip("/").rsplit("/", 1)[-1]
    target = cache / f"{name}-{hashlib.blake2b(address.encode(), digest_size=6).hexdigest()}"
    if target.is_dir():
        return target
    command = shutil.which("hdfs")
    if command is None:
        raise ModelError(
            f"the model path {address}: copying it needs the `hdfs` command of a Hadoop client, which is not on PATH; "
            "install it, or copy the folder yourself and give its local path"
        )
    partial = target.with_name(f"{target.name}.{os.getpid()}")
    cache.mkdir(parents=True, exist_ok=True)
    try:
        done = subprocess.run(
            [command, "dfs", "-get", address, str(partial)], capture_output=True, text=True, timeout=HDFS_DEADLINE_S
        )
    except subprocess.TimeoutExpired as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise ModelError(f"the model path {address}: `hdfs dfs -get` did not end within {HDFS_DEADLINE_S} s") from error
    if done.returncode != 0:
        shutil.rmtree(partial, ignore_errors=True)
        raise ModelError(f"the model path {address}: `hdfs dfs -get` failed: {done.stderr.strip()}")
    partial.rename(target)
    return target
