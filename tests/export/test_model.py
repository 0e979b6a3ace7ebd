"""Whole models: what comes out is what went in, in the type that was asked for, and nothing of the training."""

import json
import math
import shutil
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForTokenClassification,
    AutoTokenizer,
    GenerationConfig,
)

from burnish.config.model import ModelConfig
from burnish.errors import ModelError
from burnish.export import check, model
from burnish.export.check import Bench, behaviour, make_probes, measure
from burnish.export.place import copy_tokenizer
from burnish.export.source import ExportRequest
from burnish.models.loading import load_causal_lm, read_tokenizer
from burnish.models.tiny import write_tiny_model
from tests.models.helpers import edit_json

CLEAN = {
    "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
    "chat_template.jinja",
}  # fmt: skip


def names(folder):
    return {path.name for path in folder.iterdir()}


@pytest.fixture
def source(tiny_model, tmp_path):
    """A model folder that a test may change."""
    return shutil.copytree(tiny_model, tmp_path / "source")


def test_a_checkpoint_becomes_a_clean_folder_with_the_same_logits(run, go, logits, tmp_path):
    source = run / "global_step_10"
    before = {path: path.stat().st_mtime_ns for path in source.rglob("*")}
    report = go(source)
    out = tmp_path / "out"
    assert names(out) == CLEAN and not any(path.is_symlink() for path in out.rglob("*"))
    assert torch.equal(logits(out), logits(source / "actor"))
    assert json.loads((out / "config.json").read_text())["dtype"] == "float32"
    assert report.facts.found.largest == 0 and report.facts.tokens > 200
    assert {path: path.stat().st_mtime_ns for path in source.rglob("*")} == before
    assert names(tmp_path) == {"out"}, "no temporary folder is left"


@pytest.mark.parametrize("tied", [True, False])
def test_settings_embeddings_and_tokenizer_are_kept(go, logits, tmp_path, tied):
    source, out = tmp_path / "source", tmp_path / "out"
    write_tiny_model(source, tie_word_embeddings=tied, attention_dropout=0.25)
    GenerationConfig(do_sample=True, temperature=0.7, eos_token_id=[1, 2], pad_token_id=0).save_pretrained(source)
    go(source)
    assert torch.equal(logits(out), logits(source))
    assert json.loads((out / "config.json").read_text())["attention_dropout"] == 0.25
    module = AutoModelForCausalLM.from_pretrained(out)
    assert (module.get_input_embeddings().weight is module.get_output_embeddings().weight) == tied
    assert ("lm_head.weight" in load_file(out / "model.safetensors")) != tied
    kept = GenerationConfig.from_pretrained(out)
    assert (kept.do_sample, kept.temperature, kept.eos_token_id, kept.pad_token_id) == (True, 0.7, [1, 2], 0)
    ours, theirs = (AutoTokenizer.from_pretrained(path) for path in (out, source))
    chat = [{"role": "user", "content": "1+1?"}]
    assert ours.apply_chat_template(chat, tokenize=False) == theirs.apply_chat_template(chat, tokenize=False) != ""
    assert ours("a 東")["input_ids"] == theirs("a 東")["input_ids"]


def test_a_cast_is_the_source_cast_the_same_way_and_shards_have_an_index(run, go, logits, tmp_path):
    source, out = run / "global_step_10", tmp_path / "out"
    report = go(source, dtype="bfloat16")
    assert json.loads((out / "config.json").read_text())["dtype"] == "bfloat16"
    assert torch.equal(logits(out), logits(source / "actor", dtype=torch.bfloat16))
    assert {tensor.dtype for tensor in load_file(out / "model.safetensors").values()} == {torch.bfloat16}
    assert report.facts.found.largest == 0
    gap = report.facts.from_float32
    assert gap and 0 < gap.mean < gap.largest < 0.5
    widened = go(out, "wide", dtype="float32")
    assert widened.facts.from_float32 is None and widened.facts.dtype == "float32"
    go(source, "shards", max_shard_bytes=50_000)
    shards = sorted((tmp_path / "shards").glob("model-*.safetensors"))
    index = json.loads((tmp_path / "shards/model.safetensors.index.json").read_text())
    assert len(shards) > 1 and all(shard.stat().st_size < 55_000 for shard in shards)
    assert set(index["weight_map"].values()) == {shard.name for shard in shards}
    assert torch.equal(logits(tmp_path / "shards"), logits(source / "actor"))
    assert go(tmp_path / "shards", "again").facts.found.largest == 0, "a sharded folder can be exported too"


def test_what_a_source_stores_counts_its_types_and_its_unknown_weights(source, go, tmp_path):
    edit_json(source / "config.json", dtype="bfloat16")
    spoil(source, lambda tensors: tensors.update({"extra.head": torch.zeros(3)}))
    report = go(source)
    assert report.facts.dtype == "float32"
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "float32"
    assert "the architecture does not use it: extra.head" in str(report)
    assert "extra.head" not in load_file(tmp_path / "out" / "model.safetensors")


