"""The training state of a `Trainable` in files, part by part (`checkpoint.save_contents`).

    config.json, model.safetensors, …   `hf_model`, always there: loadable by transformers; with LoRA the adapter alone
    masters.safetensors                 `model`: the float32 weights that the optimiser steps on
    optimizer.safetensors               `optimizer`: its moments and step counts, as kind.parameter
    rng.safetensors                     `extra`: torch's random state
    engine.json                         format, parts, optimiser, number of its moments, settings of the adapter, and
                                        for `extra` the number of updates

Several processes write one folder, each its own rows of masters and moments; any number reads it (`engine/shards.py`).
Nothing is unpickled. `load` checks all before it changes anything; if one process finds damage, none continues. The
processes of a mesh call `capture` and `load` together, `Snapshot.write` each for itself.
"""

import hashlib
import json
import logging
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor

from burnish.config.actor import PARTS
from burnish.engine.mesh import Mesh
from burnish.engine.sharding import checksums, computes_in, local, reshard, slices_of, whole_buckets
from burnish.engine.shards import StoredTensors, head, reading
from burnish.errors import CheckpointError
from burnish.models.folder import ENGINE, MASTERS, OPTIMIZER, RNG, SHARDED, read_json, shard_names
from burnish.models.loading import quiet_transformers
from burnish.models.lora import adapter_settings, adapter_writer, has_adapter

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from burnish.engine.trainable import Trainable

log = logging.getLogger(__name__)

FORMAT = 2  # of one process
FORMAT_OF_SEVERAL = 3  # with the number of `shards`, and the `save` that all of them say they are of
STEP = "step"  # torch's own count of a parameter's updates, among its moments
MOST_UPDATES = 2**53  # what a float counts to
SHOWN = 200  # characters of a setting in a message
RESTARTED = {
    "optimizer": "the optimiser's moments start from scratch",
    "extra": "the random state and the number of updates start from scratch",
}

T = TypeVar("T")
Write = Callable[[Path], object]  # fills a folder


@dataclass(frozen=True)
class Snapshot:
    """What this process writes in a save, if anything: as it is, or a copy, while training continues."""

    write_model: Write | None
    files: dict[str, dict[str, Tensor]]
    facts: dict[str, Any] | None
    heads: dict[str, dict[str, str]] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        if self.write_model is not None:
            self.write_model(folder)
        for name, tensors in self.files.items():
            save_file(tensors, folder / name, metadata=self.heads.get(name))
        if self.facts is not None:
            (folder / ENGINE).write_text(json.dumps(self.facts, indent=1))


def capture(trainable: "Trainable", contents: Sequence[str] = PARTS, *, copy: bool) -> Snapshot:
    """The parts `contents` of the state as it is now; with `copy` as copies in host memory."""
    hosted, mesh = _Copies() if copy else _in_place, trainable.mesh
    moments = {  # the optimiser's tensors as kind.parameter, each with its parameter's name
        f"{kind}.{name}": (name, value)
        for name, master in trainable.masters.items()
        for kind, value in trainable.optimizer.state.get(master, {}).items()
    }
    facts: dict[str, Any] = {
        "format": FORMAT,
        "parts": [part for part in PARTS if part in contents],
        "step": trainable.step,
        "optimizer": type(trainable.optimizer).__name__,
        "moments": len(moments) if "optimizer" in contents else 0,
        "adapter": adapter_settings(trainable.module),
    }
    shards = 1 if mesh is None or not SHARDED.keys() & set(contents) else dist.get_world_size(mesh.shards)
    if shards > 1:  # `save` distinguishes checkpoints: the same weights after as many updates have the same
        sums = checksums(trainable.masters, trainable.slices, mesh)
        save = hashlib.blake2b(f"{trainable.step} {sums.tolist()}".encode(), digest_size=8).hexdigest()
        facts |= {"format": FORMAT_OF_SEVERAL, "shards": shards, "save": save}
    if mesh is not None and not mesh.writes:  # others write what it has
        return Snapshot(None, {}, None)
    files, heads = {}, {}
    if "model" in contents:
        files[MASTERS] = {name: hosted(master) for name, master in trainable.masters.items()}
    if "optimizer" in contents:
        files[OPTIMIZER] = {key: hosted(tensor) for key, (_, tensor) in moments.items()}
    if mesh is not None and shards > 1:
        held = trainable.slices | {key: trainable.slices[name] for key, (name, _) in moments.items()}
        number = {name: list(shard_names(name, shards))[mesh.rank] for name in files}
        # what has no dimensions is the same everywhere
        files = {
            number[name]: {key: t for key, t in tensors.items() if (t.numel() if t.dim() else mesh.rank == 0)}
            for name, tensors in files.items()
        }
        heads = {file: head(tensors, held, facts["save"]) for file, tensors in files.items()}
    write_model = _model_writer(trainable, hosted, copy=copy)
    if mesh is not None and mesh.rank:
        return Snapshot(None, files, None, heads)
    if "extra" in contents:
        files[RNG] = {"cpu": torch.get_rng_state()}
        if trainable.device.type == "cuda":
            files[RNG]["cuda"] = torch.cuda.get_rng_state(trainable.device)
    return Snapshot(write_model, files, facts, heads)


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


