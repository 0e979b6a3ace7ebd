"""What the local sandbox costs: `python benchmarks/sandbox.py`, `--help` for the sizes.

Runs programs that do nothing, one after another and many at a time, end to end through `await sandbox.run`, beside a
plain subprocess of the same Python without any isolation. Prints milliseconds per run (the median and the fastest
tenth), milliseconds of computing per run (which a busy machine does not stretch as much), runs per second many at a
time, and one JSON line to keep. Fails where a program does not end as it should.
"""

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from burnish.sandbox import Limits, Program
from burnish.sandbox.local import LocalSandbox

Way: TypeAlias = Callable[[], Awaitable[None]]
NOTHING = Program("pass")
TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100, help="programs one after another")
    parser.add_argument("--parallel", type=int, default=64, help="programs at a time")
    parser.add_argument("--rounds", type=int, default=8, help="times that many in all")
    options = parser.parse_args()
    found = asyncio.run(measure(options.runs, options.parallel, options.rounds))
    print(json.dumps({"cores": os.cpu_count(), "python": sys.version.split()[0], **found}))


async def measure(runs: int, parallel: int, rounds: int) -> dict[str, dict[str, float]]:
    sandbox = LocalSandbox()
    begin = time.perf_counter()
    if reason := await sandbox.unavailable_reason():
        raise SystemExit(reason)
    print(f"the first program, with the start of its supervisor: {(time.perf_counter() - begin) * 1000:.0f} ms")

    async def isolated() -> None:
        outcome = await sandbox.run(NOTHING, Limits())
        assert outcome.succeeded, outcome

    async def plain() -> None:
        command = sys.executable, "-P", "-s", "-B", "-c", "pass"
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        await process.communicate()
        assert process.returncode == 0

    def by_supervisor() -> float:
        with open(f"/proc/{sandbox._supervisors.children[True].pid}/stat") as file:
            return sum(map(int, file.read().rpartition(")")[2].split()[11:15])) / TICKS

    def by_children() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    found = {}
    for name, way, computed in (("sandbox", isolated, by_supervisor), ("plain subprocess", plain, by_children)):
        before = computed() + time.process_time()
        each = await one_by_one(way, runs)
        computing = (computed() + time.process_time() - before) / runs * 1000
        per_second = await at_a_time(way, parallel, parallel * rounds)
        results = {"ms": statistics.median(each), "fastest ms": each[runs // 10], "computing ms": computing}
        found[name] = {**results, f"runs/s, {parallel} at a time": per_second}
        print(f"{name}:", ", ".join(f"{value:.1f} {unit}" for unit, value in found[name].items()))
    return found


async def one_by_one(way: Way, runs: int) -> list[float]:
    """Milliseconds of each, sorted."""
    taken = []
    for _ in range(runs):
        begin = time.perf_counter()
        await way()
        taken.append((time.perf_counter() - begin) * 1000)
    return sorted(taken)


async def at_a_time(way: Way, parallel: int, runs: int) -> float:
    """Runs per second."""
    places = asyncio.Semaphore(parallel)

    async def in_place() -> None:
        async with places:
            await way()

    begin = time.perf_counter()
    await asyncio.gather(*(in_place() for _ in range(runs)))
    return runs / (time.perf_counter() - begin)


if __name__ == "__main__":
    main()
