"""examples/cluster: training across two nodes, losing one of them, and what the Slurm script starts where."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from burnish.tracking.jsonl import read_metrics
from tests.examples.conftest import on_path

EXAMPLES = Path(__file__).parents[2] / "examples" / "cluster"
BIN = Path(sys.executable).parent


def namespaces() -> str:
    """Why network namespaces cannot be made here; empty where they can."""
    if os.geteuid() != 0:
        return "needs root"
    if not shutil.which("ip"):
        return "needs iproute2"
    name = f"burnish-test-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    cable = ["ip", "-n", name, "link", "add", "net0", "type", "veth", "peer", "name", "net1"]
    linked = subprocess.run(cable, capture_output=True, text=True)
    subprocess.run(["ip", "netns", "delete", name], capture_output=True)
    return made.stderr.strip() or linked.stderr.strip()


@pytest.fixture
def two_nodes(tmp_path):
    """Run two_nodes.sh in an empty folder; nothing of it may be left."""
    if reason := namespaces():
        pytest.skip(f"network namespaces cannot be made here: {reason}")

    def run(*arguments, **environment):
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        kept |= {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", **environment}
        command = [EXAMPLES / "two_nodes.sh", *arguments]
        process = subprocess.Popen(
            command, cwd=tmp_path, env=kept, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            told, _ = process.communicate(timeout=280)
        finally:
            process.terminate()
            process.wait()
        left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
        assert f"burnish-{process.pid}-" not in left
        return process.returncode, told

    return run


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_nodes_train_as_one_process_does(two_nodes, tmp_path):
    code, told = two_nodes("--compare", "trainer.total_training_steps=2")
    assert code == 0, told
    assert "the same: " in told.splitlines()[-1]
    lines = read_metrics(tmp_path / "outputs" / "two_nodes" / "cluster")
    assert [line["step"] for line in lines] == [1, 2]


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_that_lost_a_node_continues_when_it_is_back(two_nodes):
    code, told = two_nodes("--lose-node", "trainer.total_training_steps=12", BACK_AFTER="1")
    assert code == 0, told
    assert "on second (10.77.0.2)" in told and "restart 1 of 2: the run continues from" in told


# --- Slurm ---

SRUN = """#!/bin/bash
echo "srun $*" >> notes
while [[ $1 == --* ]]; do shift; done
exec "$@"
"""
RAY = """#!/bin/bash
echo "ray $* $RAY_AUTH_MODE" >> notes
case $1 in
start) [[ $* != *--head* ]] && echo 2 > nodes || echo 1 > nodes; exec sleep 30 ;;
status) for _ in $(seq "$(cat nodes 2>/dev/null)"); do echo " 1 node_abc"; done ;;
esac
"""
BURNISH = """#!/bin/bash
echo "burnish $*" >> notes
trap 'echo "burnish ends" >> notes; exit 9' TERM
[[ $* != *forever* ]] || for _ in $(seq 300); do sleep 0.1; done
"""


@pytest.fixture
def slurm(tmp_path):
    """Start slurm.sh as Slurm does on the first of two nodes; `notes` has the commands."""
    environment = {"PATH": on_path(tmp_path / "bin", {"srun": SRUN, "ray": RAY, "burnish": BURNISH})["PATH"]}
    environment |= {"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "2", "SLURM_GPUS_ON_NODE": "8", "HEAD_IP": "10.0.0.1"}
    started = []

    def start(*keys):
        command = [EXAMPLES / "slurm.sh", *keys]
        started.append(subprocess.Popen(command, cwd=tmp_path, env=environment, start_new_session=True))
        return started[0]

    yield start
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)


def test_slurm_starts_ray_on_every_node_and_trains_from_the_first(slurm, tmp_path):
    assert slurm("data.train_files=x").wait(timeout=60) == 0
    notes = (tmp_path / "notes").read_text().splitlines()
    head, second = (note for note in notes if note.startswith("ray start"))
    assert "--head --node-ip-address 10.0.0.1 --port 6379 --num-gpus 8" in head and "--block" in head
    assert "--address 10.0.0.1:6379 --num-gpus 8 token" in second
    first, others = (note for note in notes if note.startswith("srun"))
    assert f"--nodelist={os.uname().nodename}" in first and f"--exclude={os.uname().nodename}" in others
    keys = "ray_init.address=10.0.0.1:6379 trainer.nnodes=2 trainer.n_gpus_per_node=8 data.train_files=x"
    assert notes[-1] == f"burnish ppo {keys}"


def test_the_end_of_slurms_time_is_reported_to_the_run(slurm, tmp_path):
    process = slurm("forever=true")
    end = time.monotonic() + 60
    while "forever" not in (tmp_path / "notes").read_text() if (tmp_path / "notes").exists() else True:
        assert time.monotonic() < end
        time.sleep(0.05)
    time.sleep(0.5)  # for its trap to be there
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 9
    assert (tmp_path / "notes").read_text().splitlines()[-1] == "burnish ends"


def test_scripts_parse_and_wrong_calls_are_reported(tmp_path):
    for script in sorted(EXAMPLES.glob("*.sh")):
        assert subprocess.run(["bash", "-n", script]).returncode == 0
    plain = {"PATH": os.environ["PATH"]}
    for words, code, message in [
        (["slurm.sh"], 1, "this is a job for Slurm: sbatch"),
        (["two_nodes.sh", "--three"], 2, "there is no option --three"),
    ]:
        command = [EXAMPLES / words[0], *words[1:]]
        done = subprocess.run(command, capture_output=True, text=True, env=plain, cwd=tmp_path)
        assert done.returncode == code and message in done.stderr
