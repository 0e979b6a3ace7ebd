"""What only the executor on Ray does."""

import json
import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from burnish.config.trainer import RayInitConfig
from burnish.controller.dispatch import Dispatch, register
from burnish.controller.group import ClassWithInitArgs
from burnish.controller.pool import ResourcePool
from burnish.controller.process import Address, start_time
from burnish.controller.worker import Worker
from burnish.errors import ConfigError, WorkerError
from tests.processes import is_running, until

ray = pytest.importorskip("ray")

from burnish.controller.ray import cluster, connect  # noqa: E402 (only where there is a Ray)

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("by_value")]


class Place(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def interface(self):
        return os.environ.get("GLOO_SOCKET_IFNAME", "")


def test_nodes_and_devices_of_the_cluster(groups_of_ray, monkeypatch):
    monkeypatch.setattr("burnish.controller.ray.cluster.STARTING", 0.5)
    with pytest.raises(ConfigError, match=r"pool 'p' asks for \[1, 1\] processes, node by node; there are 1 nodes: "):
        groups_of_ray.spawn(ResourcePool([1, 1], "p", "cpu"), {"it": ClassWithInitArgs(Worker)})
    assert groups_of_ray.available_devices("cpu") is None
    if not torch.cuda.is_available():
        assert groups_of_ray.available_devices("auto") is None
        with pytest.raises(ConfigError, match=r"trainer.device=cuda, but Ray has no GPU: 1 nodes"):
            groups_of_ray.available_devices("cuda")
    for address in ("127.0.0.1:1", "127.0.0.1:head"):
        with pytest.raises(ConfigError, match=f"ray_init.address={address}: there is no Ray to join"):
            cluster.start_ray(address, 1)


@pytest.mark.parametrize("failure", [None, ConnectionError("no answer")])
def test_sigterm_does_what_it_did_before_ray_was_started(monkeypatch, failure):
    def init(**options):
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))  # as Ray does
        if failure:
            raise failure

    monkeypatch.setattr(cluster.ray, "init", init)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(WorkerError) if failure else nullcontext():
        cluster.start_ray("local", 1)
    assert signal.getsignal(signal.SIGTERM) is before


CONTROLLER = """
import json, os, sys, ray, torch
from pathlib import Path
from burnish.config.trainer import RayInitConfig
from burnish.controller import ClassWithInitArgs, Dispatch, ResourcePool, Worker, register
from burnish.controller.ray import connect
from burnish.errors import WorkerError

class Big(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def take(self, x):
        return len(x)
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def give(self, count):
        return torch.zeros(count)
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def forever(self):
        while True: pass

full = {"automatic_object_spilling_enabled": False, "local_fs_capacity_threshold": 0.0001}
ray.init(address="local", num_cpus=1, object_store_memory=80_000_000, include_dashboard=False, _system_config=full)
groups = connect(RayInitConfig(), processes=1, logs=Path(sys.argv[1]), deadline_s=240, start_deadline_s=500)
[big] = groups.spawn(ResourcePool([1], "big", "cpu"), {"big": ClassWithInitArgs(Big)}).values()
said = {}
for name, argument in {"take": torch.zeros(30_000_000), "give": 30_000_000}.items():
    try:
        getattr(big, name)(argument)
    except WorkerError as error:
        said[name] = str(error)
assert big.take(torch.zeros(100_000)) == [100_000]  # it continues
said["pid"] = big.peers()[0].name.partition("pid ")[2].split()[0]
big.forever.start()
print(json.dumps(said), flush=True)
os.kill(os.getpid(), 9)
"""


def test_full_object_store_and_a_controller_that_dies(tmp_path):
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(
        [sys.executable, "-c", CONTROLLER, str(tmp_path)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["take"].startswith("Big.take: its arguments do not fit into Ray's object store: ")
    assert said["give"].startswith("Big.give: the result of rank 0 of 1 of pool 'big' (big), pid ")
    assert " does not fit into Ray's object store: " in said["give"]
    assert "start Ray with more --object-store-memory" in said["give"]
    assert until(lambda: not is_running(int(said["pid"])))


def test_process_on_another_node_is_killed_there(groups_of_ray, monkeypatch):
    process = subprocess.Popen(["sleep", "600"])
    there = Address(process.pid, "", "", cluster.here(), "", 0, start_time(process.pid))
    absent = Address(process.pid, "", "", "gone", "", 0, start_time(process.pid))
    monkeypatch.setattr(cluster, "here", lambda: "elsewhere")
    cluster.end_processes([absent])
    assert process.poll() is None
    cluster.end_processes([there])
    assert process.wait(30) == -signal.SIGKILL


def test_workers_with_a_device_are_started_under_a_profiler(groups_of_ray, tmp_path, monkeypatch):
    script = tmp_path / "profiler"
    script.write_text('#!/bin/sh\nexport GLOO_SOCKET_IFNAME="$1"\nshift\nexec "$@"\n')
    script.chmod(0o755)
    monkeypatch.setattr(groups_of_ray.cluster, "under", lambda name: [str(script), f"traced {name}"])
    names = []
    for device in ("auto", "cpu"):
        group = groups_of_ray.spawn(ResourcePool([1], "pool", device), {"it": ClassWithInitArgs(Place)})["it"]
        (name,) = group.interface()
        names.append(name)
        group.shutdown()
    assert names[0] == "traced pool-0" and not names[1].startswith("traced")


def test_disconnecting_writes_the_timeline_and_leaves_a_ray_alone_that_it_did_not_start(
    groups_of_ray, tmp_path, caplog
):
    for name in ("deep/timeline.json", "deep/timeline.json/in_a_file"):
        settings = RayInitConfig(timeline_json_file=str(tmp_path / name))
        groups = connect(settings, processes=1, logs=None, deadline_s=1, start_deadline_s=1)
        logs = Path(groups.cluster.surroundings.logs)
        assert logs.is_dir()
        groups.disconnect()
        groups.disconnect()
        assert ray.is_initialized() and not logs.exists()
    assert isinstance(json.loads((tmp_path / "deep/timeline.json").read_text()), list)
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("burnish")]
    assert len(ours) == 1 and "in_a_file could not be written" in ours[0]
