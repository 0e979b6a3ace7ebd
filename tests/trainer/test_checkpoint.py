"""A checkpoint is complete or not there, whatever happens while it is written."""

import errno
import json
import os
from pathlib import Path

import pytest

from burnish.errors import CheckpointError, ConfigError
from burnish.trainer import checkpoint
from burnish.trainer.checkpoint import CheckpointStore, link_model_files, step_of, verify


def write_something(text: str):
    def write(folder: Path) -> None:
        (folder / "actor").mkdir()
        (folder / "actor" / "weights.bin").write_text(text)

    return write


def test_save_then_latest(tmp_path):
    store = CheckpointStore(tmp_path)
    store.save(1, write_something("one"))
    folder = store.save(2, write_something("two"))
    assert store.latest() == folder == tmp_path / "global_step_2"
    assert (tmp_path / "latest_checkpointed_iteration.txt").read_text().strip() == "2"
    assert step_of(folder) == 2
    assert json.loads((folder / "manifest.json").read_text())["files"] == {"actor/weights.bin": 3}


def test_keep_prunes_the_oldest_only(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    for step in (9, 10, 11):  # numeric, not alphabetical order
        store.save(step, write_something("x"))
    assert sorted(p.name for p in tmp_path.glob("global_step_*")) == ["global_step_10", "global_step_11"]


def test_saving_a_step_again_replaces_it(tmp_path):
    store = CheckpointStore(tmp_path)
    store.save(1, write_something("old"))
    folder = store.save(1, write_something("new!"))
    assert (folder / "actor" / "weights.bin").read_text() == "new!"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["global_step_1", "latest_checkpointed_iteration.txt"]


@pytest.mark.parametrize("operation", ["write", "mkdir", "sync", "rename", "replace", "manifest"])
def test_a_crash_while_saving_keeps_the_previous_checkpoint(tmp_path, monkeypatch, operation):
    store = CheckpointStore(tmp_path)
    before = store.save(1, write_something("one"))

    def crash(*_args, **_kwargs):
        raise KeyboardInterrupt  # stands for the process ending here: no handler of ours may clean up

    def crashing_write(folder: Path) -> None:
        write_something("two")(folder)
        if operation == "write":
            crash()

    with monkeypatch.context() as patch:
        if operation == "sync":
            patch.setattr(checkpoint, "_sync_tree", crash)
        elif operation == "manifest":
            patch.setattr(checkpoint, "_write_manifest", crash)
        elif operation != "write":
            patch.setattr(Path, operation, crash)
        with pytest.raises(KeyboardInterrupt):
            store.save(2, crashing_write)
    latest = CheckpointStore(tmp_path).latest()
    # Between the rename and the pointer both are complete; the pointer still names the first.
    assert latest == before
    verify(latest)
    assert CheckpointStore(tmp_path).save(2, write_something("two")) == CheckpointStore(tmp_path).latest()


def test_full_disk_names_folder_and_fix(tmp_path):
    def full(_folder: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(CheckpointError, match=r"global_step_3: No space left on device.*trainer\.default_local_dir"):
        CheckpointStore(tmp_path).save(3, full)


def test_a_folder_that_cannot_be_written(tmp_path):
    blocked = tmp_path / "run"
    blocked.write_text("a file where the folder should be")
    with pytest.raises(CheckpointError, match="cannot write checkpoint .*run/global_step_1"):
        CheckpointStore(blocked).save(1, write_something("x"))


def test_truncated_file_is_named(tmp_path):
    folder = CheckpointStore(tmp_path).save(1, write_something("abcdef"))
    (folder / "actor" / "weights.bin").write_text("abc")
    with pytest.raises(CheckpointError, match=r"truncated: actor/weights.bin has 3 bytes instead of 6"):
        verify(folder)


@pytest.mark.parametrize("text", ["", "[]", '{"files": {}}', '{"files": 3}'])
def test_a_damaged_manifest(tmp_path, text):
    folder = CheckpointStore(tmp_path).save(1, write_something("x"))
    (folder / "manifest.json").write_text(text)
    with pytest.raises(
        CheckpointError, match=r"not a complete checkpoint: manifest\.json is missing or damaged.*resume"
    ):
        verify(folder)


def test_auto_skips_a_damaged_newest_checkpoint(tmp_path):
    store = CheckpointStore(tmp_path)
    good = store.save(1, write_something("one"))
    bad = store.save(2, write_something("two"))
    (bad / "actor" / "weights.bin").unlink()
    assert store.to_resume("auto", None) == good
    with pytest.raises(CheckpointError, match="actor/weights.bin is missing"):
        store.to_resume("resume_path", str(bad))


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


def test_links_make_the_root_loadable(tmp_path):
    actor = tmp_path / "actor"
    actor.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json", "optimizer.safetensors", "engine.json"):
        (actor / name).write_text(name)
    link_model_files(tmp_path, "actor")
    links = sorted(p.name for p in tmp_path.iterdir() if p.is_symlink())
    assert links == ["config.json", "model.safetensors", "tokenizer.json"]
    assert (tmp_path / "model.safetensors").read_text() == "model.safetensors"
