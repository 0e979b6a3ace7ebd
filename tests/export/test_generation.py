"""generation_config.json goes with the tokenizer, and what was changed is reported."""

from types import SimpleNamespace

import pytest
from transformers import AutoConfig

from burnish.errors import ModelError
from burnish.export.model import generation_config
from burnish.models.loading import read_tokenizer


@pytest.fixture
def make(tiny_model, tmp_path):
    def run(text: str | None, **changes):
        tokenizer = read_tokenizer(tiny_model)
        for name, value in changes.items():
            setattr(tokenizer, name, value)
        if text is not None:
            (tmp_path / "generation_config.json").write_text(text)
        source = SimpleNamespace(folder=tmp_path, model=tmp_path)
        return generation_config(source, AutoConfig.from_pretrained(tiny_model), tokenizer)

    return run


@pytest.mark.parametrize(
    ("text", "changes", "eos", "pad", "note"),
    [
        ('{"eos_token_id": [5, 1], "pad_token_id": 0, "do_sample": true, "top_p": 0.8}', {}, [5, 1], 0, None),
        (None, {}, 1, 0, None),  # follows from the model's configuration
        ('{"eos_token_id": 5, "pad_token_id": 0}', {}, [1, 5], 0, "eos_token_id 5 became [1, 5], to stop where the"),
        ('{"eos_token_id": [1, 99999], "pad_token_id": -1}', {"pad_token": None}, 1, 1, "eos_token_id [1, 99999]"),
        ('{"eos_token_id": 1, "pad_token_id": 7}', {}, 1, 0, "pad_token_id 7 became 0, as in the tokenizer"),
    ],
)
def test_ends_and_padding_go_with_the_tokenizer(make, text, changes, eos, pad, note):
    settings, notes = make(text, **changes)
    assert (settings.eos_token_id, settings.pad_token_id) == (eos, pad)
    assert note in notes[0] if note else not notes


def test_settings_of_sampling_without_sampling(make, tmp_path):
    settings, notes = make('{"eos_token_id": 1, "pad_token_id": 0, "temperature": 0.6}')
    assert settings.do_sample and settings.temperature == 0.6 and "do_sample became True" in notes[0]
    settings.save_pretrained(tmp_path / "saved")


@pytest.mark.parametrize(
    "text", ['{"eos_token_id": ', '{"num_return_sequences": 3, "num_beams": 2, "eos_token_id": 1}']
)
def test_one_that_cannot_be_fixed(make, text):
    with pytest.raises(ModelError, match=r"generation_config\.json") as caught:
        make(text)
    assert "\n" not in str(caught.value)
