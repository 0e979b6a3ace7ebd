"""`override_config`: settings that are applied, and those that do not fit the weights or have no effect."""

import pytest
import torch

from burnish.config.model import ModelConfig
from burnish.errors import ConfigError, ModelError
from burnish.models.loading import load_causal_lm, load_value_model
from burnish.models.tiny import write_tiny_model


def load(folder, **overrides):
    return load_causal_lm(folder, ModelConfig(override_config=overrides))


def test_what_follows_from_a_setting_is_derived_again(tiny_model):
    ids = torch.arange(3, 40)[None]
    plain = load(tiny_model)
    assert plain.config.rope_parameters["rope_theta"] == 10000
    far, same = load(tiny_model, rope_theta=5e5), load(tiny_model, rope_parameters={"rope_theta": 5e5})
    assert far.config.rope_parameters == same.config.rope_parameters == {"rope_theta": 5e5, "rope_type": "default"}
    assert not torch.allclose(far(ids).logits, plain(ids).logits)
    assert torch.equal(far(ids).logits, same(ids).logits)
    stretched = load(tiny_model, rope_parameters={"rope_type": "linear", "factor": 2.0})
    assert stretched.config.rope_parameters["rope_theta"] == 10000, "what is not named stays"
    other = load(tiny_model, max_position_embeddings=99, rms_norm_eps=1e-3)
    assert (other.config.max_position_embeddings, other.config.rms_norm_eps) == (99, 1e-3)
    module = load(tiny_model, model_type="qwen2", attention_dropout=0.0, num_hidden_layers=2)  # as they were
    assert torch.equal(module.lm_head.weight, plain.lm_head.weight)


def test_other_names_of_a_setting_are_known_and_an_output_layer_is_not_dropped(tmp_path):
    untied = write_tiny_model(tmp_path / "untied", tie_word_embeddings=False)
    with pytest.raises(ConfigError, match="tie_word_embeddings=true: .* output layer that would be left unused"):
        load(untied, tie_word_embeddings=True)
    assert load(untied, tie_word_embeddings=False).config.tie_word_embeddings is False
    folder = write_tiny_model(tmp_path / "gpt", model_type="gpt2")
    assert load(folder, layer_norm_epsilon=1e-3).config.layer_norm_epsilon == 1e-3
    for name in ("num_hidden_layers", "n_layer"):
        with pytest.raises(ConfigError, match=rf"{name}=1: .*transformer\.h\.1\..* would be left unused"):
            load(folder, **{name: 1})


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"num_hidden_layers": 1}, r"num_hidden_layers=1: .*model\.layers\.1\..* would be left unused; leave"),
        ({"num_hidden_layers": 3}, r"num_hidden_layers=3: .*there is no model\.layers\.2\..*; leave it out"),
        ({"intermediate_size": 64}, r"intermediate_size=64: .*\.weight would be \(32, 64\) and is \(32, 128\)"),
        ({"tie_word_embeddings": False}, r"tie_word_embeddings=false: .*no separate output layer; leave it out"),
        ({"model_type": "llama"}, r"model_type=llama: .* holds a qwen2 model; leave it out"),
        ({"dtype": "bfloat16"}, r"dtype=bfloat16: .* model\.dtype"),
        ({"attention_dropout": 0.5}, r"attention_dropout=0\.5: dropout is always 0 here"),
        ({"rope_tetha": 1e6}, r"rope_tetha: qwen2 models have no such setting \(nearest: "),
    ],
)  # fmt: skip
def test_what_parts_a_model_from_its_weights_or_means_nothing_is_refused(tiny_model, overrides, said):
    for function in (load_causal_lm, load_value_model):
        with pytest.raises(ConfigError, match=rf"model\.override_config(\.| with ){said}"):
            function(tiny_model, ModelConfig(override_config=overrides))


def test_a_value_of_another_type_names_the_setting(tiny_model):
    for overrides, said in (
        ({"vocab_size": "x"}, "with model.override_config vocab_size=x: .*vocab_size"),
        ({"rope_parameters": 5}, "with model.override_config rope_parameters=5: .*rope_parameters"),
        ({"num_hidden_layers": "two"}, "with model.override_config num_hidden_layers=two: .*num_hidden_layers"),
    ):
        with pytest.raises(ModelError, match=rf"(?s)cannot load config.json {said}"):
            load(tiny_model, **overrides)
