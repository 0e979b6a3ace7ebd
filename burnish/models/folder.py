"""From the path of a model, as a user wrote it, to a folder on this machine, with clear errors; imports no torch.

A path is a model folder, a `global_step_N` (or the run folder that holds them), a hub id, or `hdfs://…`, which is
copied first.
"""

import functools
import hashlib
import json
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.errors import CheckpointError, ModelError, UserError
from burnish.literal import one_line

logger = logging.getLogger(__name__)

LATEST = "latest_checkpointed_iteration.txt"
MANIFEST = "manifest.json"  # every file of a checkpoint, its size and its digest (trainer/checkpoint.py)
DIGESTS = "sha256"  # in a manifest; with the instructions that processors have for it, the fastest in hashlib
STEP_FOLDER = re.compile(r"global_step_([0-9]{1,18})")
LEFT_BY_A_RUN = ("recipe.yaml", "metrics.jsonl")
ADAPTER_CONFIG = "adapter_config.json"
WEIGHTS = "*.safetensors, pytorch_model*.bin"
INDEX = "model.safetensors.index.json"
MASTERS, OPTIMIZER, RNG, ENGINE = "masters.safetensors", "optimizer.safetensors", "rng.safetensors", "engine.json"
SHARDED = {"model": MASTERS, "optimizer": OPTIMIZER}  # parts of a training state that each process writes its share of
# next to the weights in a checkpoint (engine/state.py)
TRAINING_STATE = re.compile(r"(masters|optimizer|rng)(-\d{5}-of-\d{5})?\.safetensors")
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model",
)  # fmt: skip
TEMPLATE, TEMPLATES = "chat_template.jinja", "additional_chat_templates"
LARGEST_TEMPLATE = 2**20  # bytes that are read at all; data/template.py has the limit of what is compiled
EMBEDDED = "burnish/models/"  # how a model that comes with burnish is named
HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
HDFS_DEADLINE_S = 3600
GLANCE = 2**20  # bytes that a fingerprint reads at either end of a file
HASHERS = 4  # threads: files of a checkpoint at a time
JSON_LIMIT = 2**28  # bytes of a JSON file that is read


def resolve_path(path: str | Path, *, weights: bool = True, revision: str | None = None) -> Path:
    """The local folder behind `path`, of a hub id at `revision`; with `weights=False` a configuration will do."""
    folder = local_folder(path, weights=weights, revision=revision)
    if not (folder / "config.json").is_file():  # a run folder names its newest checkpoint
        folder = newest_checkpoint(folder) or folder
    if not (folder / "config.json").is_file() and (folder / "actor").is_dir():  # a checkpoint keeps the policy there
        folder = folder / "actor"
    check_model(folder, str(path), weights=weights)
    return folder


def local_folder(path: str | Path, *, weights: bool = True, revision: str | None = None) -> Path:
    """The folder that `path` names, downloaded or copied if need be; the model may be somewhere inside."""
    text = str(path)
    if text.startswith("hdfs://"):
        return _copied_from_hdfs(text)
    folder = Path(text).expanduser()
    if text.startswith(EMBEDDED) and not folder.is_dir():  # from any working directory
        folder = Path(__file__).parent / text.removeprefix(EMBEDDED)
    return folder if folder.is_dir() else _from_hub(text, weights, revision)


def newest_checkpoint(run: Path) -> Path | None:
    """The checkpoint that a run folder's pointer names; where it names none, and with a warning, the newest."""
    if (step := pointed_step(run / LATEST)) is not None:
        return run / f"global_step_{step}"
    steps = [(int(match[1]), path) for path in run.glob("*/") if (match := STEP_FOLDER.fullmatch(path.name))]
    if not steps:
        return None
    newest = max(steps)[1]
    doubt = "" if (newest / MANIFEST).is_file() else f"; it has no {MANIFEST}, so it may be incomplete"
    _warn_once(f"{run}: no {LATEST} with a step in it; {newest.name} is used, the newest there{doubt}")
    return newest


def pointed_step(pointer: Path) -> int | None:
    """The step in a pointer to a checkpoint; None where there is no such file, or something else in it."""
    if not pointer.is_file():
        return None
    with pointer.open(encoding="utf-8", errors="replace") as file:
        match = STEP_FOLDER.fullmatch(f"global_step_{file.read(100).strip()}")
    return int(match[1]) if match else None


@functools.cache  # a path is resolved several times in a run
def _warn_once(message: str) -> None:
    logger.warning(message)


def fingerprint(path: str | Path) -> str:
    """A hash of the weight files' names, sizes and ends; the same wherever the folder is.

    A run keeps that of the model it started from, which is its reference policy: a resumed run must find the same.
    """
    folder = resolve_path(path)
    digest = hashlib.sha256()
    for file in sorted([*safetensors_files(folder), *folder.glob("pytorch_model*.bin")]):
        size = file.stat().st_size
        digest.update(f"{file.name} {size}\n".encode())
        with file.open("rb") as stream:
            digest.update(stream.read(GLANCE))
            stream.seek(max(size - GLANCE, 0), os.SEEK_SET)
            digest.update(stream.read(GLANCE))
    return digest.hexdigest()