def _model_writer(trainable: "Trainable", hosted: Callable[[Tensor], Tensor], *, copy: bool) -> Write | None:
    """What writes the files that transformers or PEFT reads, now or later and in any thread; of several processes the
    first, in the type that the model computes in: the files are those of one process."""
    module, mesh = trainable.module, trainable.mesh
    if mesh is None:
        return _writer(module, hosted, copy=copy)
    reshard(module)
    parameters = trainable.parameters if has_adapter(module) else dict(module.named_parameters())
    slices = slices_of(parameters, mesh)
    mine = {name: local(parameter) for name, parameter in parameters.items()}
    whole: dict[int, Tensor] = {}  # by the parameter's id
    for bucket in whole_buckets(mine, slices, mesh, dtype=computes_in(module)):
        if mesh.rank == 0:
            whole |= {id(parameters[name]): _in_place(tensor) for name, tensor in bucket.items()}
    if mesh.rank:
        return None
    write = _writer(module, lambda tensor: whole[id(tensor)] if id(tensor) in whole else hosted(tensor), copy=True)
    dtype = str(computes_in(module)).removeprefix("torch.")

    def write_in_type(folder: Path) -> None:
        """Let config.json name the type of the weights next to it; that of a sharded module is the masters'."""
        write(folder)
        file = folder / "config.json"  # an adapter has none, unless there is a head
        if file.is_file():
            config = json.loads(file.read_text()) | {"dtype": dtype}
            file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")  # as transformers writes it

    return write_in_type


def _writer(module: "PreTrainedModel", hosted: Callable[[Tensor], Tensor], *, copy: bool) -> Write:
    if has_adapter(module):
        return adapter_writer(module, hosted)
    weights = {name: hosted(t) for name, t in module.state_dict(keep_vars=True).items()} if copy else None
    return partial(_save_pretrained, module, weights)


def _save_pretrained(module: "PreTrainedModel", weights: dict[str, Tensor] | None, folder: Path) -> None:
    with quiet_transformers():  # its progress bar would break the console's live table
        module.save_pretrained(folder, state_dict=weights)


def load(trainable: "Trainable", folder: Path, contents: Sequence[str] = PARTS) -> None:
    """Read the parts `contents` back, weights always; nothing changes unless all of it fits. Warns of what is left out.
    All processes of a mesh check first, and none changes anything where it failed in one."""
    found = _agreed(trainable.mesh, lambda: _check(trainable, folder, contents))
    _agreed(trainable.mesh, lambda: _restore(trainable, found))
    for part, what in RESTARTED.items():
        if part not in contents:
            log.warning("%s is read without its part %s (checkpoint.load_contents): %s", folder, part, what)


# masters, moments, random state by device, number of updates; what is not read is None or empty
_StoredState = tuple[StoredTensors, StoredTensors | None, dict[str, Tensor], int | None]


def _check(trainable: "Trainable", folder: Path, contents: Sequence[str]) -> _StoredState:
    facts = _read_facts(folder)
    _check_parts(trainable, folder, facts, contents)
    shards, save = facts.get("shards", 1), facts.get("save")
    masters = StoredTensors(folder, MASTERS, shards, save)
    _check_masters(trainable, masters, folder)
    moments = None
    if "optimizer" in contents:
        moments = StoredTensors(folder, OPTIMIZER, shards, save)
        _check_moments(trainable, moments, facts)
    if "extra" not in contents:
        return masters, moments, {}, None
    return masters, moments, _read_random_state(folder / RNG, trainable.device), facts["step"]


