"""A save that fails or is killed at any of its file operations leaves the previous checkpoint, whole and found again.

`Operations` counts what a save asks of the file system and stops it at the n-th: with an error (a full disk), or with
the end of the process, in a child. Every n is tried, in this thread and behind training.
"""

import builtins
import errno
import io
import os
import shutil
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import pytest
import transformers.modeling_utils

import burnish.engine.state
from burnish.errors import CheckpointError
from burnish.trainer.checkpoint import CheckpointStore, verify
from tests.trainer.conftest import GRPO

CALLS = ("open", "fsync", "rename", "replace", "mkdir", "symlink", "chmod", "unlink", "rmdir")
ENDED = 77


class Operations:
    """Counts file operations while it is on; `stop` is called at the n-th, before it happens."""

    def __init__(self, monkeypatch):
        self.count, self.at, self.stop = 0, None, None
        monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # no test can tell, and disks are slow
        for name in CALLS:
            monkeypatch.setattr(os, name, self.watched(getattr(os, name)))
        for module in (builtins, io):
            monkeypatch.setattr(module, "open", self.watched(module.open, only_writing=True))
        for module, name in ((burnish.engine.state, "save_file"), (transformers.modeling_utils, "safe_save_file")):
            monkeypatch.setattr(module, name, self.watched(getattr(module, name)))

    def watched(self, function, only_writing=False):
        def watched(*args, **kwargs):
            mode = kwargs.get("mode", args[1] if len(args) > 1 else "r")
            if self.stop is not None and not (only_writing and "r" in str(mode)):
                self.count += 1
                if self.count == self.at:
                    self.stop()
            return function(*args, **kwargs)

        return watched

    @contextmanager
    def stopping(self, at: int | None, stop: Callable[[], None] = lambda: None):
        self.count, self.at, self.stop = 0, at, stop
        try:
            yield
        finally:
            self.stop = None


