"""A checkpoint is complete or not there, whatever happens while it is written."""

import errno
import json
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from burnish.errors import CheckpointError, ConfigError
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


def test_links_name_an_adapter_too(tmp_path):
    actor = tmp_path / "actor"
    actor.mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors", "masters.safetensors", "tokenizer.json"):
        (actor / name).write_text(name)
    link_model_files(tmp_path, "actor")
    links = sorted(p.name for p in tmp_path.iterdir() if p.is_symlink())
    assert links == ["adapter_config.json", "adapter_model.safetensors", "tokenizer.json"]


@pytest.mark.parametrize("name", ["../../secret", "/etc/passwd", "actor/../../../secret"])
def test_a_manifest_that_names_files_elsewhere_is_refused(tmp_path, name):
    folder = CheckpointStore(tmp_path / "run").save(1, write_something("x"))
    (tmp_path / "secret").write_text("x")
    (folder / "manifest.json").write_text(json.dumps({"step": 1, "files": {name: 1}}))
    with pytest.raises(CheckpointError, match="manifest.json names .*, which is outside of"):
        verify(folder)


@pytest.mark.parametrize("text", ["", "x", "../elsewhere/global_step_9", "1/../../elsewhere/global_step_9", "\udcff"])
def test_a_pointer_that_names_no_step_is_passed_over(tmp_path, text, caplog):
    CheckpointStore(tmp_path / "elsewhere").save(9, write_something("x"))
    store = CheckpointStore(tmp_path / "run")
    folder = store.save(1, write_something("x"))
    (tmp_path / "run" / "latest_checkpointed_iteration.txt").write_bytes(text.encode(errors="surrogateescape"))
    assert store.latest() == folder
    assert "does not hold the number of a step" in caplog.text


def test_what_killed_saves_left_is_swept_away(tmp_path):
    store = CheckpointStore(tmp_path)
    for name in (".global_step_3.writing", ".global_step_2.replaced"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("left")
    (tmp_path / "global_step_2").mkdir()
    store.save(7, write_something("x"))
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "global_step_2", "global_step_7", "latest_checkpointed_iteration.txt",
    ]  # fmt: skip


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


def test_one_save_at_a_time_and_keep_holds_behind_training(tmp_path):
    store, running, most = CheckpointStore(tmp_path, keep=2), [], []

    def write(folder: Path) -> None:
        running.append(folder)
        most.append(len(running))
        write_something("x")(folder)
        running.pop()

    for step in range(1, 7):
        store.save_behind(step, write)
    store.finished(wait=True)
    assert max(most) == 1 and len(most) == 6
    assert sorted(p.name for p in tmp_path.glob("global_step_*")) == ["global_step_5", "global_step_6"]


def test_a_failure_behind_training_is_the_same_error(tmp_path):
    def full(_folder: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = CheckpointStore(tmp_path)
    store.save_behind(3, full)
    with pytest.raises(CheckpointError, match=r"global_step_3: No space left on device.*trainer\.default_local_dir"):
        store.save_behind(4, write_something("x"))
    store.save_behind(4, write_something("x"))
    assert store.finished(wait=True) == store.folder(4)


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
