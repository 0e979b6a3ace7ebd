"""The files of a `Trainable`: written by `save`, checked and read back by `load`.

    config.json, model.safetensors, …   the model, loadable by transformers as it is
    optimizer.safetensors               float32 masters and optimiser state, by parameter name: what `load` reads
    rng.safetensors                     torch's random state
    engine.json                         format, optimiser, number of updates

Everything is safetensors or JSON; nothing is unpickled. `load` compares names and shapes before it changes anything.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.utils import logging as hf_logging

from burnish.errors import CheckpointError

if TYPE_CHECKING:
    from burnish.engine.trainable import Trainable

OPTIMIZER, RNG, ENGINE = "optimizer.safetensors", "rng.safetensors", "engine.json"
FORMAT = 1
MASTER = "master"


def save(trainable: "Trainable", folder: Path) -> None:
    """Write the model in HF format and the training state beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    with _no_progress_bar():
        trainable.module.save_pretrained(folder)
    save_file(_training_tensors(trainable), folder / OPTIMIZER)
    save_file(_random_state(trainable.device), folder / RNG)
    facts = {"format": FORMAT, "step": trainable.step, "optimizer": type(trainable.optimizer).__name__}
    (folder / ENGINE).write_text(json.dumps(facts, indent=1))


def load(trainable: "Trainable", folder: Path) -> None:
    """Bring weights, optimiser, step count and random state back; nothing changes unless all of it fits."""
    facts = _read_facts(folder)
    name = type(trainable.optimizer).__name__
    if facts["optimizer"] != name:
        raise CheckpointError(
            f"{folder} was written with optim.optimizer={facts['optimizer']}, this run has {name}: "
            f"set optim.optimizer={facts['optimizer']} or start afresh with trainer.resume_mode=disable"
        )
    saved = _read_tensors(folder / OPTIMIZER)
    random_state = _read_tensors(folder / RNG)
    _check_fit(trainable, saved, folder)
    with torch.no_grad():
        for parameter, master in trainable.masters.items():
            master.copy_(saved.pop(f"{MASTER}.{parameter}"))
    trainable.write_compute_weights()
    trainable.optimizer.state.clear()
    for key, tensor in saved.items():
        kind, parameter = key.split(".", 1)
        master = trainable.masters[parameter]
        # torch keeps its own step counts on the CPU; the moments live where the parameter does.
        trainable.optimizer.state[master][kind] = tensor if tensor.dim() == 0 else tensor.to(master.device)
    trainable.step = facts["step"]
    _restore_random_state(random_state, trainable.device)


def _training_tensors(trainable: "Trainable") -> dict[str, Tensor]:
    tensors = {}
    for name, master in trainable.masters.items():
        tensors[f"{MASTER}.{name}"] = master.detach().cpu().contiguous()
        for kind, value in trainable.optimizer.state.get(master, {}).items():
            tensors[f"{kind}.{name}"] = value.detach().cpu().contiguous()
    return tensors


def _check_fit(trainable: "Trainable", saved: dict[str, Tensor], folder: Path) -> None:
    prefix = f"{MASTER}."
    theirs = {key.removeprefix(prefix): tensor for key, tensor in saved.items() if key.startswith(prefix)}
    for name, master in trainable.masters.items():
        if name not in theirs:
            raise _other_model(folder, f"it has no parameter {name}")
        if theirs[name].shape != master.shape:
            raise _other_model(folder, f"{name} is {tuple(theirs[name].shape)} there, {tuple(master.shape)} here")
    if extra := sorted(set(theirs) - set(trainable.masters)):
        raise _other_model(folder, f"this model has no parameter {extra[0]}")
    for key, tensor in saved.items():
        name = key.split(".", 1)[1]
        if name not in trainable.masters or tensor.shape not in ((), trainable.masters[name].shape):
            raise CheckpointError(f"{folder / OPTIMIZER} is damaged: {key} belongs to no parameter of its model")


def _other_model(folder: Path, difference: str) -> CheckpointError:
    return CheckpointError(
        f"{folder} is a checkpoint of another model: {difference}. Set the model path that the checkpoint was trained "
        f"from, or start afresh with trainer.resume_mode=disable"
    )


def _read_facts(folder: Path) -> dict:
    path = folder / ENGINE
    try:
        facts = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise CheckpointError(f"{folder} is not a training checkpoint: {ENGINE} is missing") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error
    if not isinstance(facts, dict) or facts.get("format") != FORMAT or not {"step", "optimizer"} <= facts.keys():
        raise CheckpointError(f"{path} is not of a format this version reads (format {FORMAT})")
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


def _restore_random_state(tensors: dict[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(tensors["cpu"])
    if device.type == "cuda" and "cuda" in tensors:
        torch.cuda.set_rng_state(tensors["cuda"], device)
