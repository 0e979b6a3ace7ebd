"""Sizes read from a folder without loading it, and what `auto` means on a device."""

import json
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM

from burnish.config.optim import OptimConfig
from burnish.engine.trainable import Trainable
from burnish.errors import ModelError
from burnish.models.device import dtype_on
from burnish.models.facts import read_model_facts
from burnish.models.tiny import write_tiny_model


@pytest.mark.parametrize(
    "model_type,overrides,kv_heads,head_dim",
    [
        ("qwen2", {}, 2, 16),
        ("qwen3", {"num_key_value_heads": 1, "head_dim": 8}, 1, 8),
        ("llama", {"tie_word_embeddings": False}, 2, 16),
        ("gpt2", {}, 2, 16),
    ],
)
def test_facts_agree_with_the_loaded_model(tmp_path, model_type, overrides, kv_heads, head_dim):
    folder = write_tiny_model(tmp_path, model_type=model_type, context=128, layers=3, **overrides)
    facts = read_model_facts(folder)
    module = AutoModelForCausalLM.from_pretrained(folder)
    assert facts.parameters == sum(p.numel() for p in module.parameters())
    assert (facts.model_type, facts.context, facts.layers) == (model_type, 128, 3)
    assert (facts.hidden, facts.heads, facts.kv_heads, facts.head_dim) == (32, 2, kv_heads, head_dim)
    feed_forward = next(p for name, p in module.named_parameters() if "mlp" in name and p.dim() == 2)
    assert facts.intermediate * 32 == feed_forward.numel()
    assert facts.vocab == module.get_input_embeddings().num_embeddings


def test_only_a_models_own_files_are_counted(tiny_model, tmp_path):
    """Not the training state next to them, in safetensors too, and with an index those that it names."""
    module = AutoModelForCausalLM.from_pretrained(tiny_model)
    Trainable(module, OptimConfig(), total_steps=1).save(tmp_path / "checkpoint")
    assert {"optimizer.safetensors", "rng.safetensors"} <= {file.name for file in (tmp_path / "checkpoint").iterdir()}
    assert read_model_facts(tmp_path / "checkpoint").parameters == sum(p.numel() for p in module.parameters())
    module.save_pretrained(tmp_path, max_shard_size="30KB")
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 1
    shutil.copy(shards[0], tmp_path / "consolidated.safetensors")  # as some hub folders have: the weights once more
    whole = sum(p.numel() for p in module.parameters())
    assert read_model_facts(tmp_path).parameters == whole
    for shard in shards:
        shard.unlink()
    assert read_model_facts(tmp_path).parameters == pytest.approx(whole, rel=0.05), "estimated, as nothing is there"
    (tmp_path / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(ModelError, match=r"index\.json: expected an object"):
        read_model_facts(tmp_path)


def test_without_safetensors_the_count_is_estimated_or_by_the_size_of_bin_files(tiny_model, tmp_path):
    shutil.copy(tiny_model / "config.json", tmp_path)
    counted, estimated = read_model_facts(tiny_model).parameters, read_model_facts(tmp_path).parameters
    assert estimated == pytest.approx(counted, rel=0.05)
    torch.save({"weights": torch.zeros(50_000)}, tmp_path / "pytorch_model.bin")
    assert read_model_facts(tmp_path).parameters == pytest.approx(50_000, rel=0.02)
    inner = json.loads((tiny_model / "config.json").read_text())  # sizes one level down
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "seeing", "text_config": inner}))
    facts = read_model_facts(tmp_path)
    assert (facts.model_type, facts.layers, facts.context) == ("seeing", 2, 512)


@pytest.mark.parametrize(
    "name,content,message",
    [
        ("config.json", b"{", r"config\.json: not readable as JSON"),
        ("config.json", b"[]", r"config\.json: expected an object, found a list"),
        ("config.json", b'{"hidden_size": 4}', r"none of num_attention_heads, n_head, num_heads is in it"),
        ("model.safetensors", b"\x00\x01", r"model\.safetensors: damaged or cut off"),
        ("model.safetensors", b"\xff" * 20, r"model\.safetensors: damaged or cut off \("),
    ],
)
def test_damaged_files_are_named(tiny_model, tmp_path, name, content, message):
    shutil.copy(tiny_model / "config.json", tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelError, match=message):
        read_model_facts(tmp_path)


@pytest.mark.parametrize("capability, expected", [((7, 5), "float32"), ((8, 0), "bfloat16"), ((9, 0), "bfloat16")])
def test_auto_is_bfloat16_on_a_gpu_that_has_it(monkeypatch, capability, expected):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    assert dtype_on("cuda:0", "auto") == expected
    assert dtype_on("cuda:0", "float16") == "float16"
    assert dtype_on("cpu", "auto") == "float32" and dtype_on("cpu", "bfloat16") == "bfloat16"