def check_whole(checkpoint: Path, instead: str, *, part: Path | None = None, digests: bool = True) -> dict[str, Any]:
    """The manifest of a checkpoint; CheckpointError unless every file in it is there with its size and digest, inside
    of the checkpoint. `instead` is the other way out. With `part`, a folder of it, only the model's files in there are
    checked, and the manifest must name some. Without `digests`, which older manifests lack, no file is read."""
    try:
        manifest = read_json(checkpoint / MANIFEST, CheckpointError)
        outside = [name for name in manifest.get("files", {}) if leads_out(name)]
        files, sums = ({checkpoint / n: v for n, v in manifest.get(k, {}).items()} for k in ("files", DIGESTS))
    except (CheckpointError, AttributeError, TypeError):
        outside, files, sums = [], {}, {}
    if outside:
        raise CheckpointError(f"{checkpoint / MANIFEST} names {outside[0]!r}, which is outside of {checkpoint}")
    if part:
        inside = {path: size for path, size in files.items() if path.is_relative_to(part)}
        files = {path: size for path, size in inside.items() if not TRAINING_STATE.fullmatch(path.name)}
    if not files:
        raise CheckpointError(
            f"{checkpoint} is not a complete checkpoint: {MANIFEST} is missing or damaged. Copy it again, or {instead}"
        )
    names = {path: one_line(str(path.relative_to(checkpoint))) for path in files}
    try:
        _check_kinds(checkpoint)
        for path, size in files.items():
            found = path.stat().st_size if path.is_file() else None
            if found != size:
                state = "is missing" if found is None else f"has {found} bytes instead of {size}"
                raise CheckpointError(
                    f"checkpoint {checkpoint} is truncated: {names[path]} {state}. Copy it again, or {instead}"
                )
        wanted = [path for path in files if path in sums] if digests else []
        for path, digest in digests_of(wanted).items():
            if digest != sums[path]:
                raise CheckpointError(
                    f"checkpoint {checkpoint} is damaged: {names[path]} is not what was written (its "
                    f"{DIGESTS} differs from that in {MANIFEST}). Copy it again, or {instead}"
                )
    except OSError as error:
        raise CheckpointError(
            f"checkpoint {checkpoint} cannot be read ({error}). Copy it again, or {instead}"
        ) from error
    return manifest


def _check_kinds(checkpoint: Path) -> None:
    """CheckpointError where a checkpoint has links that lead out of it, or pipes and devices, which may block."""
    root = os.path.realpath(checkpoint)
    for path in checkpoint.rglob("*"):
        problem = "" if path.is_dir() or path.is_file() or path.is_symlink() else "is no file and no folder"
        if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(root):
            problem = "is a link that leads out of it"
        if problem:
            raise CheckpointError(f"checkpoint {checkpoint} is damaged: {one_line(str(path))} {problem}; remove it")


def digests_of(paths: Iterable[Path], then: Callable[[Path], object] = lambda path: None) -> dict[Path, str]:
    """The digest of each file, several at a time, and of one that links name as well only once. `then` is called with
    each file after it was read, in any thread."""

    def read(real: str) -> str:
        with open(real, "rb") as file:
            digest = hashlib.file_digest(file, DIGESTS).hexdigest()
        then(Path(real))
        return digest

    real = {path: os.path.realpath(path) for path in paths}
    files = sorted(set(real.values()), key=os.path.getsize, reverse=True)  # the longest first
    with ThreadPoolExecutor(HASHERS, thread_name_prefix="checkpoint-digest") as threads:
        found = dict(zip(files, threads.map(read, files), strict=True))
    return {path: found[file] for path, file in real.items()}


def shard_names(name: str, count: int) -> Iterator[str]:
    """The files that `count` processes write their shares of `name` to; a process that is alone writes `name`."""
    stem, _, end = name.partition(".")
    for number in range(1, count + 1):
        yield name if count == 1 else f"{stem}-{number:05}-of-{count:05}.{end}"


@dataclass(frozen=True)
class StoredTensor:
    dtype: str  # as safetensors writes it: F32, BF16, …
    shape: tuple[int, ...]


def stored_tensors(files: list[Path]) -> dict[str, StoredTensor]:
    """All tensors of some safetensors files, without reading them; ModelError for a file that was cut off."""
    from safetensors import SafetensorError, safe_open

    found = {}
    for file in files:
        try:
            with safe_open(file, framework="numpy") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - a safetensors file is no dict
                    part = tensors.get_slice(name)
                    found[name] = StoredTensor(part.get_dtype(), tuple(part.get_shape()))
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{file}: damaged or cut off ({error}); copy it again") from error
    return found


