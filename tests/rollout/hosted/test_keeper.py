"""Nothing is left behind, however the process ends that has an engine: no process and no file."""

import ast
import os
import re
import signal
import site
import subprocess
import sys
from pathlib import Path

import pytest

import burnish
from burnish.rollout.hosted.keeper import KEEPER, Keeper, members, python_path
from tests.processes import until

ROOT = Path(burnish.__file__).parents[1]
pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks at /proc")


class Left:
    def __init__(self, group, places):
        *self.places, self.log = map(Path, places)
        self.group = group

    def is_there(self):
        return len(members(self.group)) == 2 and all(any(place.iterdir()) for place in self.places)

    def is_gone(self):
        return not members(self.group) and not any(place.exists() for place in self.places)


OWNER = """
import sys, time
from tests.rollout.hosted.counting import own
engine, left = own(sys.argv[1])
print(left, flush=True)
while engine.lost() is None:
    time.sleep(0.02)
print("it is lost", flush=True)
time.sleep(600)
"""
PYTHONPATH = os.pathsep.join(sys.path)


@pytest.mark.parametrize("host_dies_first", [False, pytest.param(True, marks=pytest.mark.long)])
def test_an_owner_that_is_killed_leaves_nothing(tiny_folder, host_dies_first):
    """Also where nobody of the program is left: the weights would have been for the next one."""
    command = [sys.executable, "-c", OWNER, str(tiny_folder)]
    environment = os.environ | {"PYTHONPATH": PYTHONPATH}
    owner = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None
        left = Left(*ast.literal_eval(owner.stdout.readline()))
        assert left.is_there()
        if host_dies_first:
            os.kill(left.group, signal.SIGKILL)
            assert owner.stdout.readline() == "it is lost\n" and until(lambda: not members(left.group))
            assert all(place.exists() for place in left.places)
    finally:
        owner.kill()
        owner.wait(30)
    assert owner.stdout.read() == "", "it ends with its owner"
    assert until(left.is_gone)
    left.log.unlink()


@pytest.mark.long
@pytest.mark.ray
def test_a_ray_worker_leaves_nothing(tiny_folder):
    """Ray kills the children of a worker that ends."""
    ray = pytest.importorskip("ray")

    class Actor:
        def own(self, folder):
            from tests.rollout.hosted.counting import own

            self.engine, left = own(folder)
            return left

    was_there = ray.is_initialized()  # of tests before, in this process
    if not was_there:
        ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    remote = ray.remote(num_cpus=0, runtime_env={"env_vars": {"PYTHONPATH": PYTHONPATH}})(Actor)
    try:
        for is_killed in (True, False):
            actor = remote.remote()
            left = Left(*ray.get(actor.own.remote(str(tiny_folder)), timeout=120))
            assert left.is_there()
            if is_killed:
                ray.kill(actor)
            del actor  # which nobody wants any more
            assert until(left.is_gone), (is_killed, members(left.group), left.places)
            left.log.unlink(missing_ok=True)
    finally:
        if not was_there:
            ray.shutdown()


@pytest.fixture
def keeper(monkeypatch):
    """With `groups`, those of the processes that it was."""
    made, groups = Keeper(), []

    def noted(command, **named):
        with subprocess.Popen(command, **{key: value for key, value in named.items() if key != "check"}) as process:
            groups.append(process.pid)
        return subprocess.CompletedProcess(command, process.returncode)

    monkeypatch.setattr(subprocess, "run", noted)
    made.groups = groups
    yield made
    made.forget()
    assert until(lambda: not any(members(group) for group in groups)), "it ends with its owner"


def test_what_is_kept_goes_with_the_owner_and_nothing_else(keeper, tmp_path):
    kept, gone, other = (tmp_path / name for name in ("kept", "gone", "other"))
    for folder in (kept, gone, other):
        (folder / "deeper").mkdir(parents=True)
    file = tmp_path / "file"
    file.touch()
    keeper.add(kept, file)
    keeper.add(gone, kept)
    keeper.remove(gone, other)
    keeper.forget()
    assert until(lambda: not kept.exists() and not file.exists())
    assert gone.exists() and other.exists()


def ignores(pid, number):
    (mask,) = re.findall(r"^SigIgn:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(mask, 16) >> (number - 1) & 1)


def test_one_that_is_killed_is_replaced(keeper, tmp_path):
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    keeper.add(folders[0])
    (pid,) = members(keeper.groups[0])
    assert until(lambda: ignores(pid, signal.SIGTERM))
    os.kill(pid, signal.SIGTERM)  # is not for it
    os.kill(pid, signal.SIGKILL)
    assert until(lambda: not members(keeper.groups[0]))
    keeper.add(folders[1])
    assert len(keeper.groups) == 2
    keeper.forget()
    assert until(lambda: not any(folder.exists() for folder in folders))


def test_without_one_a_warning_names_what_would_stay(keeper, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(sys, "executable", "/no/python")
    keeper.add(tmp_path)
    assert f"if it is killed, these are not cleaned up: {tmp_path}" in caplog.text


def test_a_process_that_was_forked_does_not_hold_on_to_it():
    """A pipe that it had a share in would not end with the other process."""
    KEEPER.add(Path("/nowhere/of/a/test"))
    pipe = KEEPER._pipe
    assert pipe is not None
    pid = os.fork()
    if not pid:
        try:
            os.fstat(pipe)
        except OSError:
            os._exit(0 if KEEPER._pipe is None and not KEEPER._kept else 2)
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    KEEPER.remove(Path("/nowhere/of/a/test"))


def test_where_burnish_lies_comes_last_on_the_path_of_another_process(tmp_path, monkeypatch):
    """And not at all where Python looks for packages anyway: others there must not come before the standard library."""
    for given, wanted in (([tmp_path], [tmp_path, ROOT]), ([ROOT, tmp_path], [ROOT, tmp_path])):
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, given)))
        assert python_path() == os.pathsep.join(map(str, wanted))
    command = [sys.executable, "-P", "-c", "import burnish; print(burnish.__file__)"]
    environment = os.environ | {"PYTHONPATH": python_path()}
    told = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert told.stdout.strip() == burnish.__file__
    monkeypatch.setattr(site, "getsitepackages", lambda: ["/elsewhere", str(ROOT)])
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert python_path() == ""
