"""generation_config.json goes with the tokenizer, and what was changed is said."""

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


def test_a_good_one_is_left_alone(make):
    settings, notes = make('{"eos_token_id": [5, 1], "pad_token_id": 0, "do_sample": true, "top_p": 0.8}')
    assert (settings.eos_token_id, settings.pad_token_id, settings.top_p, notes) == ([5, 1], 0, 0.8, [])


def test_without_a_file_it_follows_from_the_configuration(make):
    settings, notes = make(None)
    assert (settings.eos_token_id, settings.pad_token_id, notes) == (1, 0, [])


def test_the_end_of_the_tokenizer_is_added(make):
    settings, notes = make('{"eos_token_id": 5, "pad_token_id": 0}')
    assert settings.eos_token_id == [1, 5]
    assert notes == ["generation_config.json: eos_token_id 5 became [1, 5], to stop where the tokenizer does"]


def test_ids_outside_of_the_vocabulary_go(make):
    settings, _ = make('{"eos_token_id": [1, 99999], "pad_token_id": -1}', pad_token=None)
    assert (settings.eos_token_id, settings.pad_token_id) == (1, 1)


def test_the_padding_of_the_tokenizer_counts(make):
    settings, notes = make('{"eos_token_id": 1, "pad_token_id": 7}')
    assert settings.pad_token_id == 0 and "pad_token_id 7 became 0, as in the tokenizer" in notes[0]


def test_settings_of_sampling_without_sampling(make, tmp_path):
    settings, notes = make('{"eos_token_id": 1, "pad_token_id": 0, "temperature": 0.6}')
    assert settings.do_sample and settings.temperature == 0.6 and "do_sample became True" in notes[0]
    settings.save_pretrained(tmp_path / "saved")


@pytest.mark.parametrize(
    "text", ['{"eos_token_id": ', '{"num_return_sequences": 3, "num_beams": 2, "eos_token_id": 1}']
)
def test_one_that_cannot_be_mended(make, text):
    with pytest.raises(ModelError, match=r"generation_config\.json") as caught:
        make(text)
    assert "\n" not in str(caught.value)
