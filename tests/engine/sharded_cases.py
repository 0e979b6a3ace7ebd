"""What the processes of `test_sharded_state.py` do: `two` save, then `four` load, and each returns what it found."""

import copy
import json
import shutil
import threading
from contextlib import nullcontext
from unittest import mock

import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from burnish.algorithms.tally import mean_over_tokens
from burnish.config import PPOConfig
from burnish.config.model import ModelConfig
from burnish.config.optim import OptimConfig
from burnish.engine import state
from burnish.engine.batching import MicroBatch
from burnish.engine.dump import BadSteps, Update
from burnish.engine.mesh import Mesh
from burnish.engine.packing import pack
from burnish.engine.shards import HEAD
from burnish.engine.trainable import Trainable
from burnish.errors import CheckpointError
from burnish.models.loading import load_causal_lm, load_tokenizer, load_value_model
from burnish.workers.model_worker import ModelFolder
from tests.engine.updating import uneven_rows, update
from tests.models.helpers import edit_json

MICRO = MicroBatch(max_sequences=2)
KINDS = {  # how a model is made
    "plain": {"dtype": "float32"},
    "rounded": {"dtype": "bfloat16"},
    "lora": {"dtype": "bfloat16", "lora_rank": 3},
    "value": {"dtype": "bfloat16"},
    "value-lora": {"dtype": "bfloat16", "lora_rank": 2},
}


def make(kind, model_folder, mesh):
    model = ModelConfig(path=str(model_folder), **KINDS[kind])
    load = load_value_model if kind.startswith("value") else load_causal_lm
    module = load(model.path, model, seed=1)
    if kind == "value":
        module.get_input_embeddings().requires_grad_(False)  # a part that is not trained, and written all the same
    return Trainable(module, OptimConfig(lr=1e-3), total_steps=10, model=model, mesh=mesh)


def step(trainable):
    batch = uneven_rows(5)
    count = int(batch.batch["response_mask"].sum())

    def loss(micro):
        mask, packed = micro.batch["response_mask"], pack(micro.batch)
        if hasattr(trainable.module, "score"):
            out = (trainable.forward.values(packed) - 1).square()
        else:
            out = -trainable.forward.log_probs(packed)["log_prob"]
        return (out * mask).sum() / count, {"out": mean_over_tokens(out.detach(), mask)}

    return update(trainable, batch, loss, MICRO)


def log_probs(trainable):
    rows = uneven_rows(5)
    return trainable.infer(lambda micro: trainable.forward.log_probs(pack(micro.batch)), rows, MICRO)["log_prob"]


def state_of(trainable):
    """Masters and moments: whole, from the slices of all processes."""
    mine = {name: (held, trainable.masters[name].detach()) for name, held in trainable.slices.items()}
    for name, master in trainable.masters.items():
        for kind, tensor in trainable.optimizer.state.get(master, {}).items():
            mine[f"{kind}.{name}"] = (trainable.slices[name], tensor)
    found = {}
    for of_one in trainable.mesh.gather(copy.deepcopy(mine)) if trainable.mesh else [mine]:
        for name, (held, tensor) in of_one.items():
            if not tensor.dim():
                assert found.setdefault(name, tensor) == tensor, f"{name} is not the same everywhere"
                continue
            found.setdefault(name, torch.full(held.shape, float("nan")))[held.start : held.stop] = tensor
    return found


def same(one, other):
    return one.keys() == other.keys() and all(one[name].equal(other[name]) for name in one)


