"""One process per run folder: who comes second is told, and no end of a process leaves the folder barred."""

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading

import pytest

from burnish.errors import CheckpointError, ConfigError
from burnish.tracking import RunFolder, Tracker, lock
from burnish.tracking.lock import FolderLock

HOLDER = """
import sys, time
from burnish.tracking import RunFolder
folder = RunFolder(sys.argv[1])
folder.begin()
print("begun", flush=True)
time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process with a run in `tmp_path`."""
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "begun\n"
        yield process
        process.kill()


@pytest.mark.parametrize("way", ["begin", "resume", "append", "write_rollouts"])
def test_second_process_is_refused_before_it_writes(tmp_path, holder, way):
    (tmp_path / "metrics.jsonl").write_text("of the other")
    before = {path.name for path in tmp_path.iterdir()}
    folder = RunFolder(tmp_path)
    folder.write_recipe({"a": 1})
    calls = {"resume": lambda: folder.resume(0), "write_rollouts": lambda: folder.write_rollouts(1, [{}])}
    with pytest.raises(ConfigError) as refused:
        calls.get(way, getattr(folder, way))()
    folder.close()
    assert str(refused.value) == (
        f"trainer.default_local_dir={tmp_path}: process {holder.pid} on {socket.gethostname()} is writing there. Wait "
        "until it has ended, or give another trainer.default_local_dir or trainer.experiment_name"
    )
    assert {path.name for path in tmp_path.iterdir()} == before


def test_killed_run_can_be_resumed(tmp_path, holder):
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    assert (tmp_path / ".lock").exists()
    with RunFolder(tmp_path) as folder:
        folder.resume(0)
        assert (tmp_path / ".lock").read_text() == f"{os.getpid()} {socket.gethostname()}\n"


def test_runs_one_after_another_need_only_close(tmp_path, trainer):
    never_begun = RunFolder(tmp_path)
    for _ in range(2):
        with RunFolder(tmp_path) as folder:
            folder.begin()
            folder.begin()
        assert not (tmp_path / ".lock").exists()
    folder.close()
    never_begun.begin()
    with pytest.raises(ConfigError, match=f"process {os.getpid()} on"):
        RunFolder(tmp_path).begin()
    with pytest.raises(ValueError), RunFolder.of(trainer) as folder, Tracker(trainer, folder) as tracker:
        tracker.log({"a": 1.0}, 1)
        raise ValueError
    with RunFolder.of(trainer) as folder:
        folder.resume(1)  # a failed run releases the lock


def test_child_that_outlives_the_run_does_not_hold_the_lock(tmp_path):
    folder = RunFolder(tmp_path)
    folder.begin()
    os.set_inheritable(folder._lock._file.fileno(), True)  # as a forked process has it
    (tmp_path / "other name").hardlink_to(tmp_path / ".lock")
    with subprocess.Popen(["sleep", "600"], close_fds=False) as child:
        try:
            folder.close()
            (tmp_path / "other name").rename(tmp_path / ".lock")  # the very file that the child has open
            FolderLock(tmp_path).take()
        finally:
            child.kill()


def test_lock_file_removed_while_it_is_being_taken_is_taken_again(tmp_path, monkeypatch):
    flock, calls = fcntl.flock, []

    def remove_first(file, operation):
        calls.append(operation)
        if len(calls) == 1:
            (tmp_path / ".lock").unlink()
        flock(file, operation)

    monkeypatch.setattr(lock.fcntl, "flock", remove_first)
    ours = FolderLock(tmp_path)
    ours.take()
    assert len(calls) == 2
    with pytest.raises(ConfigError, match="is writing there"):
        FolderLock(tmp_path).take()


def test_folder_removed_while_the_lock_is_being_taken_is_made_again(tmp_path, monkeypatch):
    """The holder ends, and removes its folder, between our making and using it; once, not for ever."""
    folder, opened = tmp_path / "folder", os.open

    def remove_first(path, *args):
        calls.append(path)
        if len(calls) <= times and path == folder / ".lock":
            folder.rmdir()
        return opened(path, *args)

    monkeypatch.setattr(lock.os, "open", remove_first)
    calls, times = [], 1
    ours = FolderLock(folder)
    ours.take()
    assert (folder / ".lock").read_text().startswith(f"{os.getpid()} ")
    ours.release()
    calls, times = [], 9
    with pytest.raises(CheckpointError, match=r"cannot write .*: No such file or directory: name another place with"):
        FolderLock(folder).take()


def test_messages_name_the_keys_of_the_place(tmp_path):
    keys, place = ("data.output_path",), tmp_path / "out.parquet"
    ours = FolderLock(tmp_path, keys, place)
    ours.take()
    with pytest.raises(ConfigError, match=rf"^data.output_path={place}: process .* ended, or give another data.output"):
        FolderLock(tmp_path, keys, place).take()
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"name another place with data\.output_path$"):
        FolderLock(tmp_path / "file" / "folder", keys, place).take()
    (tmp_path / "run" / ".lock").mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"cannot write .*\.lock: .*trainer\.default_local_dir"):
        RunFolder(tmp_path / "run").begin()


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOTSUP])
def test_file_system_without_locks_is_warned_about_once(tmp_path, monkeypatch, caplog, code):
    def refuse(file, operation):
        raise OSError(code, "no locks")

    monkeypatch.setattr(lock.fcntl, "flock", refuse)
    with RunFolder(tmp_path) as folder:
        folder.begin()
        folder.write_rollouts(1, [{}])
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path}: this file system knows no locks (no locks), "
        "so nothing stops a second run from writing in the folder"
    ]
    assert (tmp_path / "rollouts" / "1.jsonl").exists()


def test_reading_the_holder_does_not_block_a_run_from_starting(tmp_path, monkeypatch):
    """`burnish status` has the lock for a moment."""
    monkeypatch.setattr(lock, "PATIENCE_S", 30.0)
    (tmp_path / ".lock").write_text("")
    with (tmp_path / ".lock").open() as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        threading.Timer(0.2, lambda: fcntl.flock(looking, fcntl.LOCK_UN)).start()
        own = FolderLock(tmp_path)
        own.take()
    own.release()
