"""Tokenizers, policies, value and reward models: every weight accounted for, no dropout, settings that fit."""

import re
import shutil
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from burnish.config.model import ModelConfig
from burnish.errors import ConfigError, ModelError
from burnish.models.loading import (
    check_reward_model,
    load_causal_lm,
    load_reward_model,
    load_tokenizer,
    load_unchanged,
    load_value_model,
)
from burnish.models.tiny import write_tiny_model
from tests.models.helpers import edit_json


@pytest.fixture
def folder(tiny_model, tmp_path):
    """A copy that a test may break."""
    return shutil.copytree(tiny_model, tmp_path / "model")


def test_a_policy_follows_its_settings(tiny_model):
    module = load_causal_lm(tiny_model, ModelConfig())
    assert (module.dtype, module.config._attn_implementation) == (torch.float32, "sdpa")
    assert module.is_gradient_checkpointing
    stored = load_file(tiny_model / "model.safetensors")
    assert all(torch.equal(module.get_parameter(name), tensor) for name, tensor in stored.items())
    config = ModelConfig(
        dtype="bfloat16", attn_implementation="eager", enable_gradient_checkpointing=False,
        override_config={"max_position_embeddings": 99},
    )  # fmt: skip
    module = load_causal_lm(tiny_model, config)
    assert (module.dtype, module.config._attn_implementation) == (torch.bfloat16, "eager")
    assert not module.is_gradient_checkpointing
    assert module.config.max_position_embeddings == 99
    assert load_causal_lm(tiny_model, config, dtype="float32").dtype == torch.float32


def test_weights_lie_where_products_of_them_do_not_depend_on_their_file(tiny_model, folder):
    file = folder / "model.safetensors"
    save_file(load_file(file), file, metadata={"format": "pt", "note": "a longer head moves all that follows"})
    modules = [load_causal_lm(place, ModelConfig()) for place in (tiny_model, folder)]
    assert not any(parameter.data_ptr() % 64 for module in modules for parameter in module.parameters())
    assert all(module.lm_head.weight is module.model.embed_tokens.weight for module in modules), "tied as before"


def test_dropout_is_off_but_in_a_copy_which_keeps_the_settings_of_the_folder(tmp_path):
    folder = write_tiny_model(tmp_path, attention_dropout=0.5)
    module = load_causal_lm(folder, ModelConfig(attn_implementation="eager")).train()
    assert module.config.attention_dropout == 0
    ids = torch.arange(3, 40)[None]
    assert torch.equal(module(ids).logits, module(ids).logits)
    gpt = load_causal_lm(write_tiny_model(tmp_path / "gpt", model_type="gpt2"), ModelConfig()).train()
    assert torch.equal(gpt(ids).logits, gpt(ids).logits)
    loaded = load_unchanged(folder)
    assert (loaded.module.config.attention_dropout, loaded.module.dtype) == (0.5, torch.float32)
    assert not loaded.module.training and not loaded.missing and not loaded.unused
    assert load_unchanged(folder, dtype="bfloat16").module.dtype == torch.bfloat16
    edit_json(folder / "config.json", dtype="float16")
    assert load_unchanged(folder).module.dtype == torch.float16
    values = load_unchanged(folder, values=True)
    assert values.module.num_labels == 1 and values.missing == ["score.bias", "score.weight"]


def test_value_model_head_comes_from_the_seed_or_from_the_folder(tiny_model, tmp_path):
    state = torch.get_rng_state()
    first, same, other = (load_value_model(tiny_model, ModelConfig(), seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first.score.weight, same.score.weight)
    assert not torch.equal(first.score.weight, other.score.weight)
    assert first.score.weight.shape == (1, 32) and first.score.bias.item() == 0
    assert 0.01 < first.score.weight.std() < 0.04
    policy = load_causal_lm(tiny_model, ModelConfig())
    assert torch.equal(first.model.norm.weight, policy.model.norm.weight)
    ids = torch.arange(3, 40)[None]
    first.train()
    assert first(ids).logits.shape == (1, 37, 1) and torch.equal(first(ids).logits, first(ids).logits)
    first.save_pretrained(tmp_path)
    plain = AutoModelForTokenClassification.from_pretrained(tmp_path)
    torch.testing.assert_close(plain.eval()(ids).logits, first.eval()(ids).logits)
    again = load_value_model(tmp_path, ModelConfig(), seed=99)  # its own head, not one from the seed
    assert torch.equal(again.score.weight, first.score.weight)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"intermediate_size": 64},
            r"layers\.0\.mlp\.down_proj\.weight is \(32, 128\) in the weights and \(32, 64\) .*6 such tensors",
        ),
        ({"model_type": "quux"}, r"cannot load config\.json: .*quux"),
        (None, "model.safetensors: damaged or cut off"),
        (["gate", "up", "down"], r"the weights lack model\.layers\.1\.mlp\.down_proj\.weight, "),
    ],
    ids=["another size", "an unknown architecture", "a cut off file", "missing weights"],
)
def test_folders_that_cannot_be_loaded(folder, changes, words):
    file = folder / "model.safetensors"
    if isinstance(changes, dict):
        edit_json(folder / "config.json", **changes)
    elif changes is None:
        file.write_bytes(file.read_bytes()[:-1000])
    else:
        gone = [f"model.layers.1.mlp.{name}_proj.weight" for name in changes]
        left = {name: tensor for name, tensor in load_file(file).items() if name not in gone}
        save_file(left, file, metadata={"format": "pt"})
    for load in (load_causal_lm, load_value_model):
        with pytest.raises(ModelError, match=words):
            load(folder, ModelConfig())


