"""What a user can get wrong, through the command: models, run folders and checkpoints."""

import errno
import os
import resource
import shutil
from pathlib import Path

import pytest
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from burnish.models.tiny import write_tiny_model
from burnish.trainer.checkpoint import verify
from tests.bad_input.conftest import EACH, MODEL_KEY, assert_says


@pytest.fixture
def broken_model(place, tiny_model):
    """A copy of the model without the files of these names."""

    def make(*without: str) -> str:
        shutil.copytree(tiny_model, place / "broken")
        for pattern in without:
            for path in (place / "broken").glob(pattern):
                path.unlink()
        return "broken"

    return make


TOKENIZER = ("tokenizer*", "vocab*", "special*", "merges*", "chat_template*", "added*")


@EACH
@pytest.mark.parametrize(
    ("without", "parts"),
    [
        (("*.safetensors",), ["broken", "no weights", "*.safetensors"]),
        (TOKENIZER, ["broken: no tokenizer", "tokenizer.json", "model.tokenizer_path"]),
        (("config.json",), ["broken", "no config.json", "the model path must name"]),
    ],
    ids=["weights", "tokenizer", "configuration"],
)
def test_a_model_without_some_of_its_files(refuses, request, broken_model, command, without, parts):
    if "*.safetensors" not in without:  # the others are missed before a model is loaded
        request.getfixturevalue("no_model")
    assert_says(refuses(command, f"{MODEL_KEY[command]}={broken_model(*without)}"), *parts)


@EACH
@pytest.mark.parametrize("path", ["~/no/such/model", "no-such-model"])
def test_a_model_that_is_not_there(refuses, no_model, command, path):
    message = refuses(command, f"{MODEL_KEY[command]}={path}")
    assert_says(message, os.path.expanduser(path), "no such folder")


@EACH
def test_weights_that_are_cut_off(refuses, broken_model, command):
    folder = Path(broken_model())
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert_says(refuses(command, f"{MODEL_KEY[command]}={folder}"), "broken", "model.safetensors")


@EACH
def test_weights_that_are_no_numbers_are_not_blamed_on_the_learning_rate(refuses, broken_model, command):
    file = Path(broken_model()) / "model.safetensors"
    weights = load_file(file)
    weights["model.norm.weight"][3] = float("nan")
    save_file(weights, file, metadata={"format": "pt"})
    message = refuses(command, f"{MODEL_KEY[command]}=broken")
    assert_says(message, f"{MODEL_KEY[command]}=broken: the weights hold NaN or infinities, in ", "model.norm.weight")


FULL = "No space left on device"
SAVE, MKDIR = "burnish.engine.state.save_file", "pathlib.Path.mkdir"
UNWRITABLE = {
    "a full disk": (SAVE, OSError(errno.ENOSPC, FULL), [FULL, "free space"]),
    "as safetensors reports it": (SAVE, SafetensorError(f"I/O error: {FULL} (os error 28)"), [FULL, "free space"]),
    "read-only": (MKDIR, OSError(errno.EROFS, "Read-only file system"), ["Read-only file system"]),
}


@EACH
@pytest.mark.parametrize(("broken", "error", "parts"), UNWRITABLE.values(), ids=UNWRITABLE)
def test_a_disk_that_became_full_or_read_only(refuses, saved, place, monkeypatch, command, broken, error, parts):
    def refuse(target, *args, **kwargs):
        if broken == SAVE or target.name.startswith(".global_step_"):
            raise error
        mkdir(target, *args, **kwargs)

    before, mkdir = saved(command), Path.mkdir
    monkeypatch.setattr(broken, refuse)
    message = refuses(command, "trainer.total_training_steps=2")
    assert_says(message, "cannot write checkpoint run/global_step_2", "trainer.default_local_dir", *parts)
    assert not (place / "run/global_step_2").exists()
    verify(before)


@EACH
def test_a_run_folder_that_cannot_be(refuses, no_model, place, command):
    (place / "taken").write_text("a file")
    message = refuses(command, "trainer.default_local_dir=taken/run")
    assert_says(message, "trainer.default_local_dir=taken/run", "cannot write there")


@EACH
def test_a_full_disk_for_real(refuses, run, place, command):
    """The system itself refuses to let a file grow; after mending, the same command goes through."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, hard))
    try:
        message = refuses(command)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert_says(message, "cannot write checkpoint run/global_step_1", "File too large", "trainer.default_local_dir")
    code, _, err = run(command)
    assert code == 0, err
    assert (place / "run/global_step_1/model.safetensors").exists()


@pytest.fixture
def saved(run):
    """A finished run of one step; returns its checkpoint."""

    def make(command: str) -> Path:
        code, _, err = run(command)
        assert code == 0, err
        return Path("run/global_step_1")

    return make


WEIGHTS = {"ppo": "actor/model.safetensors", "sft": "model.safetensors", "rm": "model.safetensors"}


@EACH
def test_a_truncated_checkpoint(refuses, saved, request, command):
    folder = saved(command)
    request.getfixturevalue("no_model")  # from here on
    weights = folder / WEIGHTS[command]
    size = weights.stat().st_size
    os.truncate(weights, 100)
    message = refuses(command, f"trainer.resume_from_path={folder}", "trainer.total_training_steps=2")
    assert_says(message, "checkpoint run/global_step_1 is truncated", "resume from an earlier step")
    assert_says(message, f"model.safetensors has 100 bytes instead of {size}")


@EACH
def test_a_truncated_newest_checkpoint_is_passed_over_and_named(run, saved, refuses, command):
    whole = saved(command)
    damaged = shutil.copytree(whole, whole.with_name("global_step_2"), symlinks=True)
    (whole.parent / "latest_checkpointed_iteration.txt").write_text("2")
    os.truncate(damaged / WEIGHTS[command], 100)
    code, _, err = run(command)
    assert code == 0, err
    assert_says(err, "WARNING", "global_step_2", "model.safetensors")
    os.truncate(whole / WEIGHTS[command], 100)  # with no whole one left, starting over has to be asked for
    assert_says(refuses(command), "has checkpoints, but none is whole", "trainer.resume_mode=disable")


@EACH
def test_resuming_from_another_model(refuses, saved, place, command):
    saved(command)
    write_tiny_model(place / "other", hidden_size=16)
    message = refuses(command, f"{MODEL_KEY[command]}=other", "trainer.total_training_steps=2")
    assert_says(message, "run/global_step_1", "checkpoint of another model", "trainer.experiment_name")


def test_resuming_from_a_checkpoint_of_another_trainer(refuses, saved, place):
    saved("sft")
    message = refuses("ppo", "trainer.resume_from_path=run/global_step_1")
    assert_says(message, "run/global_step_1 is not a checkpoint of `burnish ppo`", "data/trainer.json")
    shutil.rmtree(place / "run")
    saved("ppo")
    message = refuses("sft", "trainer.resume_from_path=run/global_step_1", "trainer.default_local_dir=other")
    assert_says(message, "run/global_step_1 is not a checkpoint of `burnish sft`")
