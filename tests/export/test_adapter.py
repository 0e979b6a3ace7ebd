"""LoRA adapters, merged and alone, against base and adapter run unmerged by peft."""

import json
import shutil

import pytest
import torch
from peft.tuners.lora import Linear
from safetensors.torch import load_file, save_file
from transformers import AutoModelForTokenClassification

from burnish.errors import ConfigError, ModelError
from burnish.export import model
from burnish.export.place import copy_tokenizer
from tests.models.helpers import edit_json


def test_an_adapter_is_merged_into_its_base(make_adapter, tiny_model, go, logits, tmp_path):
    adapter = make_adapter()
    report = go(adapter)
    merged, unmerged, base = logits(tmp_path / "out"), logits(tiny_model, adapter), logits(tiny_model)
    assert torch.allclose(merged, unmerged, atol=1e-5) and (unmerged - base).abs().max() > 0.1
    assert not list((tmp_path / "out").glob("adapter*"))
    assert not [name for name in load_file(tmp_path / "out" / "model.safetensors") if "lora" in name]
    assert report.facts.found.largest == 0
    assert report.facts.from_float32.largest < 1e-4 < 0.01 < report.facts.effect.mean
    assert f"base model: {tiny_model} (named by {adapter}/adapter_config.json)" in go.told
    for dtype in ("bfloat16", "float16"):
        report = go(adapter, dtype, dtype=dtype)
        merged = logits(tmp_path / dtype)
        assert merged.dtype == getattr(torch, dtype) and torch.allclose(merged.float(), unmerged, atol=0.1)
        assert report.facts.found.largest == 0 < report.facts.from_float32.mean < report.facts.effect.mean / 2
        assert not report.facts.notes


@pytest.mark.filterwarnings("ignore::UserWarning")  # peft, as the adapters are made: embeddings are tied
@pytest.mark.parametrize(
    "options",
    [
        {"target_modules": ["embed_tokens"]},
        {"target_modules": ["lm_head", "q_proj"]},
        {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]},
        {"use_dora": True, "use_rslora": True},
    ],
    ids=["embeddings", "head", "whole embeddings", "dora"],
)
def test_tied_embeddings_come_apart_only_where_the_adapter_parts_them(
    make_adapter, tiny_model, go, logits, tmp_path, options
):
    adapter = make_adapter(**options)
    go(adapter)
    assert torch.allclose(logits(tmp_path / "out"), logits(tiny_model, adapter), atol=1e-4)
    tied = json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"]
    assert tied is ("use_dora" in options)


def test_an_adapter_inside_a_checkpoint_with_its_own_tokenizer(make_adapter, tiny_model, go, tmp_path):
    adapter = make_adapter("run/global_step_7/actor")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(tiny_model / name, adapter / name)
    (adapter / "chat_template.jinja").write_text("{% for m in messages %}[{{ m.content }}]{% endfor %}")
    (adapter / "optimizer.safetensors").write_text("not read")
    files = {f"actor/{path.name}": path.stat().st_size for path in adapter.iterdir()}
    (adapter.parent / "manifest.json").write_text(json.dumps({"files": files}))
    go(tmp_path / "run")
    assert (tmp_path / "out" / "chat_template.jinja").read_text().startswith("{% for m in messages %}[")
    assert (tmp_path / "out" / "generation_config.json").is_file(), "that of the base"


def test_a_critic_adapter_brings_its_head(make_adapter, tiny_model, go, logits, tmp_path):
    adapter = make_adapter(values=True, target_modules=["q_proj", "v_proj"])
    go(adapter, role="critic")
    kind = AutoModelForTokenClassification
    unmerged = logits(tiny_model, adapter, kind=kind, num_labels=1)
    assert torch.allclose(logits(tmp_path / "out", kind=kind), unmerged, atol=1e-5)
    with pytest.raises(ModelError, match=r"the weights lack score\.bias, score\.weight"):
        go(make_adapter("policy"), "other", role="critic")