def _restore(trainable: "Trainable", found: _StoredState) -> None:
    masters, moments, random_state, step = found
    reshard(trainable.module)  # else the next pass would use whole weights of before
    with torch.no_grad():
        for name, master in trainable.masters.items():
            masters.read(name, trainable.slices[name], master)
    trainable.write_compute_weights()
    trainable.optimizer.state.clear()
    if moments is not None:
        _restore_moments(trainable, moments)
    trainable.host_state.to_host()
    if step is not None:
        trainable.step = step
        torch.set_rng_state(random_state["cpu"])
        if trainable.device.type == "cuda" and "cuda" in random_state:
            torch.cuda.set_rng_state(random_state["cuda"], trainable.device)


def _agreed(mesh: Mesh | None, work: Callable[[], T]) -> T:
    """What `work` returns; where it fails in one of several processes, all raise the same."""
    if mesh is None:
        return work()
    problem: Exception | None = None
    try:
        result = work()
    except Exception as error:  # noqa: BLE001 - raised below, once the others know
        problem = error
    words = str(problem) if isinstance(problem, CheckpointError) else f"{type(problem).__name__}: {problem}"
    reports = mesh.gather(None if problem is None else (words, socket.gethostname()))
    failed = [(rank, *what) for rank, what in enumerate(reports) if what is not None]
    if not failed:
        return result
    rank, words, host = failed[0]
    everywhere = len({what and what[0] for what in reports}) == 1
    where = "" if everywhere else f" (so process {rank} of {len(reports)}, on {host})"
    raise CheckpointError(f"{words}{where}") from problem


def _check_parts(trainable: "Trainable", folder: Path, facts: dict[str, Any], contents: Sequence[str]) -> None:
    there, name = list(map(str, facts["parts"])), type(trainable.optimizer).__name__
    if "model" not in there:
        raise CheckpointError(
            f"{folder} has no part model (it was saved with checkpoint.save_contents=[hf_model]), so a run cannot "
            "resume from it. Start another one from its weights: name the folder as the model's path, and give that "
            "run another trainer.experiment_name"
        )
    if missing := [part for part in PARTS if part in contents and part not in there]:
        raise CheckpointError(
            f"{folder} has no part {missing[0]}, which checkpoint.load_contents=[{','.join(contents)}] asks for; it "
            f"has {', '.join(there)}. Set checkpoint.load_contents=[{','.join(there)}]: {RESTARTED[missing[0]]}"
        )
    if "optimizer" in contents and facts["optimizer"] != name:
        raise CheckpointError(
            f"{folder} was written with optim.optimizer={facts['optimizer']}, this run has {name}: "
            f"set optim.optimizer={facts['optimizer']} or start from scratch with trainer.resume_mode=disable"
        )
    theirs, ours = facts.get("adapter"), adapter_settings(trainable.module)
    if not isinstance(theirs, dict):
        raise CheckpointError(f"{folder / ENGINE} is damaged: it has no valid adapter")
    for name in ours | theirs:
        if (then := theirs.get(name)) != (now := ours.get(name)):
            raise CheckpointError(
                f"{folder} was saved with {name}={shorten(str(then), SHOWN)} of its adapter, and this run has "
                f"{name}={shorten(str(now), SHOWN)}: the same weights would be another model. Set model.{name} back, "
                "or if the adapter comes from model.lora_adapter_path, name that one again; or start from scratch with "
                "trainer.resume_mode=disable"
            )


def _check_masters(trainable: "Trainable", theirs: StoredTensors, folder: Path) -> None:
    shapes, difference = theirs.shapes, None
    for name, held in trainable.slices.items():
        if name not in shapes:
            difference = f"it has no parameter {name}"
        elif shapes[name] != held.shape:
            difference = f"{name} is {shapes[name]} there, {held.shape} here"
        if difference:
            break
        _check_type(theirs, name)
    if extra := sorted(set(shapes) - set(trainable.slices)):
        difference = difference or f"this model has no parameter {extra[0]}"
    if difference:
        raise CheckpointError(
            f"{folder} is a checkpoint of another model: {difference}. Set the model path that the checkpoint was "
            "trained from, or start another run with trainer.experiment_name=<another name>"
        )


