"""What a user can get wrong, through the command: exit code 2, no traceback, and a message with thing, value and fix.

Here: models.
"""

import os
import shutil
from pathlib import Path

import pytest

from tests.bad_input.said import EACH, MODEL_KEY, assert_says


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


@EACH
def test_a_model_without_weights(refuses, broken_model, command):
    message = refuses(command, f"{MODEL_KEY[command]}={broken_model('*.safetensors')}")
    assert_says(message, "broken", "no weights", "*.safetensors")


@EACH
def test_a_model_without_tokenizer(refuses, no_model, broken_model, command):
    folder = broken_model("tokenizer*", "vocab*", "special*", "merges*", "chat_template*", "added*")
    message = refuses(command, f"{MODEL_KEY[command]}={folder}")
    assert_says(message, "broken: no tokenizer", "tokenizer.json", "model.tokenizer_path")


@EACH
def test_a_model_without_configuration(refuses, no_model, broken_model, command):
    message = refuses(command, f"{MODEL_KEY[command]}={broken_model('config.json')}")
    assert_says(message, "broken", "no config.json", "the model path must name")


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
