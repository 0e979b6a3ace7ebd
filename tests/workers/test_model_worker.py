"""What workers do before they have a model; and the tokenizer's files of a checkpoint, which are made once."""

import errno
import os
import tempfile

import pytest
import torch

from burnish.config import PPOConfig
from burnish.config.model import ModelConfig
from burnish.config.optim import OptimConfig
from burnish.engine.trainable import Trainable
from burnish.errors import CheckpointError
from burnish.models.loading import load_causal_lm, load_tokenizer
from burnish.trainer.checkpoint import disk_errors
from burnish.workers.model_worker import ModelFolder, ModelWorker, _sync_files, written_now


def test_files_can_be_written_again_anywhere(tmp_path):
    def write(folder):
        (folder / "inner").mkdir()
        (folder / "inner" / "file").write_bytes(b"\x00\xff")

    again = written_now(write)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        again(tmp_path / name)
        assert (tmp_path / name / "inner" / "file").read_bytes() == b"\x00\xff"


def full(_folder):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def full_for_tokenizers(_folder):
    raise Exception("No space left on device (os error 28)")  # as the tokenizers library raises it


def broken(_folder):
    raise ValueError("of the tokenizer itself")


@pytest.mark.parametrize("write", [full, full_for_tokenizers])
def test_a_full_temporary_folder_is_not_taken_for_a_full_checkpoint(tmp_path, monkeypatch, write):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(CheckpointError) as error, disk_errors(tmp_path / "run"):
        written_now(write)
    assert f"temporary folder {tmp_path}: " in str(error.value) and "No space left on device" in str(error.value)
    assert "TMPDIR" in str(error.value) and "default_local_dir" not in str(error.value)
    with pytest.raises(ValueError, match="of the tokenizer itself"):
        written_now(broken)  # an error of another kind is raised as it is


def test_a_missing_temporary_folder_is_named_or_those_that_were_tried(tmp_path, monkeypatch, tiny_model):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(CheckpointError, match=r"temporary folder .*/gone: .*No such file.*TMPDIR"):
        written_now(load_tokenizer(tiny_model).save_pretrained)
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


def test_files_that_another_process_is_writing_may_go_while_ours_are_synced(tmp_path, monkeypatch):
    ours, theirs, opened = tmp_path / "ours", tmp_path / ".tmp0", []
    ours.touch()
    theirs.touch()
    system_open = os.open

    def open_when_theirs_is_gone(path, flags):
        theirs.unlink(missing_ok=True)
        opened.append(path)
        return system_open(path, flags)

    monkeypatch.setattr(os, "open", open_when_theirs_is_gone)
    _sync_files(tmp_path)
    assert {ours, theirs, tmp_path} == set(opened)


@pytest.fixture
def as_it_was():
    state, strict = torch.get_rng_state(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.use_deterministic_algorithms(strict)
    torch.set_rng_state(state)


def test_a_worker_is_seeded_also_where_it_is_alone(monkeypatch, as_it_was):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    config = PPOConfig()
    config.trainer.seed, config.trainer.deterministic = 5, True
    torch.rand(3)
    ModelWorker(config, 1)
    drawn = torch.rand(3)
    assert torch.equal(drawn, torch.rand(3, generator=torch.Generator().manual_seed(5)))
    assert torch.are_deterministic_algorithms_enabled()