def test_the_critic_is_a_token_classifier_with_one_label(run, go, logits, tmp_path):
    report = go(run / "global_step_10", role="critic")
    kind = AutoModelForTokenClassification
    values = logits(tmp_path / "out", kind=kind)
    assert values.shape == (2, 31, 1) and report.facts.kind == "Qwen2ForTokenClassification"
    assert torch.equal(values, logits(run / "global_step_10" / "critic", kind=kind))
    assert names(tmp_path / "out") == CLEAN - {"generation_config.json"}
    assert "values of" in str(report) and "burnish chat" not in str(report)


def test_a_pickle_is_read_as_transformers_does_and_reported(source, tiny_model, go, logits, tmp_path):
    torch.save(load_file(source / "model.safetensors"), source / "pytorch_model.bin")
    (source / "model.safetensors").unlink()
    go(source)
    assert names(tmp_path / "out") == CLEAN
    assert torch.equal(logits(tmp_path / "out"), logits(tiny_model))
    assert any("pytorch_model.bin is a pickle; transformers reads it with weights_only" in line for line in go.told)


def test_code_of_a_model_is_run_and_copied_only_when_trusted(source, tiny_model, go, logits, tmp_path):
    (source / "modeling_own.py").write_text(
        "from transformers import Qwen2Config, Qwen2ForCausalLM\n"
        "class OwnConfig(Qwen2Config):\n    model_type = 'own'\n"
        "class OwnForCausalLM(Qwen2ForCausalLM):\n    config_class = OwnConfig\n"
    )
    classes = {"AutoConfig": "modeling_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}
    edit_json(source / "config.json", model_type="own", auto_map=classes)
    with pytest.raises(ModelError, match="runs its own Python code; .*--trust-remote-code"):
        go(source)
    go(source, trust_remote_code=True)
    assert names(tmp_path / "out") == CLEAN | {"modeling_own.py"}
    assert torch.equal(logits(tmp_path / "out", trust_remote_code=True), logits(tiny_model))


def spoil(folder, change):
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


def untie(folder, **settings):
    edit_json(folder / "config.json", tie_word_embeddings=False, **settings)
    spoil(folder, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}))


@pytest.mark.parametrize(
    ("corrupt", "words"),
    [
        (lambda f: spoil(f, lambda t: t["model.embed_tokens.weight"][7].zero_()), "model.embed_tokens.weight"),
        (lambda f: spoil(f, lambda t: t["model.norm.weight"].view(torch.int32)[3].add_(1)), "model.norm.weight is not"),
        (lambda f: spoil(f, lambda t: t.pop("model.norm.weight")), "the weights lack model.norm.weight"),
        # all weights are the same, but the log-probs differ
        (
            lambda f: edit_json(f / "config.json", rms_norm_eps=0.1),
            r"not put in place: the log-probs .* differ by .*, where 1e-06 and 1e-05 are allowed",
        ),
        (lambda f: (f / "chat_template.jinja").write_text("{{ messages[0].content }}"), "gives other chat, ids"),
    ],
)
def test_a_corrupted_export_is_caught_and_not_put_in_place(run, go, tmp_path, monkeypatch, corrupt, words):
    def copy_and_corrupt(source, tokenizer, folder):
        copy_tokenizer(source, tokenizer, folder)
        corrupt(folder)

    monkeypatch.setattr(model, "copy_tokenizer", copy_and_corrupt)
    with pytest.raises(ModelError, match=words):
        go(run / "global_step_10")
    assert names(tmp_path) == set()


def test_a_source_that_diverged_or_lacks_weights_is_not_exported(source, go):
    spoil(source, lambda t: t["model.norm.weight"].fill_(math.nan))
    with pytest.raises(ModelError, match=r"weights of model\.norm\.weight are not finite, so training"):
        go(source)
    spoil(source, lambda t: t.pop("model.norm.weight"))
    with pytest.raises(ModelError, match=r"source: the weights lack model\.norm\.weight"):
        go(source)


def test_a_cast_that_overflows_where_no_probe_looks(source, go, tmp_path):
    bench = Bench(ExportRequest(str(source), tmp_path), SimpleNamespace(values=False, tokenizer=source, model=source))
    unseen = max(set(range(259)) - {token for probe in bench.probes for token in probe})
    untie(source)
    spoil(source, lambda tensors: tensors["model.embed_tokens.weight"][unseen].mul_(1e9))
    with pytest.raises(ModelError, match=r"weights of model\.embed_tokens\.weight are not finite, .*too large for"):
        go(source, dtype="float16")
    assert names(tmp_path) == {"source"}
    go(source, dtype="bfloat16")


