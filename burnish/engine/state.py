"""The files of a `Trainable`: captured, written, checked and read back, part by part (`checkpoint.save_contents`).

    config.json, model.safetensors, …   `hf_model`, always there: loadable by transformers; with LoRA the adapter alone
    masters.safetensors                 `model`: the float32 weights that the optimiser steps on
    optimizer.safetensors               `optimizer`: its moments and step counts, as kind.parameter
    rng.safetensors                     `extra`: torch's random state
    engine.json                         format, parts, optimiser, number of its moments, settings of the adapter, and
                                        for `extra` the number of updates

Everything is safetensors or JSON; nothing is unpickled. `load` checks all of it before it changes anything: names,
shapes and types, that nothing is missing, and that the random state is one.
"""

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.utils import logging as hf_logging

from burnish.config.actor import PARTS
from burnish.errors import CheckpointError
from burnish.models.lora import adapter_settings, adapter_writer, has_adapter

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from burnish.engine.trainable import Trainable

log = logging.getLogger(__name__)

MASTERS, OPTIMIZER, RNG, ENGINE = "masters.safetensors", "optimizer.safetensors", "rng.safetensors", "engine.json"
FORMAT = 2
STEP = "step"  # torch's own count of a parameter's updates, among its moments
SHOWN = 200  # characters of a setting in a message
ANEW = {
    "optimizer": "the optimiser's moments start anew",
    "extra": "the random state and the number of updates start anew",
}

Write = Callable[[Path], object]  # fills a folder


@dataclass(frozen=True)
class Snapshot:
    """What a save writes: of the model as it is, or copied, so that training may go on before `write` is called."""

    write_model: Write
    files: dict[str, dict[str, Tensor]]
    facts: dict[str, Any]

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.write_model(folder)
        for name, tensors in self.files.items():
            save_file(tensors, folder / name)
        (folder / ENGINE).write_text(json.dumps(self.facts, indent=1))


def capture(trainable: "Trainable", contents: Sequence[str] = PARTS, *, copy: bool) -> Snapshot:
    """The parts `contents` of the state as it is now; with `copy` in host memory of their own."""
    hosted = _Copies() if copy else _in_place
    files = {}
    if "model" in contents:
        files[MASTERS] = {name: hosted(master) for name, master in trainable.masters.items()}
    if "optimizer" in contents:
        state = trainable.optimizer.state
        files[OPTIMIZER] = {
            f"{kind}.{name}": hosted(value)
            for name, master in trainable.masters.items()
            for kind, value in state.get(master, {}).items()
        }
    if "extra" in contents:
        files[RNG] = _random_state(trainable.device)
    facts = {
        "format": FORMAT,
        "parts": [part for part in PARTS if part in contents],
        "step": trainable.step,
        "optimizer": type(trainable.optimizer).__name__,
        "moments": len(files.get(OPTIMIZER, {})),
        "adapter": adapter_settings(trainable.module),
    }
    return Snapshot(_model_writer(trainable.module, hosted, copy=copy), files, facts)


def load(trainable: "Trainable", folder: Path, contents: Sequence[str] = PARTS) -> None:
    """Bring the parts `contents` back, weights always; nothing changes unless all of it fits. Says what starts anew."""
    facts = _read_facts(folder)
    _check_parts(trainable, folder, facts, contents)
    _check_adapter(trainable, folder, facts)
    masters = _read_tensors(folder / MASTERS)
    _check_masters(trainable, masters, folder)
    moments = _read_tensors(folder / OPTIMIZER) if "optimizer" in contents else {}
    if "optimizer" in contents:
        _check_moments(trainable, moments, folder, facts)
    random_state = _read_random_state(folder / RNG, trainable.device) if "extra" in contents else {}
    with torch.no_grad():
        for name, master in trainable.masters.items():
            master.copy_(masters.pop(name))
    trainable.write_compute_weights()
    _restore_moments(trainable, moments)
    if "extra" in contents:
        trainable.step = facts["step"]
        _restore_random_state(random_state, trainable.device)
    for part, what in ANEW.items():
        if part not in contents:
            log.warning("%s is read without its part %s (checkpoint.load_contents): %s", folder, part, what)


