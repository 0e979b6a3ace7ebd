"""What is done on the node of a worker process when the process itself does not answer any more."""

import contextlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from burnish.controller.process import Address, kill_soon, tail
from burnish.controller.worker_status import quoted

DUMP = 5.0  # seconds for a process to say where it is, or for its node to give the log
ENDING = 10.0  # seconds for other nodes to end processes


def here() -> str:
    """The cluster's name of this node."""
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
    """Start a function on a node."""
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(function).options(num_cpus=0, max_retries=0, scheduling_strategy=there).remote(*args)
