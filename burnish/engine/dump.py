"""Dumps of updates that were NaN or infinite, for `burnish replay`: `bad_steps/step_<N>_<role>_<number>/` of a run.

    update.json         which update it was, its metrics as the run saw them, every key of the run, versions
    batch.safetensors   the tensor columns of its mini-batch
    batch.json          its other columns and its facts, where they have a JSON form
    model/              the weights it was computed with and the tokenizer; with LoRA the adapter, without its base

A dump may come from anyone: nothing is unpickled, and `read_dump` checks types and the columns that the update reads.
"""

import json
import logging
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from burnish import __version__
from burnish.config.key import keys_of, read
from burnish.engine.state import capture
from burnish.errors import CheckpointError
from burnish.models.folder import read_json
from burnish.protocol import DataProto

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from burnish.engine.trainable import Trainable

log = logging.getLogger(__name__)

FOLDER, UPDATE, TENSORS, REST, MODEL = "bad_steps", "update.json", "batch.safetensors", "batch.json", "model"
FORMAT = 1
KEPT = 3  # dumps of a run: each holds a model, and the first ones show the most

SEQUENCES = ("input_ids", "attention_mask", "responses", "response_mask")
NEEDED = {  # columns that an update cannot do without
    "actor": (*SEQUENCES, "advantages"),
    "critic": (*SEQUENCES, "values", "returns"),
    "process_reward": (*SEQUENCES, "process_ref_log_prob", "outcomes"),
    "sft": SEQUENCES,
    "rm": ("input_ids", "attention_mask", "margin"),
}
MASKS = ("attention_mask", "response_mask", "loss_mask", "chosen")
OF_ROWS = ("outcomes", "margin")  # (B,)
OF_TOKENS = (  # (B, R), as far as they are there
    "response_mask", "advantages", "values", "returns", "process_ref_log_prob", "old_log_probs", "rollout_log_probs",
    "ref_log_prob", "rollout_is_weights", "loss_mask", "chosen",
)  # fmt: skip


@dataclass(frozen=True)
class Update:
    """One optimiser step, as its run saw it."""

    role: str  # actor, critic or process_reward; sft or rm of those commands
    step: int  # of the training
    number: int  # among the role's optimiser steps of that step
    schedule: int  # place in the learning-rate schedule
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class Dump:
    """An update that was dumped, with all that it takes to run it again; its weights are in `folder / MODEL`."""

    folder: Path
    command: str  # ppo, sft or rm
    update: Update
    config: dict[str, Any]  # every key of the run
    versions: dict[str, str]
    batch: DataProto


class BadSteps:
    """The dumps of one run. Only the first `KEPT` bad updates are dumped, so that no run fills its disk with them."""

    def __init__(self, run_folder: str | Path, command: str, config: Any):
        self.run_folder, self.command, self.config = run_folder, command, config

    def write(
        self, update: Update, batch: DataProto, trainable: "Trainable", tokenizer: "PreTrainedTokenizerBase"
    ) -> None:
        """Dump an update, called by all processes of a mesh. If that fails, the run continues with a warning."""
        final, mesh = dump_folder(self.run_folder, update.step, update.role, update.number), trainable.mesh
        there = [path for path in final.parent.glob("step_*") if path != final]
        wanted = len(there) < KEPT
        writes = mesh is None or mesh.rank == 0
        if not wanted and writes:
            log.warning("%s is not dumped: the run has %d dumps already, and keeps no more", final.name, len(there))
        if not (wanted if mesh is None else mesh.gather(wanted)[0]):
            return
        model = capture(trainable, ["hf_model"], copy=False)
        if not writes:
            return
        writing = final.with_name(f".{final.name}.writing")
        try:
            shutil.rmtree(writing, ignore_errors=True)
            writing.mkdir(parents=True)
            self._fill(writing, update, batch)
            model.write(writing / MODEL)
            tokenizer.save_pretrained(writing / MODEL)
            shutil.rmtree(final, ignore_errors=True)  # a resumed run that comes to the same update again
            writing.rename(final)
        except (OSError, SafetensorError) as error:  # safetensors wraps the system's error in its own
            shutil.rmtree(writing, ignore_errors=True)
            log.warning("%s cannot be dumped for replay: %s", final, getattr(error, "strerror", None) or error)

    def _fill(self, folder: Path, update: Update, batch: DataProto) -> None:
        facts = {
            "format": FORMAT,
            "command": self.command,
            **asdict(update),
            "metrics": {name: value if np.isfinite(value) else str(value) for name, value in update.metrics.items()},
            "versions": versions(),
            "config": {name: read(self.config, name) for name in keys_of(type(self.config))},
        }
        (folder / UPDATE).write_text(json.dumps(facts, indent=1))
        # Columns may share memory, which safetensors refuses: each gets its own.
        whole = torch.contiguous_format
        columns = {name: column.detach().cpu().clone(memory_format=whole) for name, column in batch.batch.items()}
        save_file(columns, folder / TENSORS)
        others, meta_info = _with_json_form(batch.non_tensor_batch), _with_json_form(batch.meta_info)
        (folder / REST).write_text(json.dumps({"non_tensor_batch": others, "meta_info": meta_info}, indent=1))


