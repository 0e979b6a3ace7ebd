"""A checkpoint is complete or not there, whatever happens while it is written."""

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import sys
import textwrap
import threading
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from burnish.errors import CheckpointError, ConfigError, WorkerError
from burnish.models.folder import LATEST
from burnish.trainer.checkpoint import CheckpointStore, link_model_files, step_of
from burnish.trainer.groups import write_captured


def write_something(text: str):
    def write(folder: Path) -> None:
        (folder / "actor").mkdir()
        (folder / "actor" / "weights.bin").write_text(text)

    return write


def test_save_then_latest(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    for step in (9, 10, 11):  # numeric, not alphabetical order
        folder = store.save(step, write_something("old"))
    assert store.latest() == folder == tmp_path / "global_step_11" and step_of(folder) == 11
    assert json.loads((folder / "manifest.json").read_text())["files"] == {"actor/weights.bin": 3}
    store.save(11, write_something("new!"))
    assert (folder / "actor" / "weights.bin").read_text() == "new!", "a step that is saved again is replaced"
    names = ["global_step_10", "global_step_11", "latest_checkpointed_iteration.txt"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert (tmp_path / names[-1]).read_text().strip() == "11"


@pytest.mark.parametrize(
    ("qualities", "left"),
    [
        ([(False, 0.1), (False, 0.9), (False, 0.5), (False, 0.9)], [2, 4]),
        ([(True, 0.2), (False, 0.9), (False, 0.9), (False, 0.9)], [1, 4]),  # a validated one counts before others
        ([None, None, None, None], [4]),
        ([(True, 0.2), (True, float("nan")), (True, 0.1), (False, 0.9)], [1, 4]),
        ([(True, float("nan")), (True, 0.2), (True, 0.1), (False, 0.9)], [2, 4]),
    ],
)
def test_the_best_checkpoint_is_kept_next_to_the_newest(tmp_path, qualities, left):
    store = CheckpointStore(tmp_path, keep=1)
    for step, quality in enumerate(qualities, start=1):
        store.save(step, write_something("x"), quality)
    assert sorted(int(path.name.rsplit("_", 1)[1]) for path in tmp_path.glob("global_step_*")) == left
    store = CheckpointStore(tmp_path, keep=1, keep_best=False)
    store.save(5, write_something("x"))
    assert [path.name for path in tmp_path.glob("global_step_*")] == ["global_step_5"]


def test_the_best_is_none_of_an_earlier_run_that_went_further(tmp_path):
    store = CheckpointStore(tmp_path, keep=1)
    for step, value in ((9, 1.0), (1, 0.5), (2, 0.1), (3, 0.2)):
        store.save(step, write_something("x"), (True, value))
    assert store.best(3) == store.folder(1)
    assert sorted(path.name for path in tmp_path.glob("global_step_*")) == [f"global_step_{step}" for step in (1, 3, 9)]


def test_a_folder_in_place_before_its_pointer_is_the_newest_and_those_of_an_earlier_run_are_not(tmp_path):
    store = CheckpointStore(tmp_path)
    for step in (3, 4, 9):  # 9 is left by a run that went further, before this one resumed from 3
        folder = store.save(step, write_something("x"))
    pointer, intended = tmp_path / "latest_checkpointed_iteration.txt", tmp_path / f".{LATEST}.writing"
    pointer.write_text("3\n")
    assert store.latest() == store.folder(3)
    intended.write_text("4\n")  # killed before the pointer was replaced
    assert store.latest() == store.folder(4) and pointer.read_text() == "3\n"
    shutil.copytree(store.folder(4), tmp_path / ".global_step_4.writing")  # killed while 4 was to be saved again
    assert store.latest() == store.folder(3)
    store.save(5, write_something("x"))
    assert store.latest() == store.folder(5) and folder.exists() and not intended.exists()


def test_a_checkpoint_without_digests_is_checked_by_sizes(tmp_path):
    store = CheckpointStore(tmp_path)
    folder = store.save(1, write_something("x"))
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest.pop("sha256") == {"actor/weights.bin": hashlib.sha256(b"x").hexdigest()}
    (folder / "actor/weights.bin").write_text("y")
    with pytest.raises(CheckpointError, match=r"actor/weights\.bin is not what was written"):
        store.to_resume("auto", None)
    assert store.latest() == folder, "to name it, no file is read"
    (folder / "manifest.json").write_text(json.dumps(manifest))  # as they were before
    assert store.to_resume("auto", None) == folder


def test_resume_modes(tmp_path):
    store = CheckpointStore(tmp_path)
    assert store.to_resume("auto", None) is None
    folder = store.save(4, write_something("x"))
    assert store.to_resume("disable", None) is None
    assert store.to_resume("resume_path", str(folder)) == folder
    with pytest.raises(ConfigError, match=r"trainer\.resume_from_path"):
        store.to_resume("resume_path", None)
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        store.to_resume("resume_path", str(tmp_path / "global_step_77"))


@pytest.mark.parametrize(
    ("linked", "others"),
    [
        (["config.json", "model.safetensors", "tokenizer.json"], ["optimizer.safetensors", "engine.json"]),
        (["adapter_config.json", "adapter_model.safetensors", "tokenizer.json"], ["masters.safetensors"]),
    ],
)
def test_links_make_the_root_loadable(tmp_path, linked, others):
    (tmp_path / "actor").mkdir()
    for name in (*linked, *others):
        (tmp_path / "actor" / name).write_text(name)
    link_model_files(tmp_path, "actor")
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_symlink()) == linked
    assert all((tmp_path / name).read_text() == name for name in linked)


@pytest.mark.parametrize(
    "text", ["", "x", "../elsewhere/global_step_9", "1/../../elsewhere/global_step_9", "\udcff", "-1", "9" * 5000]
)
def test_a_pointer_that_names_no_step_is_passed_over(tmp_path, text, caplog):
    CheckpointStore(tmp_path / "elsewhere").save(9, write_something("x"))
    store = CheckpointStore(tmp_path / "run")
    folder = store.save(1, write_something("x"))
    (tmp_path / "run" / "latest_checkpointed_iteration.txt").write_bytes(text.encode(errors="surrogateescape"))
    assert store.latest() == folder
    assert "does not hold the number of a step" in caplog.text


def test_files_follow_the_umask_that_was_when_the_store_was_made(tmp_path, monkeypatch):
    before = os.umask(0o027)
    try:
        store = CheckpointStore(tmp_path)
    finally:
        os.umask(before)

    def write(folder: Path) -> None:
        for name, mode in (("private", 0o600), ("open", 0o666)):  # as safetensors makes its files, and others
            (folder / name).write_text("x")
            (folder / name).chmod(mode)

    def refuse(mask: int) -> int:
        raise AssertionError("setting the umask in a thread changes the files that others make meanwhile")

    monkeypatch.setattr(os, "umask", refuse)
    store.save_behind(1, write)
    folder = store.finished(wait=True)
    assert {folder.joinpath(name).stat().st_mode & 0o777 for name in ("private", "open")} == {0o640}


def test_behind_training_a_checkpoint_appears_when_it_is_whole(tmp_path):
    store, go = CheckpointStore(tmp_path), threading.Event()
    store.save(1, write_something("one"))

    def write(folder: Path) -> None:
        write_something("two")(folder)
        assert go.wait(60)

    store.save_behind(2, write)
    assert store.finished(wait=False) is None
    assert store.latest() == store.folder(1) and not store.folder(2).exists()
    go.set()
    assert store.finished(wait=True) == store.folder(2) == store.latest()
    assert store.finished(wait=True) is None


def test_a_disk_that_hangs_is_given_up_and_does_not_keep_the_process_from_ending(tmp_path):
    program = """
        import sys, threading
        from burnish.errors import DeadlineError
        from burnish.trainer import checkpoint
        checkpoint.CheckpointStore(sys.argv[1]).save(1, lambda folder: (folder / "w").write_text("whole"))
        store = checkpoint.CheckpointStore(sys.argv[1], deadline_s=0.3)
        try:
            store.save(2, lambda folder: threading.Event().wait())
        except DeadlineError as error:
            print(error)
        """
    command = [sys.executable, "-c", textwrap.dedent(program), tmp_path]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith(f"writing checkpoint {tmp_path}/global_step_2 has not ended within 0.3 s")
    assert "previous checkpoint is whole" in ended.stdout and "Raise trainer.checkpoint_timeout" in ended.stdout
    assert CheckpointStore(tmp_path).latest().name == "global_step_1"


@dataclass
class Peer:
    passes: int  # of the event loop, before it has written
    problem: Exception | None = None
    has_ended: bool = False

    async def call(self, method, folder):
        assert method == "write_captured"
        for _ in range(self.passes):
            await asyncio.sleep(0)
        self.has_ended = True
        if self.problem is not None:
            raise self.problem


def test_a_failure_is_reported_after_the_last_write():
    peers = [Peer(9), Peer(0, WorkerError("no space on rank 1")), Peer(5, OSError("rank 2")), Peer(20)]
    with pytest.raises(WorkerError, match="no space on rank 1"):
        write_captured(SimpleNamespace(peers=lambda: peers), Path("run"))
    assert all(peer.has_ended for peer in peers)
