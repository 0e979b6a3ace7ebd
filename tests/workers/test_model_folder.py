"""A tokenizer's files are made once and written again with each checkpoint; where they cannot be made is told."""

import errno
import os
import tempfile
import threading

import pytest

from burnish.config.model import ModelConfig
from burnish.config.optim import OptimConfig
from burnish.engine.trainable import Trainable
from burnish.errors import CheckpointError
from burnish.models.loading import load_causal_lm, load_tokenizer
from burnish.trainer.checkpoint import disk_errors
from burnish.workers.model_folder import ModelFolder, _sync_files, written_now


def test_files_can_be_written_again_anywhere(tmp_path):
    def write(folder):
        (folder / "inner").mkdir()
        (folder / "inner" / "file").write_bytes(b"\x00\xff")
        return "ignored"

    again = written_now(write)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        again(tmp_path / name)
        assert (tmp_path / name / "inner" / "file").read_bytes() == b"\x00\xff"


def full(_folder):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def full_for_tokenizers(_folder):
    raise Exception("No space left on device (os error 28)")  # as the tokenizers library raises it


@pytest.mark.parametrize("write", [full, full_for_tokenizers])
def test_a_full_temporary_folder_is_not_taken_for_a_full_checkpoint(tmp_path, monkeypatch, write):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(CheckpointError) as error, disk_errors(tmp_path / "run"):
        written_now(write)
    assert f"temporary folder {tmp_path}: " in str(error.value) and "No space left on device" in str(error.value)
    assert "TMPDIR" in str(error.value) and "default_local_dir" not in str(error.value)


def test_a_missing_temporary_folder_is_named(tmp_path, monkeypatch, tiny_model):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(CheckpointError, match=r"temporary folder .*/gone: .*No such file.*TMPDIR"):
        written_now(load_tokenizer(tiny_model).save_pretrained)


def test_without_any_temporary_folder_those_tried_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "gone")])
    with pytest.raises(CheckpointError, match=r"No usable temporary directory found in .*gone.*TMPDIR"):
        written_now(full)


def test_a_folder_that_this_machine_does_not_see_is_named(tmp_path, tiny_model):
    module = load_causal_lm(tiny_model, ModelConfig())
    folder = ModelFolder(Trainable(module, OptimConfig(), total_steps=1), load_tokenizer(tiny_model))
    with pytest.raises(CheckpointError, match=r"/gone, which the run created, does not exist on .*default_local_dir"):
        folder.save(tmp_path / "gone" / "actor")
    assert not list(tmp_path.iterdir())
    folder.save(tmp_path / "actor")
    assert (tmp_path / "actor" / "tokenizer.json").is_file() and (tmp_path / "actor" / "engine.json").is_file()


def test_files_that_another_process_is_writing_may_go_while_ours_are_synced(tmp_path):
    done = threading.Event()

    def write_others():
        while not done.is_set():
            for number in range(20):
                (tmp_path / f".tmp{number}").write_bytes(b"")
            for number in range(20):
                (tmp_path / f".tmp{number}").rename(tmp_path / f"shard-{number}")

    other = threading.Thread(target=write_others)
    other.start()
    try:
        for _ in range(100):
            _sync_files(tmp_path)
    finally:
        done.set()
        other.join()


def test_an_error_of_another_kind_is_raised_as_it_is():
    def broken(_folder):
        raise ValueError("of the tokenizer itself")

    with pytest.raises(ValueError, match="of the tokenizer itself"):
        written_now(broken)