def dump_folder(run_folder: str | Path, step: int, role: str, number: int) -> Path:
    return Path(run_folder).expanduser() / FOLDER / f"step_{step}_{role}_{number}"


def versions() -> dict[str, str]:
    return {"burnish": __version__, "torch": torch.__version__, "transformers": transformers.__version__}


def read_dump(folder: str | Path) -> Dump:
    """The dump in a folder without its weights; CheckpointError where there is none, or it is incomplete."""
    folder = Path(folder).expanduser()
    facts = _read_facts(folder)
    try:
        metrics = {name: float(value) for name, value in _typed(facts, "metrics", dict).items()}
        step, number, schedule = (_typed(facts, name, int) for name in ("step", "number", "schedule"))
        if min(step, number) < 0:
            raise ValueError(f"{UPDATE}: step={step}, number={number}")
        update = Update(_typed(facts, "role", str), step, number, schedule, metrics)
        rest = read_json(folder / REST, CheckpointError)
        batch = DataProto.from_dict(load_file(folder / TENSORS), rest["non_tensor_batch"], rest["meta_info"])
        kinds = {"command": str, "config": dict, "versions": dict}
        command, config, found = (_typed(facts, name, kind) for name, kind in kinds.items())
        if role_needs := NEEDED.get(update.role):
            _check_columns(batch, role_needs, sides=2 if update.role == "rm" else 1)
        return Dump(folder, command, update, config, {name: str(version) for name, version in found.items()}, batch)
    except (OSError, SafetensorError, ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
        reason = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
        raise CheckpointError(f"the dump {folder} is damaged ({reason}); copy it again") from error


def _typed(facts: Mapping[str, Any], name: str, kind: type) -> Any:
    value = facts[name]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{UPDATE}: {name} is a {type(value).__name__}, and not a {kind.__name__}")
    return value


def _check_columns(batch: DataProto, needed: tuple[str, ...], sides: int) -> None:
    """ValueError where the columns of a mini-batch, of so many sequences in a row, are not those or do not fit."""
    columns = batch.batch
    if missing := [name for name in needed if columns is None or name not in columns]:
        raise ValueError(f"{TENSORS}: no column {missing[0]}")
    ids, attention = columns["input_ids"], columns["attention_mask"]  # (B, L)
    if not len(batch) or ids.ndim != 2 or ids.shape[1] % sides or ids.dtype != torch.int64:
        raise ValueError(f"{TENSORS}: input_ids has dtype {ids.dtype} and shape {tuple(ids.shape)}")
    width = columns["responses"].shape[-1] if "responses" in needed else 0
    shapes = {"attention_mask": ids.shape, "responses": (len(ids), width)}
    shapes |= dict.fromkeys(OF_TOKENS, (len(ids), width)) | dict.fromkeys(OF_ROWS, (len(ids),))
    there = {name: shape for name, shape in shapes.items() if name in columns}
    for name, shape in there.items():
        if columns[name].shape != shape:
            raise ValueError(f"{TENSORS}: {name} has the shape {tuple(columns[name].shape)}, and not {tuple(shape)}")
        if name in MASKS and bool(((columns[name] != 0) & (columns[name] != 1)).any()):
            raise ValueError(f"{TENSORS}: {name} holds other values than 0 and 1")
        if name in (*OF_TOKENS, *OF_ROWS) and name not in MASKS and not columns[name].is_floating_point():
            raise ValueError(f"{TENSORS}: {name} has dtype {columns[name].dtype}")
    read = attention.view(len(ids) * sides, -1)
    if width > ids.shape[1] or bool((read[:, : read.shape[1] - width].sum(-1) < 1).any()):
        raise ValueError(f"{TENSORS}: attention_mask has a row without a prompt")


def _read_facts(folder: Path) -> dict[str, Any]:
    if not (folder / UPDATE).is_file():
        inside = sorted(path.parent for place in (".", FOLDER) for path in (folder / place).glob(f"step_*/{UPDATE}"))
        there = f"; there are {', '.join(map(str, inside))}" if inside else ""
        raise CheckpointError(
            f"no dump at {folder}: it has no {UPDATE}. Name a folder {FOLDER}/step_N_ROLE_NUMBER of a run{there}"
        )
    facts = read_json(folder / UPDATE, CheckpointError)
    if facts.get("format") != FORMAT:
        raise CheckpointError(f"{folder / UPDATE} is not of a format this version reads (format {FORMAT})")
    return facts


def _with_json_form(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those that JSON can hold. No update reads the others: they are for people who look at a row."""

    def plain(value: Any) -> Any:
        if isinstance(value, np.generic | np.ndarray):
            return value.tolist()
        raise TypeError(type(value).__name__)

    kept = {}
    for name, value in values.items():
        try:
            kept[name] = json.loads(json.dumps(value, default=plain))
        except (TypeError, ValueError):
            log.debug("%s cannot be written as JSON and is omitted from the dump", name)
    return kept
