"""`burnish doctor` without a run: what this machine has and lacks for training. torch is imported in a child process
only, which also sets up CUDA there, so that a broken driver ends the child and not the command."""

import asyncio
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import burnish
from burnish.config.memory import gib, host_memory
from burnish.errors import install_command

OK, NOTE, PROBLEM = "ok", "note", "problem"
TORCH_S = 120.0  # for the child that imports torch
SHARED_MEMORY = 2**30  # bytes: processes of a cluster and NCCL exchange data there
DISK = 20 * 2**30  # bytes: a checkpoint of a small model with its optimiser, a few times
PORTS = {8000: "retriever serve", 8001: "serve", 6379: "Ray"}
TESTED_PYTHON = ("3.11", "3.12", "3.13")
# Package → the extra that has it.
OPTIONAL = {
    "ray": "ray", "vllm": "vllm", "sglang": "", "fastapi": "serve", "peft": "lora", "bm25s": "search",
    "faiss-cpu": "dense", "mcp": "mcp", "reasoning-gym": "reasoning-gym", "wandb": "wandb", "mlflow": "mlflow",
    "trackio": "trackio", "plotly": "dashboard",
}  # fmt: skip
TORCH = """
import json, torch
found = {"version": torch.__version__, "cuda": torch.version.cuda, "threads": torch.get_num_threads(), "gpus": []}
found["nccl"] = ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else None
for i in range(torch.cuda.device_count()):
    free, total = torch.cuda.mem_get_info(i)
    name, bf16 = torch.cuda.get_device_name(i), torch.cuda.get_device_capability(i) >= (8, 0)
    found["gpus"].append({"name": name, "total": total, "free": free, "bfloat16": bf16})
print("\\n" + json.dumps(found))
"""


class MachineFact(NamedTuple):
    """One line of the report. `remedy` says what to do about a note or a problem."""

    name: str
    value: str
    state: str = OK
    remedy: str = ""


def machine_facts() -> list[MachineFact]:
    return [*_python(), *_torch(), *_memory(), *_packages(), *_ports(), _sandbox()]


def as_text(facts: list[MachineFact]) -> str:
    width = max(len(fact.name) for fact in facts)
    lines = []
    for fact in facts:
        mark = {OK: " ", NOTE: "-", PROBLEM: "!"}[fact.state]
        lines.append(f"{mark} {fact.name:<{width}}  {fact.value}")
        lines += [f"  {'':<{width}}  → {line}" for line in fact.remedy.splitlines()]
    count = sum(fact.state == PROBLEM for fact in facts)
    return "\n".join([*lines, "", f"{count} problem{'s' * (count != 1)} (!)"])


def _python() -> Iterator[MachineFact]:
    version = platform.python_version()
    is_tested = version.rpartition(".")[0] in TESTED_PYTHON
    remedy = "" if is_tested else f"tested are {', '.join(TESTED_PYTHON)}"
    yield MachineFact("Python", f"{version}, {sys.executable}", OK if is_tested else NOTE, remedy)
    yield MachineFact("system", f"{platform.system()} {platform.release()}, {platform.machine()}")
    yield MachineFact("burnish", f"{burnish.__version__}, {Path(burnish.__file__).parent}")


def _torch() -> Iterator[MachineFact]:
    try:
        ran = subprocess.run([sys.executable, "-c", TORCH], capture_output=True, text=True, timeout=TORCH_S)
        found = json.loads(ran.stdout.strip().splitlines()[-1])
    except subprocess.TimeoutExpired:
        yield MachineFact("torch", f"did not start in {TORCH_S:.0f} s", PROBLEM, "see whether nvidia-smi answers")
        return
    except (OSError, ValueError, IndexError):
        said = (ran.stderr.strip() or f"ended with exit code {ran.returncode}").splitlines()[-1]
        yield MachineFact("torch", f"cannot be used: {said}", PROBLEM, "make setup installs the tested version")
        return
    yield MachineFact("torch", f"{found['version']}, CUDA {found['cuda'] or '-'}, NCCL {found['nccl'] or '-'}")
    module = Path("/proc/driver/nvidia/version")
    driver = re.search(r"\d+\.\d+(\.\d+)?", module.read_text()) if module.is_file() else None
    if not found["gpus"]:
        lost = driver is not None
        remedy = "torch is built without CUDA, or for a newer driver: install a build for this one" if lost else ""
        value = f"none that torch can use, driver {driver[0]}" if driver else "none: runs use the CPU"
        yield MachineFact("GPUs", value, PROBLEM if lost else NOTE, remedy)
    elif driver:
        yield MachineFact("driver", driver[0])
    for i, gpu in enumerate(found["gpus"]):
        is_free = gpu["free"] > 0.9 * gpu["total"]
        remedy = "" if is_free else "another process uses it (nvidia-smi); CUDA_VISIBLE_DEVICES chooses others"
        value = f"{gpu['name']}, {gib(gpu['free'])} free of {gib(gpu['total'])}"
        yield MachineFact(
            f"GPU {i}", value + ("" if gpu["bfloat16"] else ", no bfloat16"), OK if is_free else NOTE, remedy
        )
    cores, own = len(os.sched_getaffinity(0)), os.environ.get("OMP_NUM_THREADS")
    value = f"{found['threads']} of torch on {cores} cores, OMP_NUM_THREADS {own or 'not set'}"
    remedy = "more threads than cores wait for each other: set OMP_NUM_THREADS" if found["threads"] > cores else ""
    yield MachineFact("threads", value, PROBLEM if remedy else OK, remedy)
    load = os.getloadavg()[0]
    busy = "other programs use the cores: steps on the CPU take longer" if load > 1.5 * cores else ""
    yield MachineFact("load", f"{load:.1f} in the last minute", NOTE if busy else OK, busy)