def content(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def two(folder, model_folder):
    seen, mesh = {}, Mesh.of(torch.device("cpu"))
    for kind in KINDS:
        trainable = make(kind, model_folder, mesh)
        for _ in range(2):
            step(trainable)
        seen[kind] = state_of(trainable)
        if kind == "rounded":
            with torch.no_grad():  # leaves the outermost weights whole
                trainable.forward.log_probs(pack(uneven_rows(5).batch))
        trainable.save(folder / "two" / kind)
        captured = trainable.capture()
        seen[f"{kind}/next"] = step(trainable)
        torch.rand(3)
        thread = threading.Thread(target=captured.write, args=(folder / "later" / kind,))
        thread.start()
        thread.join()
        dist.barrier()
        seen[f"{kind}/later"] = content(folder / "later" / kind) == content(folder / "two" / kind)
        trainable.load(folder / "two" / kind)
        seen[f"{kind}/again"] = same(state_of(trainable), seen[kind])
        seen[f"{kind}/repeated"] = step(trainable) == seen[f"{kind}/next"]
    other_files(folder, model_folder, mesh, seen)
    return seen


def other_files(folder, model_folder, mesh, seen):
    """What else a worker writes: the tokenizer, dumps, and a checkpoint without a part."""
    trainable, tokenizer = make("plain", model_folder, mesh), load_tokenizer(model_folder)
    trainable.save(folder / "weights", ["hf_model"])
    (folder / "run").mkdir(exist_ok=True)
    dist.barrier()
    worker = ModelFolder(trainable, tokenizer)
    worker.save(folder / "run" / "now")
    worker.capture()
    worker.save(folder / "run" / "captured")
    seen["has written"] = sorted(vars(worker).keys() & {"_write_tokenizer"})
    try:
        worker.save(folder / "elsewhere" / "actor")
    except CheckpointError as error:
        seen["elsewhere"] = str(error)
    dumps = BadSteps(folder / "dumps", "ppo", PPOConfig())
    for number in range(4):
        dumps.write(Update("sft", 3, number, 2, {"loss": float("nan")}), uneven_rows(5), trainable, tokenizer)
    dist.barrier()


def four(folder, model_folder):
    seen, mesh = {}, Mesh.of(torch.device("cpu"))
    for kind in KINDS:
        trainable = make(kind, model_folder, mesh)
        if kind == "plain":
            before = log_probs(trainable)
            with torch.no_grad():  # leaves the outermost weights whole
                trainable.forward.log_probs(pack(uneven_rows(5).batch))
        trainable.load(folder / "two" / kind)
        seen[f"{kind}/four"] = state_of(trainable)
        if kind == "plain":
            seen["moved"] = not log_probs(trainable).equal(before)
            seen["log probs"] = log_probs(trainable)
        trainable.save(folder / "four" / kind)
        seen[f"{kind}/four/next"] = step(trainable)
    trainable = make("plain", model_folder, mesh)
    trainable.load(folder / "one")
    seen["one/four"] = state_of(trainable)
    damage_cases(folder, trainable, mesh, seen)
    copies = Mesh.of(torch.device("cpu"), fsdp_size=2)
    trainable = make("plain", model_folder, copies)
    trainable.load(folder / "two" / "plain")
    trainable.save(folder / "copies")
    seen["copies/next"] = step(trainable)
    alone = Mesh.of(torch.device("cpu"), fsdp_size=1)
    trainable = make("plain", model_folder, alone)
    trainable.load(folder / "two" / "plain")
    trainable.save(folder / "alone")
    dist.barrier()
    return seen


def edit(path, change=lambda tensors: tensors, head=lambda said: said):
    """Rewrite a file of a checkpoint with other tensors, or another head."""
    with safe_open(path, framework="pt") as file:
        said = json.loads(file.metadata()[HEAD])
    save_file(change(load_file(path)), path, metadata={HEAD: json.dumps(head(said))})


def without(name):
    return lambda tensors: {key: tensor for key, tensor in tensors.items() if key != name}


def at(name, place):
    return lambda said: said | {"rows": said["rows"] | {name: place}}


FIRST, SECOND = "masters-00001-of-00002.safetensors", "masters-00002-of-00002.safetensors"
MOMENTS = "optimizer-00002-of-00002.safetensors"
NORM, FACTS, OTHER = "model.norm.weight", "engine.json", "belongs to another checkpoint than the other files"
DAMAGE = {  # what is done to a folder that two processes wrote, and what is said then
    "missing": (lambda f: (f / SECOND).unlink(), f"is incomplete: {SECOND} is missing"),
    "cut off": (lambda f: (f / SECOND).write_bytes((f / SECOND).read_bytes()[:-9]), f"{SECOND} is truncated"),
    "no rows": (lambda f: edit(f / SECOND, without(NORM)), f"no file has the rows of {NORM} from 16 on"),
    "fewer rows": (lambda f: edit(f / FIRST, lambda t: t | {NORM: t[NORM][1:].clone()}), f"the rows of {NORM} from 15"),
    "twice": (lambda f: shutil.copy(f / FIRST, f / SECOND), "it has rows of .* from 0 on, and another file has those"),
    "overlap": (lambda f: edit(f / SECOND, head=at(NORM, [15, 32])), f"it has rows of {NORM} from 15 on, .* up to 16"),
    "too far": (lambda f: edit(f / SECOND, head=at(NORM, [20, 32])), f"rows 20 to 36 of {NORM}, which has 32"),
    "negative": (lambda f: edit(f / SECOND, head=at(NORM, [-1, 32])), f"rows -1 to 15 of {NORM}"),
    "no number": (lambda f: edit(f / SECOND, head=at(NORM, [1.5, 32])), f"does not say which rows of {NORM} it has"),
    "other whole": (lambda f: edit(f / SECOND, head=at(NORM, [16, 48])), f"{NORM} is a part of \\(48,\\) there"),
    "no head": (lambda f: save_file(load_file(f / SECOND), f / SECOND), f"{SECOND} is damaged: its head does not say"),
    "step twice": (
        lambda f: edit(f / MOMENTS, lambda t: t | {f"step.{NORM}": torch.ones(())}),
        f"step.{NORM} is in .*optimizer-00001-of-00002.safetensors and again in .*{MOMENTS}",
    ),
    "type": (lambda f: edit(f / SECOND, lambda t: t | {NORM: t[NORM].bfloat16()}), f"{NORM} is of type torch.bfloat16"),
    "other run": (lambda f: shutil.copy(f.parent / "two" / "lora" / SECOND, f / SECOND), f"{SECOND} {OTHER}"),
    "other step": (lambda f: edit(f / MOMENTS, head=lambda said: said | {"save": "012345"}), f"{MOMENTS} {OTHER}"),
    "no shards": (lambda f: edit_json(f / FACTS, shards="two"), f"{FACTS} is damaged: it has no valid shards"),
    "no several": (lambda f: edit_json(f / FACTS, shards=1), "is damaged: shards=1 is no number of several files"),
    "more shards": (lambda f: edit_json(f / FACTS, shards=3), "masters-00001-of-00003.safetensors is missing"),
}


def damage_cases(folder, trainable, mesh, seen):
    before, noise = state_of(trainable), torch.get_rng_state()
    for name, (damage, _) in DAMAGE.items():
        damaged = folder / "damaged"
        if mesh.rank == 0:
            shutil.rmtree(damaged, ignore_errors=True)
            shutil.copytree(folder / "two" / "plain", damaged)
            damage(damaged)
        dist.barrier()
        seen[f"damage/{name}"] = message(lambda: trainable.load(folder / "damaged"))
    there = folder / ("two/plain" if mesh.rank != 2 else "nowhere")
    seen["one sees it"] = message(lambda: trainable.load(there))
    broken = mock.patch.object(state, "_read_random_state", side_effect=MemoryError("no more of it"))
    with broken if mesh.rank == 3 else nullcontext():
        seen["one breaks"] = message(lambda: trainable.load(folder / "two" / "plain"))
    seen["unchanged"] = same(before, state_of(trainable)) and noise.equal(torch.get_rng_state())


def message(work):
    try:
        work()
    except CheckpointError as error:
        return str(error)
    return None
