"""What a tree of processes is seen to use."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from burnish.sandbox.jail.usage import Usage

#: Waits for a line before it leaves. Its children: one that takes memory, one that computes, one with threads.
TREE = """
import os, sys, threading, time
def child(work):
    if not os.fork():
        work()
        print("ready", flush=True)
        sys.stdin.read()
        os._exit(0)
def compute():
    while time.process_time() < 0.3: pass
def threads():
    for _ in range(3): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
kept = []
child(lambda: kept.append(b"x" * 2**26))
child(compute)
child(threads)
sys.stdin.read()
"""


@pytest.fixture
def usage() -> Iterator[Usage]:
    tree = subprocess.Popen([sys.executable, "-c", TREE], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert tree.stdin is not None and tree.stdout is not None
    for _ in range(3):
        assert tree.stdout.readline() == b"ready\n"
    proc = os.open("/proc", os.O_RDONLY)
    yield Usage(proc, tree.pid)
    os.close(proc)
    tree.stdin.close()
    tree.wait()
    tree.stdout.close()


def test_the_whole_tree_counts_but_for_its_first_process(usage):
    usage.look()
    assert len(usage.processes()) == 4 and usage.processes()[0] == usage.first
    assert usage.tasks == 6  # three processes, three more threads
    assert 2**26 < usage.memory < 2**28
    assert 0.25 < usage.computed < 5


def test_memory_that_is_shared_is_shared_out(usage):
    usage.look()
    assert 2**26 <= usage.exact_memory() < usage.memory


def test_what_has_ended_still_counts(usage):
    usage.look()
    before = usage.computed
    usage.first = usage.processes()[1]  # it has no children
    usage.look()
    assert usage.tasks == 0 and usage.computed == before > 0


def test_a_tree_that_is_gone_uses_nothing(usage):
    gone = Usage(usage.proc, 2**30)
    gone.look()
    assert (gone.tasks, gone.memory, gone.computed, gone.processes()) == (0, 0, 0.0, [])


@pytest.mark.parametrize(
    ("computed", "queued", "elapsed", "waited"),
    [
        (1.0, 0.0, 5.0, 0.0),  # it had a core whenever it wanted one
        (1.0, 3.0, 4.0, 3.0),  # one task that always wanted one
        (1.0, 1.0, 4.0, 1.0),  # one task that slept for half of the time
        (2.0, 6.0, 2.0, 1.5),  # four tasks on one core: three quarters of what they asked for
        (0.0, 0.0, 1.0, 0.0),
    ],
)
def test_waiting_for_a_busy_core(computed, queued, elapsed, waited):
    usage = Usage(0, 0)
    usage.computed, usage.queued = computed, queued
    assert usage.waited(elapsed) == waited


def test_waiting_is_seen_where_there_is_some():
    """Two processes that compute on one core: each waits for half of the time."""
    core = min(os.sched_getaffinity(0))
    command = [sys.executable, "-c", f"import os\nos.sched_setaffinity(0, [{core}])\nwhile True: pass"]
    both = [subprocess.Popen(command) for _ in range(2)]
    proc = os.open("/proc", os.O_RDONLY)
    usage = Usage(proc, os.getpid())
    begin = time.monotonic()
    while usage.queued < 0.2 and time.monotonic() - begin < 30:
        time.sleep(0.05)
        usage.look()
    for process in both:
        process.kill()
        process.wait()
    os.close(proc)
    assert usage.queued >= 0.2 and usage.waited(1.0) > 0
