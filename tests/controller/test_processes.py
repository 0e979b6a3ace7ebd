"""What only the executor of this machine's processes does: shared memory, GPUs, and its end."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from burnish.controller.cluster import Lacking, Lost
from burnish.controller.dispatch import Dispatch, register
from burnish.controller.group import ClassWithInitArgs
from burnish.controller.pool import ResourcePool
from burnish.controller.processes import cluster as module
from burnish.controller.processes import start
from burnish.controller.processes.memory import Stored, store
from burnish.controller.worker import Worker
from burnish.errors import ConfigError, WorkerDied, WorkerError
from tests.processes import is_running, until

pytestmark = pytest.mark.usefixtures("by_value")


class Big(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def give(self, count):
        return torch.zeros(count)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def forked_and_terminated(self):
        if not (pid := os.fork()):
            signal.pause()
        os.kill(pid, signal.SIGTERM)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def leave(self):
        os._exit(3)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def draw(self):
        return random.random(), np.random.random()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def leave_a_fork(self):
        if os.fork() == 0:
            signal.pause()
        os._exit(3)


@pytest.fixture
def own_groups(tmp_path):
    """For tests after which they are of no use."""
    found = start(logs=tmp_path, deadline_s=240, start_deadline_s=500)
    yield found
    found.disconnect()


@pytest.fixture
def big(groups_of_processes):
    group = groups_of_processes.spawn(ResourcePool([1], "big", "cpu"), {"big": ClassWithInitArgs(Big)})["big"]
    yield group
    group.shutdown()


def test_file_is_removed_with_the_last_use_of_what_it_holds_and_mapped_memory_stays(tmp_path):
    place = store(np.arange(1000), [str(tmp_path)])
    Stored(place.path)  # a copy, as another process has it
    assert Path(place.path).exists()
    memory = place.own().read()
    del place
    assert not list(tmp_path.iterdir())
    assert memory.view(np.int64).tolist() == list(range(1000))
    with pytest.raises(Lost) as lost:
        Stored(str(tmp_path / "gone")).read()
    assert lost.value.lacking is Lacking.DATA


def test_fork_of_the_owner_leaves_the_file(tmp_path):
    place = store(np.arange(1000), [str(tmp_path)]).own()
    if (pid := os.fork()) == 0:
        del place
        os._exit(0)
    os.waitpid(pid, 0)
    assert len(place.read()) == 8000


def test_memory_goes_where_there_is_room_and_what_fits_nowhere_is_named(tmp_path):
    large = np.zeros(2**21, np.uint8)
    place = store(large, ["/dev/full/none", str(tmp_path)])
    assert Path(place.path).parent == tmp_path
    with pytest.raises(Lost, match=r"processes share: 2 MiB, /dev/full/none \(Not a directory\); .*--shm-size") as lost:
        store(large, ["/dev/full/none"])
    assert lost.value.lacking is Lacking.ROOM


def test_result_that_fits_nowhere_is_named_and_the_process_continues(big, monkeypatch):
    monkeypatch.setattr(big.cluster, "_places", ["/dev/full/none"])
    with pytest.raises(WorkerError, match=r"^Big.give: its arguments do not fit into the memory that processes share"):
        big.give(torch.zeros(100_000))
    monkeypatch.undo()
    assert [len(found) for found in big.give(100_000)] == [100_000]


def test_sigterm_to_all_processes_of_a_job_is_left_to_the_controller_and_ends_forks_of_workers(big):
    [pid] = (int(peer.name.partition("pid ")[2].split()[0]) for peer in big.peers())
    server = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    for process in (pid, server):
        os.kill(process, signal.SIGTERM)
    assert big.forked_and_terminated() == [-signal.SIGTERM]


def test_end_of_a_process_is_reported_with_its_exit_status(big):
    with pytest.raises(WorkerDied, match=r"died while it ran Big.leave: its process ended: exit status 3"):
        big.leave()


def test_end_of_a_process_is_reported_though_its_fork_holds_the_connection(big):
    with pytest.raises(WorkerDied, match=r"died while it ran Big.leave_a_fork: its process ended: exit status 3"):
        big.leave_a_fork()


def test_processes_do_not_draw_the_same_numbers(own_groups):
    [big] = own_groups.spawn(ResourcePool([2], "big", "cpu"), {"big": ClassWithInitArgs(Big)}).values()
    assert len({number for drawn in big.draw() for number in drawn}) == 4


def test_small_arguments_are_those_of_the_time_of_the_call(big):
    """Though the call only begins after they have changed."""
    counts = [torch.full((1,), 7) for _ in range(50)]
    futures = [big.give.start(count) for count in counts]
    for count in counts:
        count.zero_()
    assert [len(one) for future in futures for one in future.get()] == [7] * 50


def test_process_that_cannot_be_started_is_named_and_the_others_are_ended(own_groups, monkeypatch):
    cluster, path = own_groups.cluster, "long" * 30
    pool = ResourcePool([2], "big", "cpu")
    [big] = own_groups.spawn(pool, {"big": ClassWithInitArgs(Big)}).values()
    sockets = iter([cluster._sockets, f"{cluster._sockets}/{path}"])
    monkeypatch.setattr(type(cluster), "_sockets", property(lambda _: next(sockets), lambda *_: None), raising=False)
    with pytest.raises(WorkerError, match=r"pool 'big' could not be started: AF_UNIX path too long"):
        own_groups.spawn(pool, {"big": ClassWithInitArgs(Big)})
    assert [one.ended.done() for one in cluster._started.values()] == [False, False, True]
    assert [len(found) for found in big.give(3)] == [3, 3], "those of before continue"


CONTROLLER = """
import os, sys, torch
from pathlib import Path
from burnish.controller import ClassWithInitArgs, Dispatch, ResourcePool, Worker, register
from burnish.controller.processes import start

