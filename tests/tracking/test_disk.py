"""Writing to disk: the old file or the new one, and errors that name what the user can change."""

import errno
import os

import pytest

from burnish.errors import CheckpointError
from burnish.tracking.disk import disk_problem, write_atomically


def test_a_problem_names_the_key_of_the_place():
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert disk_problem(full).endswith("name a place on another disk with trainer.default_local_dir")
    assert disk_problem(full, "--json").endswith("name a place on another disk with --json")
    assert disk_problem(OSError(errno.EIO, "Input/output error"), "data.output_path") == (
        "Input/output error: name another place with data.output_path"
    )


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    def full(_descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "figures.json"
    write_atomically(path, ["old"])
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"figures\.json: the disk is full.*with data\.output_path"):
        write_atomically(path, ["new"], "data.output_path")
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["figures.json"]