def test_a_cast_that_changes_the_model_is_an_error_and_weights_that_become_0_are_counted(source, go, tmp_path):
    spoil(source, lambda t: t["model.layers.0.mlp.down_proj.weight"].clamp_(-1e-9, 1e-9))
    assert "4,096 weights (9.9%) are too small for float16" in str(go(source, "zeros", dtype="float16"))
    assert not go(source, "other", dtype="bfloat16").facts.notes
    untie(source, rms_norm_eps=1e-20)
    spoil(source, lambda tensors: tensors["lm_head.weight"].mul_(50))
    spoil(source, lambda tensors: tensors["model.embed_tokens.weight"].mul_(1e-7))  # all 0 in float16
    with pytest.raises(ModelError, match=r"not put in place: the log-probs of source and export, both in float32, dif"):
        go(source, dtype="float16")
    assert names(tmp_path) == {"source", "zeros", "other"}


@pytest.mark.parametrize("kind", ["cast", "merged"])
def test_source_and_export_are_not_in_memory_together(run, make_adapter, go, monkeypatch, kind):
    load, models, alive = check.load_unchanged, [], []

    def watched(*args, **options):
        alive.append(any(model() is not None for model in models))
        loaded = load(*args, **options)
        models.append(weakref.ref(loaded.module))
        return loaded

    monkeypatch.setattr(check, "load_unchanged", watched)
    go(run / "global_step_10" if kind == "cast" else make_adapter(), dtype="bfloat16")
    assert alive == [False, False, False]


@pytest.fixture
def generation(tiny_model, tmp_path):
    """generation_config.json of such a text, and what was changed in it to go with the tokenizer."""

    def run(text: str | None, **changes):
        tokenizer = read_tokenizer(tiny_model)
        for name, value in changes.items():
            setattr(tokenizer, name, value)
        if text is not None:
            (tmp_path / "generation_config.json").write_text(text)
        source = SimpleNamespace(folder=tmp_path, model=tmp_path)
        return model.generation_config(source, AutoConfig.from_pretrained(tiny_model), tokenizer)

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
def test_ends_and_padding_go_with_the_tokenizer(generation, text, changes, eos, pad, note):
    settings, notes = generation(text, **changes)
    assert (settings.eos_token_id, settings.pad_token_id) == (eos, pad)
    assert note in notes[0] if note else not notes


def test_settings_of_sampling_without_sampling_and_settings_that_cannot_be_fixed(generation, tmp_path):
    settings, notes = generation('{"eos_token_id": 1, "pad_token_id": 0, "temperature": 0.6}')
    assert settings.do_sample and settings.temperature == 0.6 and "do_sample became True" in notes[0]
    settings.save_pretrained(tmp_path / "saved")
    for text in ('{"eos_token_id": ', '{"num_return_sequences": 3, "num_beams": 2, "eos_token_id": 1}'):
        with pytest.raises(ModelError, match=r"generation_config\.json") as caught:
            generation(text)
        assert "\n" not in str(caught.value)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_models_and_adapters_on_the_gpu(run, make_adapter, tiny_model, go, logits, tmp_path, dtype):
    copied = go(run, "copied", device="cuda", dtype=dtype)
    assert copied.facts.found.largest <= copied.facts.allowed.largest
    adapter = make_adapter()
    merged = go(adapter, "merged", device="auto", dtype=dtype)
    assert merged.facts.from_float32.mean < merged.facts.effect.mean / 2
    assert torch.allclose(logits(tmp_path / "merged").float(), logits(tiny_model, adapter), atol=0.1)


@pytest.fixture(scope="module")
def tokenizer(tiny_model):
    return read_tokenizer(tiny_model)


def test_probes_are_a_chat_and_random_tokens_that_fit_the_model(tokenizer):
    probes = make_probes(tokenizer, 259, 512)
    assert probes == make_probes(tokenizer, 259, 512)
    assert tokenizer.decode(probes[0]).startswith("<|start|>user\nWhat is 347+586?")
    assert [len(probe) for probe in probes[1:]] == [2, 17, 64, 160]
    assert len({token for probe in probes for token in probe}) > 150
    assert {len(probe) for probe in make_probes(tokenizer, 259, 40)} == {40, 2, 17}
    with pytest.raises(ModelError, match=r"the tokenizer gives the token \d+, but the model knows only 50 tokens"):
        make_probes(tokenizer, 50, 512)


def test_log_probs_are_those_of_the_next_tokens(tiny_model):
    module, probe = load_causal_lm(tiny_model, ModelConfig()).eval(), [5, 9, 200, 7]
    (found,) = measure(module, [probe], values=False, what=Path("m"))
    with torch.no_grad():
        everything = module(torch.tensor([probe])).logits[0].log_softmax(-1)
    assert torch.allclose(found, everything[[0, 1, 2], probe[1:]], atol=1e-6)


def test_a_chat_template_that_cannot_render_the_probe(tokenizer, tiny_model):
    other = read_tokenizer(tiny_model)
    other.chat_template = "{{ raise_exception('only tools') }}"
    said = behaviour(other)["chat"]
    assert said.startswith("not rendered: ") and said.endswith(": only tools")
    assert behaviour(other) == behaviour(other) != behaviour(tokenizer)
    other.chat_template = None
    assert behaviour(other)["chat"].startswith("What is 347+586?")
