"""Processes in tests: whether one runs, and several that find each other by gloo and call functions together.

`Processes` are made once for all tests (the fixture `processes`): starting them costs seconds, a call milliseconds. A
function is given by its name in a module, so it is defined at the top of a file; its arguments and results are pickled.
"""

import multiprocessing
import pickle
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

TIMEOUT = timedelta(seconds=300)  # of a collective that somebody does not join
PRELOADED = ["torch", "torch.distributed.fsdp", "transformers", "burnish.engine.trainable", "burnish.models.loading"]


def is_running(pid: int) -> bool:
    """One that nobody reaps has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """What it gives once that is true; `seconds` is far more than it takes on a busy machine."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)
    return found


class Processes:
    def __init__(self, count: int, folder: Path):
        self.folder, self.calls = folder, 0
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)  # so that imports are paid for once
        self.pipes, self.processes = [], []
        for _ in range(count):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there,), daemon=True)
            process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)

    def call(self, world: int, function: Callable[..., Any], *args: Any) -> list[Any]:
        """What the first `world` processes return, by rank, each of them in a process group of these alone."""
        self.calls += 1
        store = f"file://{self.folder / f'store-{self.calls}'}"
        pipes = self.pipes[:world]
        for rank, pipe in enumerate(pipes):
            pipe.send_bytes(pickle.dumps((function, args, rank, world, store)))
        answers = [pickle.loads(pipe.recv_bytes()) for pipe in pipes]  # noqa: S301 - our own processes
        if failed := [f"process {rank}: {trace}" for rank, (is_good, trace) in enumerate(answers) if not is_good]:
            raise AssertionError("\n".join(failed))
        return [result for _, result in answers]

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.close()  # which ends the process
        for process in self.processes:
            process.join(10)
            if process.is_alive():
                process.kill()


def _serve(pipe: Connection) -> None:
    """Answer calls until the other end is closed."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    while True:
        try:
            function, args, rank, world, store = pickle.loads(pipe.recv_bytes())  # noqa: S301 - the test's
        except EOFError:
            return
        try:
            dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world, timeout=TIMEOUT)
            try:
                answer = True, function(*args)
            finally:
                dist.destroy_process_group()
        except Exception:  # noqa: BLE001 - sent to the test, which raises it
            answer = False, traceback.format_exc()
        pipe.send_bytes(pickle.dumps(answer))
