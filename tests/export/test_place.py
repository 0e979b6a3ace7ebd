"""The folder appears whole or not at all; what may be replaced, and what a full disk says."""

import errno
import fcntl
import os
from pathlib import Path

import pytest
from safetensors import SafetensorError

from burnish.errors import CheckpointError, ConfigError
from burnish.export.place import check_apart, check_out, new_folder, writing


def write(out: Path, text: str = "new", overwrite: bool = False) -> None:
    with new_folder(out, 0, overwrite=overwrite) as folder:
        (folder / "config.json").write_text(text)
        assert not (out / "config.json").exists() or (out / "config.json").read_text() != text


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_it_appears_when_it_is_done_whatever_a_killed_export_left(tmp_path):
    out = tmp_path / "models" / "mine"
    umask = os.umask(0o022)
    try:
        write(out)
    finally:
        os.umask(umask)
    assert (out / "config.json").read_text() == "new" and names(out.parent) == {"mine"}
    assert (out / "config.json").stat().st_mode & 0o777 == 0o644 and out.stat().st_mode & 0o777 == 0o755
    out, left = tmp_path / "mine", tmp_path / ".mine.exporting" / "new"
    out.mkdir()
    (left / "deep").mkdir(parents=True)
    (left / "deep" / "model-00001.safetensors").write_text("half")
    write(check_out(out, overwrite=False))
    assert names(tmp_path) == {"mine", "models"} and names(out) == {"config.json"}


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_nothing_is_left_of_one_that_failed(tmp_path, error):
    with pytest.raises(type(error)), new_folder(tmp_path / "mine", 0, overwrite=False) as folder:
        (folder / "config.json").write_text("half")
        raise error
    assert names(tmp_path) == set()


def test_a_folder_that_is_there_is_replaced_only_when_asked_and_stays_where_that_fails(tmp_path, monkeypatch):
    out = tmp_path / "mine"
    write(out, "old")
    for name in ("model-00002-of-00002.safetensors", "additional_chat_templates/x.jinja", "modeling_x.py"):
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_text("of the old one")
    with pytest.raises(ConfigError, match=r"--out .*/mine exists and is not empty; .* replace it with --overwrite"):
        check_out(out, overwrite=False)
    write(check_out(out, overwrite=True), "new", overwrite=True)
    assert (out / "config.json").read_text() == "new" and names(out) == {"config.json"} and names(tmp_path) == {"mine"}

    def fail(self, target, rename=Path.rename):
        if self.name == "new":
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(CheckpointError, match="cannot write .*/mine: Input/output error"):
        write(out, "newer", overwrite=True)
    assert (out / "config.json").read_text() == "new" and names(tmp_path) == {"mine"}


@pytest.mark.parametrize(
    ("inside", "words"),
    [
        (["notes.txt"], "it is not a model folder"),
        (["config.json", "global_step_3/manifest.json"], "it holds global_step_3, which no export writes; move that"),
        (["config.json", "engine.json"], "it holds engine.json"),
        (["config.json", "notes.txt", "data/y"], "it holds data, which no export writes"),
        (["config.json", "model.safetensors", "optimizer.safetensors"], "it holds optimizer.safetensors"),
        (["config.json", "additional_chat_templates/mine.txt"], "it holds additional_chat_templates/mine.txt"),
        (["config.json", "additional_chat_templates/deep/x.jinja"], "it holds additional_chat_templates/deep"),
        (["config.json", "train.py"], "it holds train.py"),
    ],
)
def test_overwriting_takes_no_other_folders(tmp_path, inside, words):
    for name in inside:
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text("")
    with pytest.raises(ConfigError, match=f"is not replaced: {words}"):
        check_out(tmp_path, overwrite=True)


def test_two_exports_at_a_time_and_what_is_put_there_meanwhile_is_not_removed(tmp_path):
    out = tmp_path / "mine"
    with new_folder(out, 0, overwrite=False) as folder:
        (folder / "config.json").write_text("first")
        with pytest.raises(ConfigError, match=rf"--out={out}: process {os.getpid()} on .* is writing there\. Wait"):
            write(out, "second")
        assert (folder / "config.json").read_text() == "first"
    assert (out / "config.json").read_text() == "first"
    with pytest.raises(ConfigError, match=r"it holds notes\.txt"), new_folder(out, 0, overwrite=True) as folder:
        (folder / "config.json").write_text("new")
        (out / "notes.txt").write_text("mine")
    assert (out / "config.json").read_text() == "first" and names(tmp_path) == {"mine"}


@pytest.mark.parametrize(("overwrite", "words"), [(True, "not yet done"), (False, "mine exists and is not empty")])
def test_an_export_killed_while_it_replaces_another(tmp_path, overwrite, words):
    """Killed between the two renames: the old folder is moved aside, and nothing has its name."""
    out, aside = tmp_path / "mine", tmp_path / ".mine.exporting"
    write(out, "old")
    aside.mkdir()
    out.rename(aside / "replaced")
    (aside / "new").mkdir()
    (aside / "new" / "config.json").write_text("killed")
    with (
        pytest.raises(RuntimeError if overwrite else ConfigError, match=words),
        new_folder(out, 0, overwrite=overwrite) as folder,
    ):
        assert not names(folder)
        raise RuntimeError("not yet done")
    assert (out / "config.json").read_text() == "old" and names(tmp_path) == {"mine"}


def test_files_in_its_place_and_sources_are_not_touched(tmp_path):
    (tmp_path / "mine").write_text("")
    with pytest.raises(ConfigError, match=r"mine is a file; name a folder"):
        check_out(tmp_path / "mine", overwrite=True)
    with pytest.raises(CheckpointError, match="cannot write .*below: (Not a directory|File exists)"):
        write(tmp_path / "mine" / "below")
    source = tmp_path / "run" / "global_step_3"
    for out, words in ((source, "is the source"), (source / "x", "is inside"), (tmp_path, "holds the source")):
        with pytest.raises(ConfigError, match=f"--out {out} {words}.*choose a folder outside of it"):
            check_apart(out, [source])
    check_apart(tmp_path / "run" / "export", [source])


def test_a_disk_that_is_too_small_or_fills_up_or_knows_no_locks(tmp_path, monkeypatch, caplog):
    too_small = pytest.raises(CheckpointError, match=r"needs 1000000\.0 GB, and .* are free there; free some space")
    with too_small, new_folder(tmp_path / "mine", 10**15, overwrite=False):
        raise AssertionError("not reached")
    assert names(tmp_path) == set()
    wrapped = SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
    for error in (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), wrapped):
        full = pytest.raises(CheckpointError, match=r"cannot write mine: .*No space left on device.* with --out")
        with full, writing(Path("mine")):
            raise error

    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    write(tmp_path / "mine")
    assert names(tmp_path / "mine") == {"config.json"} and "this file system knows no locks" in caplog.text
