"""Writing to disk: the old file or the new one, and errors that name what the user can change."""

import errno
import json
import math
import os
import sys

import numpy as np
import pytest

from burnish.errors import CheckpointError
from burnish.tracking.disk import disk_problem, json_line, write_atomically


def test_problem_names_the_key_of_the_place():
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert disk_problem(full).endswith("name a place on another disk with trainer.default_local_dir")
    assert disk_problem(full, "--json").endswith("name a place on another disk with --json")
    assert disk_problem(OSError(errno.EIO, "Input/output error"), "data.output_path") == (
        "Input/output error: name another place with data.output_path"
    )


def test_lines_of_many_numbers_always_parse():
    large = sys.float_info.max
    values = {"finite": [1.5, -0.25], "whole": (1, 10**400), "not": [1.5, math.inf, math.nan], "large": [large, large]}
    sets = {"mixed": [1, 2.5, True, None, "a"], "arrays": [np.float32(0.5), np.arange(2)], "none": []}
    read = json.loads(json_line(values | sets))
    assert read["finite"] == [1.5, -0.25] and read["whole"] == [1, 10**400] and read["large"] == [large, large]
    assert read["not"] == [1.5, "inf", "nan"]
    assert read["mixed"] == [1, 2.5, True, None, "a"] and read["arrays"] == [0.5, [0, 1]] and read["none"] == []


def test_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    def full(_descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "figures.json"
    write_atomically(path, ["old"])
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"figures\.json: the disk is full.*with data\.output_path"):
        write_atomically(path, ["new"], "data.output_path")
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["figures.json"]
