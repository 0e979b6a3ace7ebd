"""Workers in processes of this machine, started and watched by this one, without Ray: `start` gives their
RemoteWorkerGroup.

    cluster.py      OneMachine: starts processes on devices, learns of their end, ends them
    fork_server.py  what they are forked from: a child process that has imported torch, and done nothing else
    line.py         SocketLine: how a process is reached; `serve`: how it answers
    memory.py       large tensors, in files that all processes map into their memory
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from burnish.controller.process import Surroundings
from burnish.controller.processes.cluster import OneMachine, check_shared_gpus
from burnish.controller.remote import RemoteWorkerGroup

__all__ = ["OneMachine", "check_shared_gpus", "start"]


def start(
    *,
    logs: Path | None,  # folder for a log file of each process; None: kept only until `disconnect`
    deadline_s: float,  # the longest wait for one call
    start_deadline_s: float,  # the longest wait for processes to start
    per_gpu: int = 1,  # processes that share a GPU
    run: Path | None = None,  # the run folder, where every process reports what it waits for
    libraries: Mapping[str, Any] | None = None,  # keys and values of `….external_lib`, which every process imports
) -> type[RemoteWorkerGroup]:
    surroundings = Surroundings.of(logs, run, libraries, per_gpu)
    return RemoteWorkerGroup.of(OneMachine(surroundings, deadline_s, start_deadline_s, logs is None))