def read_json(file: Path, error: type[UserError] = ModelError) -> dict[str, Any]:
    """The object in a JSON file; `error` where there is none: it may hold anything, of any size and depth."""
    try:
        if not file.is_file():  # a pipe would block
            raise OSError("there is no such file")
        with file.open("rb") as stream:
            text = stream.read(JSON_LIMIT + 1)
        if len(text) > JSON_LIMIT:
            raise ValueError(f"it has more than {JSON_LIMIT} bytes")
        value = json.loads(text)
    except (OSError, ValueError, RecursionError) as failure:
        raise error(f"{file}: not readable as JSON ({failure})") from failure
    if not isinstance(value, dict):
        raise error(f"{file}: expected an object, found a {type(value).__name__}")
    return value


def leads_out(name: str) -> bool:
    """Whether a file's name, as another file has it, may be that of one outside of their folder."""
    return Path(name).is_absolute() or ".." in Path(name).parts


def safetensors_files(folder: Path) -> list[Path]:
    """The model's weights: the files that its index names, or all but a checkpoint's training state."""
    index = folder / INDEX
    if not index.is_file():
        return sorted(file for file in folder.glob("*.safetensors") if not TRAINING_STATE.fullmatch(file.name))
    try:
        names = sorted(set(read_json(index)["weight_map"].values()))
        if outside := [name for name in names if leads_out(name)]:
            raise ModelError(f"{index}: names {outside[0]!r}, which is outside of {folder}")
    except (KeyError, AttributeError, TypeError) as error:
        raise ModelError(f"{index}: not readable as an index of weights ({error})") from error
    return [folder / name for name in names]


def check_model(folder: Path, text: str, *, weights: bool = True) -> None:
    """ModelError unless `folder`, found behind the path `text`, holds a configuration and, if asked, weights."""
    where = f"{folder}" if str(folder) == text else f"{folder} (from the model path {text})"
    if (folder / ADAPTER_CONFIG).is_file():
        raise ModelError(
            f"{where}: a LoRA adapter, not a whole model; merge it into its base with "
            f"`burnish export {text} --out FOLDER` and name that folder"
        )
    if not (folder / "config.json").is_file():
        instead = "the model path must name a Hugging Face model folder, a checkpoint or a run"
        what = f"no config.json; {instead}{_there(folder)}"
        if any((folder / name).is_file() for name in LEFT_BY_A_RUN):
            instead = "name a run that has saved one (trainer.save_freq), or a model folder"
            what = f"a run folder without a checkpoint; {instead}"
        raise ModelError(f"{where}: {what}")
    if not weights or any(folder.glob("pytorch_model*.bin")):
        return
    files = safetensors_files(folder)
    if missing := [file.name for file in files if not file.is_file()]:
        raise ModelError(f"{where}: {INDEX} names {', '.join(missing)}, which is missing; copy the model again")
    if not files:
        raise ModelError(
            f"{where}: has config.json but no weights (looked for {WEIGHTS}); copy them there, or name another folder"
        )


def _there(folder: Path) -> str:
    """The models, checkpoints and runs in a folder, for those who meant one of them."""
    named = ("config.json", LATEST, MANIFEST)
    inside = folder.iterdir() if folder.is_dir() else ()
    found = sorted(path.name for path in inside if any((path / name).is_file() for name in named))
    return f" ({folder} has {', '.join(found[:5])}{', …' if len(found) > 5 else ''})" if found else ""


def check_tokenizer(folder: Path) -> None:
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise ModelError(
            f"{folder}: no tokenizer (looked for {', '.join(TOKENIZER_FILES)}); save one with "
            "tokenizer.save_pretrained, or name a folder that has it in the tokenizer_path next to the key that names "
            "this one (the policy: actor_rollout_ref.model.tokenizer_path; burnish sft, burnish rm: "
            "model.tokenizer_path)"
        )
    for file in (folder / TEMPLATE, *(folder / TEMPLATES).glob("*.jinja")):
        if file.exists() and (not file.is_file() or file.stat().st_size > LARGEST_TEMPLATE):
            raise ModelError(f"{file}: a chat template is a file of at most {LARGEST_TEMPLATE} bytes; copy it again")


def _from_hub(text: str, weights: bool, revision: str | None) -> Path:
    if not HUB_ID.fullmatch(text) or text in (".", ".."):
        raise ModelError(
            f"the model path {text}: there is no such folder{_there(Path(text).expanduser().parent)}; name a model "
            "folder or a hub id such as Qwen/Qwen2.5-0.5B"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    wanted = None if weights else ["*.json", "*.model", "*.txt", "*.jinja"]
    ignored = ["*.msgpack", "*.h5", "*.onnx", "*.gguf", "original/*"]
    try:
        return Path(snapshot_download(text, revision=revision, allow_patterns=wanted, ignore_patterns=ignored))
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
    get = [command, "dfs", "-get", address, str(partial)]
    try:
        done = subprocess.run(get, capture_output=True, text=True, timeout=HDFS_DEADLINE_S)
        problem = f"failed: {done.stderr.strip()}" if done.returncode else ""
    except subprocess.TimeoutExpired:
        problem = f"did not end within {HDFS_DEADLINE_S} s"
    if problem:
        shutil.rmtree(partial, ignore_errors=True)
        raise ModelError(f"the model path {address}: `hdfs dfs -get` {problem}")
    partial.rename(target)
    return target
