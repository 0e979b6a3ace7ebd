"""The folder appears whole or not at all; what may be replaced, and what a full disk says."""

import errno
import os
from pathlib import Path

import pytest
from safetensors import SafetensorError

from burnish.errors import CheckpointError, ConfigError
from burnish.export import place
from burnish.export.place import check_apart, check_out, new_folder, writing


def write(out: Path, text: str = "new", overwrite: bool = False) -> None:
    with new_folder(out, 0, overwrite=overwrite) as folder:
        (folder / "config.json").write_text(text)
        assert not (out / "config.json").exists() or (out / "config.json").read_text() != text


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_it_appears_when_it_is_done(tmp_path):
    out = tmp_path / "models" / "mine"
    umask = os.umask(0o022)
    try:
        write(out)
    finally:
        os.umask(umask)
    assert (out / "config.json").read_text() == "new" and names(out.parent) == {"mine"}
    assert (out / "config.json").stat().st_mode & 0o777 == 0o644 and out.stat().st_mode & 0o777 == 0o755


def test_an_empty_folder_is_filled(tmp_path):
    out = tmp_path / "mine"
    out.mkdir()
    write(check_out(out, overwrite=False))
    assert names(out) == {"config.json"}


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_nothing_is_left_of_one_that_failed(tmp_path, error):
    with pytest.raises(type(error)), new_folder(tmp_path / "mine", 0, overwrite=False) as folder:
        (folder / "config.json").write_text("half")
        raise error
    assert names(tmp_path) == set()


def test_what_a_killed_export_left_is_used_again(tmp_path):
    left = tmp_path / ".mine.exporting"
    (left / "deep").mkdir(parents=True)
    (left / "deep" / "model-00001.safetensors").write_text("half")
    write(tmp_path / "mine")
    assert names(tmp_path) == {"mine"} and names(tmp_path / "mine") == {"config.json"}


def test_two_exports_at_a_time(tmp_path):
    out = tmp_path / "mine"
    with new_folder(out, 0, overwrite=False) as folder:
        (folder / "config.json").write_text("first")
        with pytest.raises(ConfigError, match=r"mine: another export is writing there; wait for it"):
            write(out, "second")
        assert (folder / "config.json").read_text() == "first"
    assert (out / "config.json").read_text() == "first"


def test_a_folder_that_is_there_is_replaced_only_when_asked(tmp_path):
    out = tmp_path / "mine"
    write(out, "old")
    (out / "model-00002.safetensors").write_text("of the old one")
    with pytest.raises(ConfigError, match=r"--out .*/mine is there and not empty; .* replace it with --overwrite"):
        check_out(out, overwrite=False)
    write(check_out(out, overwrite=True), "new", overwrite=True)
    assert (out / "config.json").read_text() == "new" and names(out) == {"config.json"} and names(tmp_path) == {"mine"}


def test_a_failed_replacement_leaves_the_old_one(tmp_path, monkeypatch):
    out = tmp_path / "mine"
    write(out, "old")
    rename = Path.rename

    def fail(self, target):
        if self.name.endswith(".exporting"):
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(CheckpointError, match="cannot write .*/mine: Input/output error"):
        write(out, "new", overwrite=True)
    assert (out / "config.json").read_text() == "old" and names(tmp_path) == {"mine"}


@pytest.mark.parametrize(
    ("inside", "words"),
    [
        (["notes.txt"], "it is not a model folder"),
        (["config.json", "global_step_3"], "it holds global_step_3, so it belongs to a training run"),
        (["config.json", "engine.json"], "it holds engine.json"),
    ],
)
def test_overwriting_takes_no_other_folders(tmp_path, inside, words):
    for name in inside:
        (tmp_path / name).write_text("")
    with pytest.raises(ConfigError, match=f"is not replaced: {words}"):
        check_out(tmp_path, overwrite=True)


def test_a_file_in_its_place(tmp_path):
    (tmp_path / "mine").write_text("")
    with pytest.raises(ConfigError, match=r"mine is a file; name a folder"):
        check_out(tmp_path / "mine", overwrite=True)
    with pytest.raises(
        CheckpointError, match="cannot write .*below: Not a directory|cannot write .*below: File exists"
    ):
        write(tmp_path / "mine" / "below")


def test_out_and_source_are_apart(tmp_path):
    source = tmp_path / "run" / "global_step_3"
    for out, words in ((source, "is the source"), (source / "x", "lies inside"), (tmp_path, "holds the source")):
        with pytest.raises(ConfigError, match=f"--out {out} {words}.*choose a folder outside of it"):
            check_apart(out, [source])
    check_apart(tmp_path / "run" / "export", [source])


def test_a_disk_that_is_too_small_is_told_at_once(tmp_path):
    too_small = pytest.raises(CheckpointError, match=r"needs 1000000\.0 GB, and .* are free there; free some space")
    with too_small, new_folder(tmp_path / "mine", 10**15, overwrite=False):
        raise AssertionError("not reached")
    assert names(tmp_path) == set()


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_disk_that_fills_up(tmp_path, error):
    full = pytest.raises(CheckpointError, match=r"cannot write mine: .*No space left on device.* with --out")
    with full, writing(Path("mine")):
        raise error


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(place.fcntl, "flock", no_locks)
    write(tmp_path / "mine")
    assert names(tmp_path) == {"mine"}