class _Copies:
    """Host copies of tensors. Of one that comes twice (tied weights, a weight that is its own master) there is one."""

    def __init__(self) -> None:
        self._made: dict[tuple[Any, ...], Tensor] = {}

    def __call__(self, tensor: Tensor) -> Tensor:
        place = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if place not in self._made or not tensor.data_ptr():
            self._made[place] = tensor.detach().to("cpu", copy=True).contiguous()
        return self._made[place]


def _in_place(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous()


def _model_writer(module: "PreTrainedModel", hosted: Callable[[Tensor], Tensor], *, copy: bool) -> Write:
    """Writes the Hugging Face folder, or the adapter's."""
    if has_adapter(module):
        return adapter_writer(module, hosted)
    weights = {name: hosted(tensor) for name, tensor in module.state_dict().items()} if copy else None
    return partial(_save_pretrained, module, weights)


def _save_pretrained(module: "PreTrainedModel", weights: dict[str, Tensor] | None, folder: Path) -> None:
    with _no_progress_bar():
        module.save_pretrained(folder, state_dict=weights)


def _check_parts(trainable: "Trainable", folder: Path, facts: dict[str, Any], contents: Sequence[str]) -> None:
    there, name = facts["parts"], type(trainable.optimizer).__name__
    if "model" not in there:
        raise CheckpointError(
            f"{folder} has no part model (it was saved with checkpoint.save_contents=[hf_model]), so a run cannot go "
            "on from it. Start another one from its weights: name the folder as the model's path, and give that run "
            "another trainer.experiment_name"
        )
    if missing := [part for part in PARTS if part in contents and part not in there]:
        raise CheckpointError(
            f"{folder} has no part {missing[0]}, which checkpoint.load_contents=[{','.join(contents)}] asks for; it "
            f"has {', '.join(there)}. Set checkpoint.load_contents=[{','.join(there)}]: {ANEW[missing[0]]}"
        )
    if "optimizer" in contents and facts["optimizer"] != name:
        raise CheckpointError(
            f"{folder} was written with optim.optimizer={facts['optimizer']}, this run has {name}: "
            f"set optim.optimizer={facts['optimizer']} or start afresh with trainer.resume_mode=disable"
        )


def _check_adapter(trainable: "Trainable", folder: Path, facts: dict[str, Any]) -> None:
    """CheckpointError that names a setting under which the same weights would make another model."""
    theirs, ours = facts.get("adapter"), adapter_settings(trainable.module)
    if not isinstance(theirs, dict):
        raise CheckpointError(f"{folder / ENGINE} is damaged: it does not say adapter")
    for name in ours | theirs:
        if (then := theirs.get(name)) != (now := ours.get(name)):
            raise CheckpointError(
                f"{folder} was saved with {name}={shorten(str(then), SHOWN)} of its adapter, and this run has "
                f"{name}={shorten(str(now), SHOWN)}: the same weights would be another model. Set model.{name} back, "
                "or where model.lora_adapter_path brings it, name that adapter again; or start afresh with "
                "trainer.resume_mode=disable"
            )


def _check_masters(trainable: "Trainable", theirs: dict[str, Tensor], folder: Path) -> None:
    for name, master in trainable.masters.items():
        if name not in theirs:
            raise _other_model(folder, f"it has no parameter {name}")
        if theirs[name].shape != master.shape:
            raise _other_model(folder, f"{name} is {tuple(theirs[name].shape)} there, {tuple(master.shape)} here")
        _check_type(folder / MASTERS, name, theirs[name])
    if extra := sorted(set(theirs) - set(trainable.masters)):
        raise _other_model(folder, f"this model has no parameter {extra[0]}")


def _check_moments(trainable: "Trainable", moments: dict[str, Tensor], folder: Path, facts: dict[str, Any]) -> None:
    kinds: dict[str, set[str]] = {}
    for key, tensor in moments.items():
        kind, _, name = key.partition(".")
        master = trainable.masters.get(name)
        if master is None or tensor.shape != (() if kind == STEP else master.shape):
            raise CheckpointError(f"{folder / OPTIMIZER} is damaged: {key} belongs to no parameter of its model")
        _check_type(folder / OPTIMIZER, key, tensor)
        kinds.setdefault(name, set()).add(kind)
    for name, found in kinds.items():
        if missing := set.union(*kinds.values()) - found:
            raise CheckpointError(f"{folder / OPTIMIZER} is damaged: it has no {min(missing)} of {name}")
    if len(moments) != facts.get("moments"):  # all kinds of a parameter's moments, or all moments of a kind
        raise CheckpointError(
            f"{folder / OPTIMIZER} is damaged: it has {len(moments)} tensors, and {facts.get('moments')} were written "
            f"({ENGINE})"
        )


def _check_type(file: Path, name: str, tensor: Tensor) -> None:
    if tensor.dtype != torch.float32:
        raise CheckpointError(f"{file} is damaged: {name} is of type {tensor.dtype}, not torch.float32")


def _restore_moments(trainable: "Trainable", moments: dict[str, Tensor]) -> None:
    groups = {id(master): group for group in trainable.optimizer.param_groups for master in group["params"]}
    trainable.optimizer.state.clear()
    for key, tensor in moments.items():
        kind, _, name = key.partition(".")
        master = trainable.masters[name]
        device = master.device  # of masters that wait in host memory, the moments do so too
        if kind == STEP:  # a fused optimiser counts its steps on the device, any other one on the CPU
            on_device = groups[id(master)].get("fused") or groups[id(master)].get("capturable")
            device = trainable.device if on_device else torch.device("cpu")
        trainable.optimizer.state[master][kind] = tensor.to(device)


def _other_model(folder: Path, difference: str) -> CheckpointError:
    return CheckpointError(
        f"{folder} is a checkpoint of another model: {difference}. Set the model path that the checkpoint was trained "
        "from, or start a run of its own with trainer.default_local_dir=<another folder>"
    )


def _read_facts(folder: Path) -> dict[str, Any]:
    path = folder / ENGINE
    try:
        facts = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise CheckpointError(f"{folder} is not a training checkpoint: {ENGINE} is missing") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} is not of a format this version reads (format {FORMAT}). Start another run from its weights: name "
            "the folder as the model's path, in a run folder of its own (trainer.default_local_dir)"
        )
    kinds = {"parts": list, "step": int, "optimizer": str}
    if wrong := [name for name, kind in kinds.items() if not isinstance(facts.get(name), kind)]:
        raise CheckpointError(f"{path} is damaged: it does not say {wrong[0]}")
    if isinstance(facts["step"], bool) or facts["step"] < 0:
        raise CheckpointError(f"{path} is damaged: step={facts['step']} is no number of updates")
    return facts


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except FileNotFoundError as error:
        raise CheckpointError(f"checkpoint {path.parent} is incomplete: {path.name} is missing") from error
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"checkpoint file {path} is truncated or damaged: {error}") from error


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """transformers draws a bar for each model it writes, which tears the console's live table."""
    was_on = hf_logging.is_progress_bar_enabled()
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_on:
            hf_logging.enable_progress_bar()


def _random_state(device: torch.device) -> dict[str, Tensor]:
    tensors = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        tensors["cuda"] = torch.cuda.get_rng_state(device)
    return tensors


def _read_random_state(path: Path, device: torch.device) -> dict[str, Tensor]:
    """The states in a file, those that `_restore_random_state` takes tried on a generator of their kind."""
    tensors = _read_tensors(path)
    if "cpu" not in tensors:
        raise CheckpointError(f"checkpoint file {path} is damaged: it has no random state of the CPU")
    for kind in tensors.keys() & {"cpu", device.type}:
        try:
            torch.Generator(device if kind == device.type else kind).set_state(tensors[kind])
        except (TypeError, RuntimeError) as error:
            raise CheckpointError(f"checkpoint file {path} is damaged: {kind} is no random state: {error}") from error
    return tensors


def _restore_random_state(tensors: dict[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(tensors["cpu"])
    if device.type == "cuda" and "cuda" in tensors:
        torch.cuda.set_rng_state(tensors["cuda"], device)