class Big(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def give(self, count):
        return torch.zeros(count)

groups = start(logs=Path(sys.argv[1]), deadline_s=240, start_deadline_s=500)
[big] = groups.spawn(ResourcePool([2], "big", "cpu"), {"big": ClassWithInitArgs(Big)}).values()
kept = big.give(100_000)
places = [place for place in groups.cluster._places if os.listdir(place)]
print(places, [peer.name.partition("pid ")[2].split()[0] for peer in big.peers()], sep="\\n", flush=True)
if sys.argv[2] == "kill":
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("how", ["kill", "return"])
def test_nothing_is_left_of_a_controller_that_ends(tmp_path, how):
    """Also: the program needs no `if __name__ == "__main__"`, and its own classes reach the workers."""
    done = subprocess.run([sys.executable, "-c", CONTROLLER, str(tmp_path), how], capture_output=True, text=True)
    assert done.returncode == (-signal.SIGKILL if how == "kill" else 0), done.stderr
    places, pids = (json.loads(line.replace("'", '"')) for line in done.stdout.splitlines())
    assert len(places) == 1 and len(pids) == 2
    assert until(lambda: not any(is_running(int(pid)) for pid in pids))
    assert until(lambda: not any(Path(place).exists() for place in places))


def test_processes_are_dealt_over_the_gpus_and_see_one_each(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    groups = start(logs=tmp_path, deadline_s=240, start_deadline_s=500, per_gpu=2)
    try:
        assert groups.available_devices("auto") == [4] and groups.available_devices("cpu") is None
        launched, _ = groups.cluster.launch(ResourcePool([4], "main", "auto"))
        assert [groups.cluster._started[one.line].gpu for one in launched] == [0, 1, 0, 1]
        assert groups.cluster._environment(1)["CUDA_VISIBLE_DEVICES"] == "7"
        assert groups.cluster._environment(1)["NCCL_MULTI_RANK_GPU_ENABLE"] == "1"
        assert groups.cluster._environment(None)["CUDA_VISIBLE_DEVICES"] == "5,7"
        groups.cluster.end(launched[:1], None)
        assert groups.cluster._free_gpu() == 0, "the one that a process has left"
    finally:
        groups.disconnect()


def test_nccl_that_shares_no_gpu_is_refused(monkeypatch):
    monkeypatch.setattr(module, "nccl_version", lambda: (2, 28, 9))
    with pytest.raises(ConfigError, match=r"processes_per_gpu=2: NCCL 2\.28\.9 refuses .* >?=?.*LD_PRELOAD"):
        module.check_shared_gpus(2)
    monkeypatch.setattr(module, "nccl_version", lambda: (2, 30, 7))
    module.check_shared_gpus(2)


def test_pool_on_several_machines_is_refused(groups_of_processes):
    with pytest.raises(ConfigError, match=r"pool 'p' is on 2 machines, .* set trainer.executor=ray"):
        groups_of_processes.spawn(ResourcePool([1, 1], "p", "cpu"), {"big": ClassWithInitArgs(Big)})