def in_a_child(work: Callable[[], None]) -> int:
    """The exit status of a child that does the work; 0 where it comes to its end."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:  # noqa: BLE001 - it must not become a second pytest
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def attempts(operations, save, killed, place, start):
    """Run `save(root)` once for each of its operations, from a copy of `start`; gives root and number each time."""

    def stop() -> None:
        if killed:
            os._exit(ENDED)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    shutil.copytree(start, place / "counted", symlinks=True)
    with operations.stopping(None):
        save(place / "counted")
    total = operations.count
    for at in range(1, total + 1):
        root = place / f"at-{at}"
        shutil.copytree(start, root, symlinks=True)

        def work(root=root, at=at) -> None:
            with operations.stopping(at, stop):
                save(root)

        if killed:
            assert in_a_child(work) == ENDED, f"operation {at} of {total} was not reached"
        else:
            try:
                work()
            except CheckpointError as error:
                assert "No space left on device" in str(error) and "trainer.default_local_dir" in str(error)
        yield root, at
        shutil.rmtree(root)
    assert total > 10


def all_visible_are_whole(root: Path) -> list[str]:
    folders = list(root.glob("global_step_*"))
    for folder in folders:
        verify(folder)
    return [folder.name for folder in folders]


@pytest.mark.parametrize("again", [False, True], ids=["the next step", "the same step again"])
@pytest.mark.parametrize("killed", [False, True], ids=["full disk", "killed"])
@pytest.mark.parametrize("behind", [False, True], ids=["at once", "behind"])
def test_no_operation_of_a_save_can_lose_the_previous_checkpoint(tmp_path, monkeypatch, behind, killed, again):
    def writer(text):
        def write(folder: Path) -> None:
            (folder / "actor").mkdir()
            for name in ("weights", "moments"):
                (folder / "actor" / name).write_text(text)
            (folder / "weights").symlink_to("actor/weights")

        return write

    def save(root: Path, behind: bool = behind) -> None:
        store = CheckpointStore(root, keep=1)
        if behind:
            store.save_behind(1 if again else 2, writer("new"))
            store.finished(wait=True)
        else:
            store.save(1 if again else 2, writer("new"))

    start = tmp_path / "start"
    old = contents(CheckpointStore(start).save(1, writer("old")))
    save(shutil.copytree(start, tmp_path / "whole", symlinks=True), behind=False)
    new = contents(CheckpointStore(tmp_path / "whole").latest())
    assert old != new
    seen = set()
    for root, at in attempts(Operations(monkeypatch), save, killed, tmp_path, start):
        visible = all_visible_are_whole(root)
        latest = CheckpointStore(root).latest()
        assert latest is not None, f"operation {at} lost all checkpoints"
        assert latest.name >= max(visible, default=""), f"operation {at} lost the newest checkpoint, which is whole"
        found = contents(latest)
        assert found in (old, new), f"operation {at} left a mixture"
        seen.add("old" if found == old else "new")
        assert contents(CheckpointStore(root, keep=1).save(3, writer("new")))["actor/weights"] == b"new"
        assert sorted(p.name for p in root.iterdir()) == ["global_step_3", "latest_checkpointed_iteration.txt"]
    assert seen == {"old", "new"}


@pytest.mark.long
def test_no_two_kills_leave_a_part_of_a_checkpoint_visible(tmp_path, monkeypatch):
    """The second comes while a save cleans up after the first, and saves the same step again."""

    def save(root: Path) -> None:
        CheckpointStore(root, keep=1).save(2, lambda folder: (folder / "weights").write_text("new"))

    store = CheckpointStore(tmp_path / "start")
    for step in (1, 2):
        store.save(step, lambda folder: (folder / "weights").write_text("old"))
    operations = Operations(monkeypatch)
    for first, _ in attempts(operations, save, True, tmp_path / "first", store.root):
        for root, _ in attempts(operations, save, True, tmp_path / "second", first):
            all_visible_are_whole(root)
            assert CheckpointStore(root).latest() == root / "global_step_2"
        shutil.rmtree(tmp_path / "second")


@pytest.mark.long
@pytest.mark.parametrize(("behind", "killed"), [(False, False), (True, True)], ids=["full disk", "behind-killed"])
def test_no_operation_of_a_trainer_s_save_can_lose_it_either(build_trainer, monkeypatch, tmp_path, behind, killed):
    """With all that a run saves: model, optimiser, tokenizer and the controller's state."""
    keys = ["trainer.max_actor_ckpt_to_keep=1", f"actor_rollout_ref.actor.checkpoint.async_save={behind}"]
    trainer = build_trainer(*GRPO, *keys)
    trainer.tracker.start()
    masters, start, outcomes = trainer.policy.worker.actor.masters, tmp_path / "start", []

    def save(root: Path, step: int = 2) -> None:
        trainer.step, trainer.store = step, CheckpointStore(root, keep=1)
        trainer.save()
        trainer.note_saved(wait=True)

    save(start, step=1)
    old = contents(start / "global_step_1")
    after = {name: master.detach() + 1 for name, master in masters.items()}
    for name, master in masters.items():
        master.data.copy_(after[name])
    for root, _ in attempts(Operations(monkeypatch), save, killed, tmp_path, start):
        latest = CheckpointStore(root).latest()
        trainer.policy.load_checkpoint(latest / "actor")
        is_new = all(master.equal(after[name]) for name, master in masters.items())
        assert (latest.name == "global_step_2") == is_new and (is_new or contents(latest) == old)
        outcomes.append(is_new)
        for name, master in masters.items():
            master.data.copy_(after[name])
    assert outcomes.count(False) > 50 and any(outcomes)
    trainer.close()


def test_everything_is_on_disk_before_it_is_named(tmp_path, monkeypatch):
    """Power may fail as well: a name that survives must not stand for data that did not."""
    synced, names = set(), []
    opened = {}
    real_open, real_sync, real_rename, real_replace = os.open, os.fsync, os.rename, os.replace

    def note_open(path, *args, **kwargs):
        descriptor = real_open(path, *args, **kwargs)
        opened[descriptor] = Path(path)
        return descriptor

    def note_sync(descriptor):
        synced.add(opened[descriptor])
        real_sync(descriptor)

    def note(real):
        def move(source, target, **kwargs):
            inside = [Path(source), *Path(source).rglob("*")] if Path(source).is_dir() else [Path(source)]
            assert {path for path in inside if not path.is_symlink()} <= synced, f"{target} is named too early"
            names.append(Path(target).name)
            real(source, target, **kwargs)

        return move

    monkeypatch.setattr(os, "open", note_open)
    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "rename", note(real_rename))
    monkeypatch.setattr(os, "replace", note(real_replace))

    def write(folder: Path) -> None:
        (folder / "actor").mkdir()
        (folder / "actor" / "weights").write_text("x")
        (folder / "weights").symlink_to("actor/weights")

    CheckpointStore(tmp_path).save(1, write)
    assert names == ["global_step_1", "latest_checkpointed_iteration.txt"]
    assert tmp_path in synced
