"""Workers started and watched by Ray, on one machine or many: `connect` gives their RemoteWorkerGroup. Every large
tensor is put into Ray's object store once and read there by all processes of a node."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ray

from burnish.config.trainer import RayInitConfig
from burnish.controller.process import Surroundings
from burnish.controller.ray.cluster import AT_ONCE, RayCluster, RayHost, RayLine, start_ray
from burnish.controller.remote import RemoteWorkerGroup

__all__ = ["AT_ONCE", "RayCluster", "RayHost", "RayLine", "connect"]


def connect(
    ray_init: RayInitConfig,
    *,
    processes: int,  # that will be started, of all pools
    logs: Path | None,  # folder for a log file of each; None: kept only until `disconnect`
    deadline_s: float,  # the longest wait for one call
    start_deadline_s: float,  # the longest wait for processes to be placed and started
    run: Path | None = None,  # the run folder, where every process reports what it waits for
    libraries: Mapping[str, Any] | None = None,  # keys and values of `….external_lib`, which every process imports
    under: Callable[[str], list[str]] | None = None,  # by a worker's name: the command its Python is started with
) -> type[RemoteWorkerGroup]:
    """Start a Ray on this machine, or join the one at `ray_init.address` (or the one this process already uses)."""
    ours = not ray.is_initialized()
    address = ray_init.address or os.environ.get("RAY_ADDRESS") or "local"
    if ours:
        start_ray(address, ray_init.num_cpus or max(processes, 2))
    surroundings = Surroundings.of(logs, run, libraries)
    cluster = RayCluster(
        surroundings,
        deadline_s,
        start_deadline_s,
        logs is None,
        ours,
        shared=not ours or address != "local",
        timeline=ray_init.timeline_json_file,
        under=under,
    )
    return RemoteWorkerGroup.of(cluster)