def test_code_that_comes_with_a_model_is_not_run(folder, tmp_path):
    with pytest.raises(ModelError, match="cannot load the model: .*OPTConfig") as caught:
        load_value_model(write_tiny_model(tmp_path / "opt", model_type="opt"), ModelConfig())
    assert len(str(caught.value)) < 500, "it does not list every class that there is"
    (folder / "modeling_evil.py").write_text("raise SystemExit('ran')")
    edit_json(folder / "config.json", model_type="evil", auto_map={"AutoConfig": "modeling_evil.Evil"})
    words = r"runs its own Python code; .* next to the key .* model\.trust_remote_code=True"
    with pytest.raises(ModelError, match=words):
        load_causal_lm(folder, ModelConfig())


@pytest.mark.parametrize(
    ("name", "source", "said"),
    [
        ("lib_broken", "raise RuntimeError('no licence')", "RuntimeError: no licence"),
        ("lib_broken", "raise SystemExit(3)", "SystemExit: 3"),
        ("lib_broken", "def f(:", "lib_broken.py.*SyntaxError: "),
        ("lib_three", "", "no such file, and no module of that name"),
        ("..x", "", "TypeError: "),
    ],
)
def test_external_libraries_are_imported_and_one_that_fails_is_named(
    tiny_model, tmp_path, monkeypatch, name, source, said
):
    (tmp_path / "lib_broken.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    for good in ("lib_one", "lib_two"):
        (tmp_path / f"{good}.py").write_text("")
    load_causal_lm(tiny_model, ModelConfig(external_lib="lib_one, lib_two"))
    assert {"lib_one", "lib_two"} <= set(sys.modules)
    words = f"(?s){re.escape(f'model.external_lib={name}: ')}.*"
    with pytest.raises(ConfigError, match=words + said):
        load_causal_lm(tiny_model, ModelConfig(external_lib=name))


def test_tokenizers(tiny_model, folder, caplog):
    tokenizer = load_tokenizer(tiny_model)
    assert tokenizer.decode(tokenizer("a+1")["input_ids"]) == "a+1"
    assert not caplog.records
    edit_json(folder / "tokenizer_config.json", pad_token=None)
    edit_json(folder / "tokenizer.json", padding=None)
    tokenizer = load_tokenizer(folder)
    assert tokenizer.pad_token == tokenizer.eos_token == "<|end|>"
    assert f"{folder}: no pad token; <|end|> is used for padding" in caplog.text
    (folder / "tokenizer.json").write_text('{"version": ')
    with pytest.raises(ModelError, match="cannot load the tokenizer: "):
        load_tokenizer(folder)
    for file in folder.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(ModelError, match=r"no tokenizer \(looked for tokenizer\.json, .* model\.tokenizer_path"):
        load_tokenizer(folder)


@pytest.fixture
def write_classifier(tiny_model, tmp_path):
    """A random classifier as transformers saves it."""

    def write(auto_class=AutoModelForSequenceClassification, labels=1, name="classifier", model=tiny_model):
        torch.manual_seed(3)
        module = auto_class.from_pretrained(model, num_labels=labels)
        module.save_pretrained(tmp_path / name)
        load_tokenizer(model).save_pretrained(tmp_path / name)
        return tmp_path / name

    return write


CLASSIFIERS = pytest.mark.parametrize(
    "auto_class", [AutoModelForSequenceClassification, AutoModelForTokenClassification]
)


@CLASSIFIERS
def test_reward_models_are_used_as_they_are(write_classifier, auto_class):
    folder = write_classifier(auto_class)
    check_reward_model(ModelConfig(path=str(folder)))
    module, plain = load_reward_model(folder, ModelConfig()), auto_class.from_pretrained(folder).eval()
    assert type(module) is type(plain) and not module.training
    ids = torch.arange(3, 20)[None]
    torch.testing.assert_close(module(ids).logits, plain(ids).logits, atol=1e-6, rtol=0)
    assert torch.equal(load_reward_model(folder, ModelConfig(), new_head_seed=99).score.weight, plain.score.weight)


@CLASSIFIERS
def test_two_labels_are_no_score(write_classifier, auto_class):
    folder = write_classifier(auto_class, labels=2)
    said = rf"{folder}: the classifier has 2 labels, a reward model has 1 .*train one with `burnish rm`"
    with pytest.raises(ModelError, match=said):
        check_reward_model(ModelConfig(path=str(folder)))
    with pytest.raises(ModelError, match=said):
        load_reward_model(folder, ModelConfig())
    edit_json(folder / "config.json", id2label={str(i): str(i) for i in range(5)}, label2id={})
    with pytest.raises(ModelError, match="has 5 labels"):
        check_reward_model(ModelConfig(path=str(folder)))


@CLASSIFIERS
@pytest.mark.parametrize("tied", [True, False])
def test_a_reward_model_is_no_policy(write_classifier, tmp_path, auto_class, tied):
    """With tied embeddings no weight would be missing."""
    language_model = write_tiny_model(tmp_path / "lm", tie_word_embeddings=tied)
    folder = write_classifier(auto_class, model=language_model)
    with pytest.raises(ModelError, match=rf"{folder}: Qwen2For\w+Classification gives scores .* name the folder of a"):
        load_causal_lm(folder, ModelConfig())
    assert load_value_model(folder, ModelConfig()).num_labels == 1


def test_a_language_model_is_no_reward_model_until_it_is_trained(tiny_model):
    with pytest.raises(ModelError, match=r"Qwen2ForCausalLM.* no head .*no reward model\. Train one .*`burnish rm`"):
        check_reward_model(ModelConfig(path=str(tiny_model)))
    with pytest.raises(ModelError, match=r"lack score\.weight, the head .*no reward model\. Train one .*`burnish rm`"):
        load_reward_model(tiny_model, ModelConfig())
    first, same, other = (load_reward_model(tiny_model, ModelConfig(), new_head_seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.score.weight, same.score.weight)
    assert not torch.equal(first.score.weight, other.score.weight)


def test_a_reward_model_without_a_tokenizer(write_classifier, tiny_model):
    folder = write_classifier()
    for file in [*folder.glob("tokenizer*"), *folder.glob("*.jinja")]:
        file.unlink()
    words = r"^reward_model\.model\.path: .*no tokenizer, .*reward_model\.model\.tokenizer_p"
    with pytest.raises(ModelError, match=words):
        check_reward_model(ModelConfig(path=str(folder)))
    with pytest.raises(ModelError, match=r"^reward_model\.model\.tokenizer_path: .*\./nowhere"):
        check_reward_model(ModelConfig(path=str(folder), tokenizer_path="./nowhere"))
    check_reward_model(ModelConfig(path=str(folder), tokenizer_path=str(tiny_model)))


def test_a_padding_token_is_set_for_training_only(write_classifier, folder):
    edit_json(folder / "config.json", pad_token_id=None)
    path = write_classifier(model=folder)
    assert load_reward_model(path, ModelConfig(), pad_token_id=5).config.pad_token_id is None
    assert load_reward_model(path, ModelConfig(), pad_token_id=5, new_head_seed=0).config.pad_token_id == 5


@pytest.mark.parametrize("model_type", ["qwen2", "gpt2", "llama"])
def test_a_value_model_starts_from_a_reward_models_head_of_one_label(write_classifier, tmp_path, model_type):
    """Before each token, what the reward model would say there; GPT-2 calls its two heads by two names."""
    path = write_classifier(model=write_tiny_model(tmp_path / "lm", model_type=model_type))
    judge = AutoModelForSequenceClassification.from_pretrained(path).eval()
    values = load_value_model(path, ModelConfig(), seed=1).eval()
    ids = torch.arange(3, 20)[None]
    with torch.no_grad():
        found = values(ids).logits[0, :, 0]
        for end in (1, 8, 17):
            assert found[end - 1].item() == pytest.approx(judge(ids[:, :end]).logits.item(), abs=1e-5)
    head = getattr(values, "score", None) or values.classifier
    assert head.bias.item() == 0
    words = r"score\.weight is \(2, 32\) in the weights and \(1, 32\)"
    if model_type == "gpt2":
        words = r"its head score\.weight cannot be used as the value head classifier\.weight"
    with pytest.raises(ModelError, match=words):
        load_value_model(write_classifier(labels=2, name="two", model=tmp_path / "lm"), ModelConfig())


def load(folder, **overrides):
    return load_causal_lm(folder, ModelConfig(override_config=overrides))


def test_settings_that_depend_on_an_overridden_one_are_derived_again(tiny_model):
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