def _check_moments(trainable: "Trainable", moments: StoredTensors, facts: dict[str, Any]) -> None:
    kinds: dict[str, set[str]] = {}
    shapes = moments.shapes
    for key, shape in shapes.items():
        kind, _, name = key.partition(".")
        held = trainable.slices.get(name)
        if held is None or shape != (() if kind == STEP else held.shape):
            raise CheckpointError(f"{moments.path} is damaged: {key} belongs to no parameter of its model")
        _check_type(moments, key)
        kinds.setdefault(name, set()).add(kind)
    for name, found in kinds.items():
        if missing := set.union(*kinds.values()) - found:
            raise CheckpointError(f"{moments.path} is damaged: it has no {min(missing)} of {name}")
    if len(shapes) != facts.get("moments"):  # all kinds of a parameter's moments, or all moments of a kind
        raise CheckpointError(
            f"{moments.path} is damaged: it has {len(shapes)} tensors, and {facts.get('moments')} were written "
            f"({ENGINE})"
        )


def _check_type(stored: StoredTensors, name: str) -> None:
    if (dtype := stored.dtype(name)) != torch.float32:
        raise CheckpointError(f"{stored.path} is damaged: {name} is of type {dtype}, not torch.float32")


def _restore_moments(trainable: "Trainable", moments: StoredTensors) -> None:
    groups = {id(master): group for group in trainable.optimizer.param_groups for master in group["params"]}
    for key in moments.shapes:
        kind, _, name = key.partition(".")
        master, held = trainable.masters[name], trainable.slices[name]
        device = master.device
        if kind == STEP:  # a fused optimiser counts its steps where it steps, any other one on the CPU
            on_device = groups[id(master)].get("fused") or groups[id(master)].get("capturable")
            steps_on = trainable.device if trainable.mesh is None else device  # slices stay where they are
            device = steps_on if on_device else torch.device("cpu")
        tensor = torch.empty(() if kind == STEP else master.shape, device=device)
        moments.read(key, held, tensor)
        trainable.optimizer.state[master][kind] = tensor


def _read_facts(folder: Path) -> dict[str, Any]:
    path = folder / ENGINE
    if not path.is_file():
        raise CheckpointError(f"{folder} is not a training checkpoint: {ENGINE} is missing")
    facts = read_json(path, CheckpointError)
    if facts.get("format") not in (FORMAT, FORMAT_OF_SEVERAL):
        raise CheckpointError(
            f"{path} is not of a format this version reads (format {FORMAT} or {FORMAT_OF_SEVERAL}). Start another run "
            "from its weights: name the folder as the model's path, in another run folder "
            "(trainer.default_local_dir)"
        )
    kinds = {"parts": list, "step": int, "optimizer": str}
    if facts["format"] == FORMAT_OF_SEVERAL:
        kinds |= {"shards": int, "save": str}
    if wrong := [name for name, kind in kinds.items() if not isinstance(facts.get(name), kind)]:
        raise CheckpointError(f"{path} is damaged: it has no valid {wrong[0]}")
    if isinstance(facts["step"], bool) or not 0 <= facts["step"] < MOST_UPDATES:
        raise CheckpointError(f"{path} is damaged: step={facts['step']} is no number of updates")
    if facts["format"] == FORMAT_OF_SEVERAL and facts["shards"] < 2:
        raise CheckpointError(f"{path} is damaged: shards={facts['shards']} is no number of several files")
    return facts


def _read_random_state(path: Path, device: torch.device) -> dict[str, Tensor]:
    """The states in a file; those that will be used are tried on a generator of their kind."""
    with reading(path):
        tensors = load_file(path)
    if "cpu" not in tensors:
        raise CheckpointError(f"checkpoint file {path} is damaged: it has no random state of the CPU")
    for kind in tensors.keys() & {"cpu", device.type}:
        try:
            torch.Generator(device if kind == device.type else kind).set_state(tensors[kind])
        except (TypeError, RuntimeError) as error:
            raise CheckpointError(f"checkpoint file {path} is damaged: {kind} is no random state: {error}") from error
    return tensors
