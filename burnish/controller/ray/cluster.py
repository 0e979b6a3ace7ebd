"""Cluster: a Ray that is connected to, with its nodes and what was started on it."""

import logging
import os
import socket
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError

from burnish.controller.columns import Memo, flat
from burnish.controller.process import Surroundings
from burnish.controller.worker_status import quoted
from burnish.errors import ConfigError, WorkerError

if TYPE_CHECKING:
    from burnish.controller.ray.hosts import Hosts


@dataclass
class Cluster:
    """A Ray that is connected to, and what was started on it."""

    surroundings: Surroundings
    deadline_s: float
    start_deadline_s: float
    ours: bool  # connected by `connect`, so disconnected with the run
    shared: bool  # a cluster that was there before: others may use it, and nodes may come
    logs_are_ours: bool
    timeline: str | None
    pools: list["Hosts"] = field(default_factory=list)
    connected: bool = True
    columns: Memo = field(default_factory=lambda: Memo(lambda tensor: ray.put(flat(tensor))))  # where tensors are

    def nodes(self) -> list[dict[str, Any]]:
        """The nodes that are there."""
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
        if not on_gpus:
            names = [f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})" for node in self.nodes()]
            return f"{len(names)} nodes: {'; '.join(names)}"
        each = [
            f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']}): {node['Resources'].get('GPU', 0):g} GPUs"
            for node in self.nodes()
        ]
        return f"{len(each)} nodes: {'; '.join(each)}; free now: {ray.available_resources().get('GPU', 0):g} GPUs"


def start_ray(address: str, cpus: int) -> None:
    host, _, port = address.rpartition(":")
    try:
        if host and "/" not in address:  # Ray itself tries for minutes
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, ValueError) as error:
        raise _nothing_at(address, error) from error
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere unless the user says so
    # Ray starts as many idle processes as it has CPUs, so it gets no more than the run needs.
    # Its dashboard comes with ray[default], which brings aiohttp_cors.
    own: dict[str, Any] = {"num_cpus": cpus, "include_dashboard": find_spec("aiohttp_cors") is not None}
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.WARNING}
    try:
        ray.init(address=address, **quiet, **(own if address == "local" else {}))
    except (ConnectionError, RuntimeError, ValueError, OSError, RayError) as error:
        if address == "local":
            raise WorkerError(f"Ray could not be started on this machine: {error}") from error
        raise _nothing_at(address, error) from error


def _nothing_at(address: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"ray_init.address={address}: there is no Ray to join: {error}; start one with `ray start --head`, or leave "
        "the key (and RAY_ADDRESS) out to start one for this run"
    )
