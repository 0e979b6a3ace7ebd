"""What it costs to share a model among processes: `python benchmarks/sharded.py --help`.

Trains a random-weight model on random tokens three ways: whole in one process, sharded by FSDP2, and sharded with
`reshard_after_forward=False`. Prints seconds and peak memory of each, and how far losses, gradient norms and log-probs
are from those of the whole model. Results are by the first process; all of them must be on one machine.

    python benchmarks/sharded.py --shape qwen2.5-0.5b                              # a world of one: what FSDP2 costs
    torchrun --nproc-per-node 2 benchmarks/sharded.py --shape qwen2.5-0.5b         # over two GPUs, or one of them
    torchrun --nproc-per-node 4 benchmarks/sharded.py --shape qwen2.5-7b --device cpu --load

    update      forward and backward pass of all rows and the step of the optimiser; the median after the first two
    log-probs   a forward pass of all rows
    --load      host memory of each process while it makes the model ready to train, and how much of that stays: with
                the part of the folder that is its own, and (--whole) with all of it read first
"""

import argparse
import gc
import os
import re
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from step import PROMPT_LENGTH, SHAPES, write_model
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from burnish.algorithms.tally import Metrics
from burnish.config.fsdp import FSDPConfig
from burnish.config.model import ModelConfig
from burnish.config.optim import OptimConfig
from burnish.engine.batching import MicroBatch
from burnish.engine.mesh import Mesh
from burnish.engine.packing import pack
from burnish.engine.trainable import Trainable
from burnish.models.device import dtype_on, pick_device
from burnish.models.loading import load_causal_lm
from burnish.protocol import DataProto

WAYS = {"whole": None, "sharded": FSDPConfig(), "sharded, kept": FSDPConfig(reshard_after_forward=False)}
WARM = 2  # updates that are not counted


@dataclass
class Measured:
    """What one way of training took, and what it computed."""

    update: float
    log_probs: float
    memory: float  # GiB of the GPU, at most
    losses: list[float]
    norms: list[float]
    values: Tensor  # (B, R) log-probs before any update


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="nano", help="size of the random model")
    parser.add_argument("--folder", type=Path, help="where that is, or is put; it is kept")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=512, help="the longest response; the shortest is half of it")
    parser.add_argument("--micro", type=int, default=32768, help="tokens of a pass")
    parser.add_argument("--updates", type=int, default=6)
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--dtype", default="auto", help="type of the weights in passes")
    parser.add_argument("--recompute", action="store_true", help="with gradient checkpointing")
    parser.add_argument("--prefetch", action="store_true", help="with forward_prefetch")
    parser.add_argument("--ulysses", type=int, default=1, help="processes that share each sequence")
    parser.add_argument("--fsdp-size", type=int, default=-1, help="processes that share one copy of the weights")
    parser.add_argument("--load", action="store_true", help="measure host memory while the model is loaded, then end")
    parser.add_argument("--whole", action="store_true", help="with --load: read all of the folder first")
    options = parser.parse_args()
    if options.updates <= WARM:
        parser.error(f"--updates must be more than {WARM}: the first ones are not counted")
    device = pick_device(options.device, key="--device")
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    join(device)
    with tempfile.TemporaryDirectory() as own:
        folder = [str(options.folder or own)]
        dist.broadcast_object_list(folder, device=torch.device("cpu"))
        if dist.get_rank() == 0 and not (Path(folder[0]) / "config.json").is_file():
            write_model(Path(folder[0]), options.shape, PROMPT_LENGTH + options.tokens, "cpu")
        mesh = mesh_of(options, device)
        mesh.gather(None)
        (load if options.load else compare)(options, folder[0], device, mesh)
        mesh.gather(None)
    dist.destroy_process_group()


def join(device: torch.device) -> None:
    """The processes that torchrun started; without it, a world of one."""
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)


def mesh_of(options: argparse.Namespace, device: torch.device) -> Mesh:
    mesh = Mesh.of(device, fsdp_size=options.fsdp_size, ulysses=options.ulysses)
    if mesh is not None:
        return mesh
    return Mesh(init_device_mesh(device.type, (1,), mesh_dim_names=("shards",)), control=dist.new_group(backend="gloo"))


def compare(options: argparse.Namespace, folder: str, device: torch.device, mesh: Mesh) -> None:
    """Each way, one after the other; the whole model in the first process alone."""
    batch, found = random_rows(options), dict[str, Measured]()
    for way, fsdp in WAYS.items():
        if fsdp is None:
            if mesh.rank == 0:
                found[way] = measure(options, batch, trainable(options, folder, device, None, FSDPConfig()))
        else:
            found[way] = measure(options, batch, trainable(options, folder, device, mesh, fsdp))
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
        mesh.gather(None)
    if mesh.rank == 0:
        print_table(options, device, mesh, found, batch)


def trainable(
    options: argparse.Namespace, folder: str, device: torch.device, mesh: Mesh | None, fsdp: FSDPConfig
) -> Trainable:
    model = ModelConfig(
        path=folder, dtype=dtype_on(device, options.dtype), enable_gradient_checkpointing=options.recompute
    )
    fsdp.forward_prefetch = options.prefetch
    module = load_causal_lm(folder, model, device if mesh is None or options.whole else None)
    return Trainable(
        module, OptimConfig(lr=1e-5), total_steps=options.updates, device=device, model=model, fsdp=fsdp, mesh=mesh
    )


