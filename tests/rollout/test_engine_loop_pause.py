"""A process that stood still, as by Ctrl-Z: its engines are well, and stay."""

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

HEARTBEAT_S = 12.0  # what a pause must be longer than; and all else shorter, on a busy machine
ENGINE = """
import asyncio, sys, time
from burnish.rollout.base import Completion, Request, RolloutEngine, Sampling
from burnish.rollout.engine_loop import EngineLoop
from burnish.rollout.supervised import Supervised

class Steps(RolloutEngine):
    context = vocabulary = 100
    in_flight = 0

    async def generate(self, request, on_token=None):
        print("begun", flush=True)
        sys.stdin.readline()  # in the engine's thread: a step, in which the process is stopped
        return Completion([1], [0.0], "stop")

    def publish(self, weights, version): ...
    def sleep(self): ...
    def wake(self): ...
    def abort(self, request_id): ...
    def stats(self): return {}
    def renewed(self): return Steps()

class Looked(EngineLoop):
    def lost(self):
        found = super().lost()
        print(time.monotonic(), flush=True)
        return found

supervised = Supervised(Looked(Steps(), float(sys.argv[1])), look_s=0.1)
asyncio.run(supervised.generate(Request([1], Sampling(), request_id="a")))
supervised.close()
print("restarts:", supervised.stats()["replica_restarts"], flush=True)
"""


@pytest.mark.slow
def test_an_engine_is_not_lost_because_its_process_stood_still():
    process = subprocess.Popen(
        [sys.executable, "-c", ENGINE, str(HEARTBEAT_S)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path.cwd(),
    )  # fmt: skip
    try:
        assert any(line == "begun\n" for line in process.stdout)
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)  # it stands still now
        time.sleep(HEARTBEAT_S + 1)
        went_on = time.monotonic()
        os.kill(process.pid, signal.SIGCONT)
        looks = (line for line in process.stdout if float(line) > went_on)  # the clock is that of the machine
        assert len(list(itertools.islice(looks, 5))) == 5
        assert process.communicate("\n", timeout=120)[0].endswith("restarts: 0\n")
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()