def test_the_adapter_alone_also_on_another_base_and_in_another_type(make_adapter, tiny_model, go, logits, tmp_path):
    adapter, moved = make_adapter(), shutil.copytree(tiny_model, tmp_path / "moved")
    (adapter / "optimizer.safetensors").write_text("not read")
    report = go(adapter, adapter_only=True)
    out = tmp_path / "out"
    assert torch.equal(logits(tiny_model, out), logits(tiny_model, adapter))
    assert {path.name for path in out.iterdir()} == {
        "adapter_config.json", "adapter_model.safetensors", "tokenizer.json", "tokenizer_config.json",
        "chat_template.jinja",
    }  # fmt: skip
    settings = json.loads((out / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == str(tiny_model) and settings["r"] == 4
    assert report.facts.found.largest == 0 and report.facts.kind == f"LoRA adapter of {tiny_model}"
    report = go(adapter, "other", adapter_only=True, base=str(moved), dtype="bfloat16")
    settings = json.loads((tmp_path / "other" / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == str(moved)
    tensors = load_file(tmp_path / "other" / "adapter_model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert report.facts.dtype == "bfloat16" and 0 < report.facts.found.largest < 0.1


def test_the_adapter_alone_in_a_type_that_cannot_hold_it(make_adapter, go, tmp_path):
    adapter = make_adapter(target_modules=["up_proj"])
    tensors = load_file(adapter / "adapter_model.safetensors")
    down = [name for name in tensors if "lora_A" in name]
    tiny = tensors | {name: tensors[name].clamp(-1e-9, 1e-9) for name in down}
    save_file(tiny, adapter / "adapter_model.safetensors")
    assert "are too small for float16 and became 0" in str(go(adapter, adapter_only=True, dtype="float16"))
    huge = {name: t * (1e6 if name in down else 1e-6) for name, t in tensors.items()}
    save_file(huge, adapter / "adapter_model.safetensors")
    with pytest.raises(ModelError, match=r"weights of base_model\..*lora_A.* are not finite, .*too large for the dty"):
        go(adapter, "other", adapter_only=True, dtype="float16")


def test_the_revision_of_the_base(make_adapter, tiny_model, go, tmp_path, monkeypatch):
    adapter = make_adapter()
    edit_json(adapter / "adapter_config.json", revision="v2")
    go(adapter, adapter_only=True)
    assert f"{tiny_model}: a folder has no revisions, so it is taken as it is" in go.told
    asked = []
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download", lambda name, **o: asked.append((name, o["revision"])) or str(tiny_model)
    )
    edit_json(adapter / "adapter_config.json", base_model_name_or_path="some/base")
    go(adapter, "kept", adapter_only=True)
    kept = json.loads((tmp_path / "kept" / "adapter_config.json").read_text())
    assert asked == [("some/base", "v2")] and (kept["base_model_name_or_path"], kept["revision"]) == ("some/base", "v2")
    assert any(line.startswith("base model: some/base at revision v2 (named by") for line in go.told)
    go(adapter, "other", adapter_only=True, base="another/base")
    other = json.loads((tmp_path / "other" / "adapter_config.json").read_text())
    assert asked[1] == ("another/base", None)
    assert (other["base_model_name_or_path"], other["revision"]) == ("another/base", None), "it was of the other base"


@pytest.mark.parametrize(("alpha", "dtype"), [(8, "float32"), (8, "bfloat16"), (0.5, "bfloat16")])
def test_a_merge_that_forgets_the_adapter_or_changes_a_layer_is_caught(
    make_adapter, go, tmp_path, monkeypatch, alpha, dtype
):
    adapter, right = make_adapter(lora_alpha=alpha), Linear.merge
    go(adapter, "whole", dtype=dtype)

    def wrong_in_one(self, *args, **options):
        right(self, *args, **options)
        if self.in_features == 128:
            self.base_layer.weight.data[3, 3] += 1e-3

    lost = r"not put in place: (the log-probs of source and export|bfloat16 rounds away)"
    for owner, merge, words in (
        (model, lambda peft_model, _: peft_model.unload(), lost),  # the base alone
        (Linear, wrong_in_one, r"down_proj: merged with the adapter, it computes something else"),
    ):
        with monkeypatch.context() as patched, pytest.raises(ModelError, match=words):
            patched.setattr(owner, "merge", merge)
            go(adapter, dtype=dtype)
        assert not (tmp_path / "out").exists()


def test_merged_weights_are_rounded_once(make_adapter, tiny_model, go, tmp_path):
    """A base in bfloat16: the merged weight is the sum in float32, rounded, not the sum of what was rounded."""
    go(tiny_model, "base", dtype="bfloat16")
    adapter = make_adapter(base=tmp_path / "base", target_modules=["up_proj"])
    report = go(adapter)
    name = "model.layers.0.mlp.up_proj"
    tensors = load_file(adapter / "adapter_model.safetensors")
    low, high = (tensors[f"base_model.model.{name}.lora_{side}.weight"].float() for side in "AB")
    base = load_file(tmp_path / "base" / "model.safetensors")[f"{name}.weight"].float()
    merged = load_file(tmp_path / "out" / "model.safetensors")[f"{name}.weight"]
    assert torch.equal(merged, (base + 2 * high @ low).bfloat16()) and report.facts.dtype == "bfloat16"


def test_an_adapter_written_wrong_is_caught(make_adapter, go, tmp_path, monkeypatch):
    def corrupt(source, tokenizer, folder):
        copy_tokenizer(source, tokenizer, folder)
        file = folder / "adapter_model.safetensors"
        save_file({name: tensor.half() for name, tensor in load_file(file).items()}, file)

    monkeypatch.setattr(model, "copy_tokenizer", corrupt)
    with pytest.raises(ModelError, match=r"not put in place: read again, base_model\.model.* is not what was written"):
        go(make_adapter(), adapter_only=True)
    assert not (tmp_path / "out").exists()


def test_an_adapter_that_drowns_in_rounding_is_not_merged(make_adapter, go, tmp_path):
    adapter = make_adapter(lora_alpha=1e-2)
    lost = "bfloat16 rounds away what the adapter changes: .*--dtype float32, or keep .*--adapter-only"
    with pytest.raises(ModelError, match=f"not put in place: {lost}"):
        go(adapter, dtype="bfloat16")
    go(adapter, "wide")
    edit_json(adapter / "adapter_config.json", lora_alpha=0)
    assert "the adapter changes nothing" in str(go(adapter, "nothing"))


def test_the_base_has_to_be_there_and_to_fit_and_is_for_adapters_only(make_adapter, tiny_model, go, tmp_path):
    with pytest.raises(ConfigError, match=r"--adapter-only is for LoRA adapters, but .* has no adapter_config\.json"):
        go(tiny_model, adapter_only=True)
    with pytest.raises(ConfigError, match="--base is for LoRA adapters"):
        go(tiny_model, base="x")
    base = shutil.copytree(tiny_model, tmp_path / "base")
    adapter = make_adapter(base=base)
    moved = base.rename(tmp_path / "moved")
    missing = rf"named by {adapter}/adapter_config\.json: the model path {base}: there is no such folder .*--base"
    with pytest.raises(ModelError, match=missing):
        go(adapter)
    go(adapter, base=str(moved))
    edit_json(adapter / "adapter_config.json", base_model_name_or_path=None)
    with pytest.raises(ModelError, match=r"adapter_config\.json names no base model; give its folder with --base"):
        go(adapter, "other")
    shutil.copyfile(tiny_model / "model.safetensors", adapter / "model.safetensors")
    with pytest.raises(ModelError, match=r"both an adapter .* and a whole model \(model\.safetensors\)"):
        go(adapter, "other")