def random_rows(options: argparse.Namespace) -> DataProto:
    noise = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 250, (options.rows, PROMPT_LENGTH + options.tokens), generator=noise)
    lengths = torch.randint(options.tokens // 2, options.tokens + 1, (options.rows, 1), generator=noise)
    mask = (torch.arange(ids.shape[1]) < PROMPT_LENGTH + lengths).long()
    advantages = torch.randn(options.rows, 1, generator=noise)
    columns = {"input_ids": ids * mask, "attention_mask": mask, "responses": (ids * mask)[:, PROMPT_LENGTH:]}
    return DataProto.from_dict(columns | {"response_mask": mask[:, PROMPT_LENGTH:], "advantages": advantages})


def measure(options: argparse.Namespace, batch: DataProto, model: Trainable) -> Measured:
    micro, count = MicroBatch(max_tokens=options.micro), batch.batch["response_mask"].sum()
    if model.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()

    def loss(rows: DataProto) -> tuple[Tensor, Metrics]:
        log_prob = model.forward.log_probs(pack(rows.batch))["log_prob"]
        return -(log_prob * rows.batch["advantages"] * rows.batch["response_mask"]).sum() / count, {}

    def log_probs(rows: DataProto) -> dict[str, Tensor]:
        return model.forward.log_probs(pack(rows.batch))

    def update() -> tuple[float, float]:
        metrics = model.forward_backward(batch, loss, micro)
        return metrics["loss"], model.optim_step(metrics["loss"])["grad_norm"]

    def timed(work: Callable[[], object]) -> float:
        begin = time.perf_counter()
        work()
        if model.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    values = model.infer(log_probs, batch, micro)["log_prob"]
    results: list[tuple[float, float]] = []
    updates = [timed(lambda: results.append(update())) for _ in range(options.updates)]
    passes = [timed(lambda: model.infer(log_probs, batch, micro)) for _ in range(options.updates)]
    memory = torch.cuda.max_memory_allocated() / 2**30 if model.device.type == "cuda" else 0.0
    losses, norms = map(list, zip(*results, strict=True))
    median = statistics.median
    return Measured(median(updates[WARM:]), median(passes[WARM:]), memory, losses, norms, values)


def print_table(
    options: argparse.Namespace, device: torch.device, mesh: Mesh, found: dict[str, Measured], batch: DataProto
) -> None:
    name = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads each"
    print(
        f"{options.shape}, {options.rows} rows of {int(batch.batch['attention_mask'].sum())} tokens in all, passes of "
        f"{options.micro}, {mesh.size} processes (ulysses {options.ulysses}, fsdp_size {options.fsdp_size}), {name}, "
        f"{dtype_on(device, options.dtype)}, torch {torch.__version__}"
    )
    print(f"{'':<16}{'update, s':>12}{'ratio':>8}{'log-probs, s':>14}{'ratio':>8}{'GPU, GiB':>10}", end="")
    print(f"{'loss':>12}{'norm':>12}{'log-probs':>12}   largest difference (losses and norms: relative)")
    whole = found["whole"]
    for way, one in found.items():
        line = f"{way:<16}{one.update:12.3f}{one.update / whole.update:8.3f}{one.log_probs:14.3f}"
        line += f"{one.log_probs / whole.log_probs:8.3f}{one.memory:10.1f}"
        losses, norms = relative(one.losses, whole.losses), relative(one.norms, whole.norms)
        print(f"{line}{losses:12.1e}{norms:12.1e}{float((one.values - whole.values).abs().max()):12.1e}")


def relative(found: list[float], wanted: list[float]) -> float:
    return max(abs(one - other) / abs(other) for one, other in zip(found, wanted, strict=True))


def load(options: argparse.Namespace, folder: str, device: torch.device, mesh: Mesh) -> None:
    """Of each process, from the end of its imports on: the peak and what is left, in GiB."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again
    before, begin = host_memory(), time.perf_counter()
    model = trainable(options, folder, device, mesh, FSDPConfig())
    seconds, after = time.perf_counter() - begin, host_memory()
    shards = sum(master.numel() * master.element_size() for master in model.masters.values()) / 2**30
    stored = sum(file.stat().st_size for file in Path(folder).glob("*.safetensors")) / 2**30
    mine = after["VmHWM"] - before["VmRSS"], after["RssAnon"] - before["RssAnon"], shards, seconds
    lines = mesh.gather(mine)
    if mesh.rank == 0:
        print(f"{options.shape}: {stored:.2f} GiB in files, {'read whole' if options.whole else 'own part'}")
        print(f"{'process':<8}{'peak, GiB':>12}{'left, GiB':>12}{'shards, GiB':>13}{'seconds':>9}")
        for rank, (peak, left, own, took) in enumerate(lines):
            print(f"{rank:<8}{peak:12.2f}{left:12.2f}{own:13.2f}{took:9.1f}")


def host_memory() -> dict[str, float]:
    """This process's resident memory in GiB: now, at most, and that which is no part of a file."""
    text = Path("/proc/self/status").read_text()
    return {name: int(value) / 2**20 for name, value in re.findall(r"(Vm\w+|Rss\w+):\s+(\d+) kB", text)}


if __name__ == "__main__":
    main()
