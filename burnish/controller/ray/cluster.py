"""Cluster: a Ray that is connected to, with its nodes and what was started on it; and what is done on the node of a
worker process when the process itself does not answer any more."""

import contextlib
import logging
import os
import signal
import socket
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from burnish.controller.process import Address, Surroundings, kill_soon, tail
from burnish.controller.wire import Memo, flat
from burnish.controller.worker_status import quoted
from burnish.errors import ConfigError, WorkerError

if TYPE_CHECKING:
    from burnish.controller.ray.hosts import Hosts

DUMP = 5.0  # seconds for a process to say where it is, or for its node to give the log
ENDING = 10.0  # seconds for other nodes to end processes


@dataclass
class Cluster:
    surroundings: Surroundings
    deadline_s: float
    start_deadline_s: float
    ours: bool  # connected by `connect`, so disconnected with the run
    shared: bool  # a cluster that was there before: others may use it, and nodes may come
    logs_are_ours: bool
    timeline: str | None
    under: Callable[[str], list[str]] | None = None  # a profiler, by the name of a process that has a device
    pools: list["Hosts"] = field(default_factory=list)
    connected: bool = True
    columns: Memo = field(default_factory=lambda: Memo(lambda tensor: ray.put(flat(tensor))))  # where tensors are

    def nodes(self) -> list[dict[str, Any]]:
        return [node for node in ray.nodes() if node["Alive"]]

    def report(self) -> str:
        """What every process is doing, for a dump; each also writes the stacks of all its threads to its log."""
        lines = []
        for pool in [pool for pool in self.pools if not pool.ended]:
            found = pool.status(pool.processes)
            for process in pool.processes:
                there = found[id(process)]
                lines.append(f"{pool.named(process)}: {there or 'does not answer: stopped, or stuck'}")
                lines[-1] += quoted("where", there.stack) if there else ""
        return "\n".join(["workers:", *(lines or ["(none)"]), ""])

    def gpus(self, device: str) -> list[int] | None:
        """The GPUs of every node; None where workers are to run on CPUs."""
        if device == "cpu":
            return None
        found = [int(node["Resources"].get("GPU", 0)) for node in self.nodes()]
        if device == "cuda" and not sum(found):
            raise ConfigError(f"trainer.device=cuda, but Ray has no GPU: {self.described()}; set trainer.device=cpu")
        return found if sum(found) else None

    def described(self, *, on_gpus: bool = True) -> str:
        """The nodes with what they have, for messages."""
        each = []
        for node in self.nodes():
            gpus = f": {node['Resources'].get('GPU', 0):g} GPUs" if on_gpus else ""
            each.append(f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']}){gpus}")
        free = f"; free now: {ray.available_resources().get('GPU', 0):g} GPUs" if on_gpus else ""
        return f"{len(each)} nodes: {'; '.join(each)}{free}"


def start_ray(address: str, cpus: int) -> None:
    host, _, port = address.rpartition(":")
    try:
        if host and "/" not in address:  # Ray itself tries for minutes
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, ValueError) as error:
        raise _nothing_at(address, error) from error
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere unless the user says so
    os.environ.setdefault("RAY_worker_register_timeout_seconds", "600")  # Ray kills slower ones, again and again
    # Ray starts as many idle processes as it has CPUs, so it gets no more than the run needs.
    # Its dashboard comes with ray[default], which brings aiohttp_cors.
    own: dict[str, Any] = {"num_cpus": cpus, "include_dashboard": find_spec("aiohttp_cors") is not None}
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.WARNING}
    on_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, **quiet, **(own if address == "local" else {}))
    except Exception as error:  # Ray raises a bare one if its node takes longer than 30 s to start
        if address == "local":
            raise WorkerError(f"Ray could not be started on this machine: {error}") from error
        raise _nothing_at(address, error) from error
    finally:
        if threading.current_thread() is threading.main_thread():  # Ray's would raise SystemExit wherever the run is
            signal.signal(signal.SIGTERM, on_sigterm)


def _nothing_at(address: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"ray_init.address={address}: there is no Ray to join: {error}; start one with `ray start --head`, or leave "
        "the key (and RAY_ADDRESS) out to start one for this run"
    )


def here() -> str:
    return str(ray.get_runtime_context().get_node_id())


def log_of(address: Address) -> str:
    """The last lines of a process's log; read on the process's node where it cannot be read here."""
    text = tail(address)
    if text is None and address.node:
        with contextlib.suppress(RayError):  # that node may be gone
            text = ray.get(_on(address.node, tail, address), timeout=DUMP)
    return text if text is not None else "(cannot be read from here)"


def last_lines(address: Address) -> str:
    """The same, to go below a message."""
    return quoted(f"last lines of {address.log}", log_of(address))


def end_processes(processes: Sequence[Address]) -> None:
    """Make sure that processes that were asked to end have ended, on any node; on other nodes as far as possible."""
    by_node: dict[str, list[Address]] = defaultdict(list)
    for process in processes:
        by_node[process.node].append(process)
    own = by_node.pop(here(), [])
    away = []
    with contextlib.suppress(RayError):
        there = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        away = [_on(node, kill_soon, those) for node, those in by_node.items() if node in there]
    kill_soon(own)
    if away:
        with contextlib.suppress(RayError):
            ray.wait(away, num_returns=len(away), timeout=ENDING)


def _on(node: str, function: Callable[..., Any], *args: Any) -> Any:
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(function).options(num_cpus=0, max_retries=0, scheduling_strategy=there).remote(*args)