def _memory() -> Iterator[MachineFact]:
    yield MachineFact("memory", gib(host_memory()))
    if Path("/dev/shm").is_dir():
        shared = shutil.disk_usage("/dev/shm").free
        remedy = "" if shared >= SHARED_MEMORY else "several processes need more: docker run --shm-size=8g"
        yield MachineFact("shared memory", f"{gib(shared)} free", NOTE if remedy else OK, remedy)
    disk = shutil.disk_usage(Path.cwd()).free
    remedy = "" if disk >= DISK else "checkpoints may not fit: trainer.default_local_dir names another disk"
    yield MachineFact("disk", f"{gib(disk)} free in {Path.cwd()}", NOTE if remedy else OK, remedy)


def _packages() -> Iterator[MachineFact]:
    """The tested packages with other versions, and the optional ones."""
    tested = _tested()
    other = [
        f"{name} {there} (tested: {pin})"
        for name, pin in tested.items()
        if (there := _version(name)) not in (None, pin)
    ]
    remedy = "pip install -c constraints.txt … installs the tested versions" if other else ""
    if tested:
        yield MachineFact("versions", ", ".join(other) or "as tested", NOTE if other else OK, remedy)
    optional = {name: version for name in OPTIONAL if (version := _version(name))}
    yield MachineFact(
        "optional packages", ", ".join(f"{name} {version}" for name, version in optional.items()) or "none"
    )
    lacking = [name for name in OPTIONAL if name not in optional]
    if lacking:
        remedy = f"only if you use them: {install_command('EXTRA')}"
        named = ", ".join(f"{name} ({OPTIONAL[name]})" if OPTIONAL[name] else name for name in lacking)
        yield MachineFact("not installed", named, OK, remedy)


def _tested() -> dict[str, str]:
    """The pins of the core and of extras; none outside a checkout."""
    file = Path(burnish.__file__).parents[1] / "constraints.txt"
    text = file.read_text(encoding="utf-8").partition("# test and dev")[0] if file.is_file() else ""
    return dict(re.findall(r"^([\w.-]+)==(\S+)", text, re.M))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package).partition("+")[0]  # without the build: 2.13.0+cpu
    except metadata.PackageNotFoundError:
        return None


def _ports() -> Iterator[MachineFact]:
    taken = []
    for port, user in PORTS.items():
        with socket.socket() as one:
            one.settimeout(1.0)
            if one.connect_ex(("127.0.0.1", port)) == 0:
                taken.append(f"{port} (default of {user})")
    remedy = "a server is there already, which is well if it is yours; else use --port" if taken else ""
    value = f"in use: {', '.join(taken)}" if taken else f"{', '.join(map(str, PORTS))} are free"
    yield MachineFact("ports", value, NOTE if taken else OK, remedy)


def _sandbox() -> MachineFact:
    """A small program is run in it."""
    from burnish.sandbox.local import LocalSandbox

    sandbox = LocalSandbox()
    try:
        reason = asyncio.run(sandbox.unavailable_reason())
    finally:
        sandbox.close()
    if reason is None:
        return MachineFact("sandbox", "programs can be isolated")
    return MachineFact(
        "sandbox", "programs cannot be isolated here (only code rewards and tools need it)", NOTE, reason
    )
