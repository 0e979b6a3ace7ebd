"""Sizes read from a folder without loading it, and what `auto` means on a device."""

import json
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM

from burnish.config.model import ModelConfig
from burnish.config.optim import OptimConfig
from burnish.engine.trainable import Trainable
from burnish.errors import ModelError
from burnish.models.device import dtype_on
from burnish.models.facts import read_model_facts
from burnish.models.loading import load_causal_lm, load_tokenizer
from burnish.models.tiny import write_tiny_model
from tests.models.helpers import edit_json


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


@pytest.mark.parametrize("capability, expected", [((7, 5), "float32"), ((8, 0), "bfloat16"), ((9, 0), "bfloat16")])
def test_auto_is_bfloat16_on_a_gpu_that_has_it(monkeypatch, capability, expected):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    assert dtype_on("cuda:0", "auto") == expected
    assert dtype_on("cuda:0", "float16") == "float16"
    assert dtype_on("cpu", "auto") == "float32" and dtype_on("cpu", "bfloat16") == "bfloat16"


DEEP = "[" * 100_000
NOT_A_SIZE = [
    *(
        ({name: value}, f"config.json: {name}=.* is not a whole number above 0")
        for name in ("num_attention_heads", "hidden_size", "num_hidden_layers")
        for value in (0, -1, "four", 2.5, True, 10**400, float("nan"))
    ),
    *(
        ({name: 0}, f"config.json: {name}=0 is not a whole number above 0")
        for name in ("vocab_size", "num_key_value_heads", "head_dim", "intermediate_size", "max_position_embeddings")
    ),
    *(
        ({name: value}, "config.json and weights disagree: by the sizes in config.json")
        for name, value in (
            ("num_hidden_layers", 10**9), ("vocab_size", 10**12), ("hidden_size", 10**9), ("intermediate_size", 10**11)
        )
    ),
    ({"text_config": {"num_hidden_layers": -3}}, "num_hidden_layers=-3 is not a whole number"),
]  # fmt: skip


@pytest.mark.hostile
@pytest.mark.parametrize(("changes", "words"), NOT_A_SIZE)
def test_sizes_of_no_model_are_refused_before_anything_is_made(tiny_model, tmp_path, changes, words):
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    edit_json(folder / "config.json", **changes)
    for read in (read_model_facts, lambda folder: load_causal_lm(folder, ModelConfig())):
        with pytest.raises(ModelError, match=words) as refused:
            read(folder)
        assert "\n" not in str(refused.value) and len(str(refused.value)) < 500


INDEX = "model.safetensors.index.json"


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        *(
            (name, content, f"{name}: not readable as JSON")
            for name in ("config.json", INDEX)
            for content in ("", DEEP, "{", '{"a": ' + "9" * 5000 + "}", b"\xff\xfe\x00{")
        ),
        *((name, "[3]", f"{name}: expected an object, found a list") for name in ("config.json", INDEX)),
        ("config.json", '{"hidden_size": 4}', "none of num_attention_heads, n_head, num_heads is in it"),
        *(
            (INDEX, json.dumps({"weight_map": content}), f"{INDEX}: not readable as an index")
            for content in (None, [], {"a": 1, "b": "x"}, {"a": []})
        ),
        *(
            (INDEX, json.dumps({"weight_map": {"a": content}}), f"{INDEX}: names '{content}', which is outside")
            for content in ("../../secret", "/etc/passwd")
        ),
        *(
            ("model.safetensors", content, "model.safetensors: damaged or cut off")
            for content in (
                b"",
                b"\xff" * 20,
                b"12345678abc",
                (2**62).to_bytes(8, "little") + b"{}",
                len(DEEP).to_bytes(8, "little") + DEEP.encode(),
            )
        ),
        ("adapter_config.json", DEEP, "a LoRA adapter, not a whole model"),
    ],
)
def test_files_of_a_model_that_hold_anything_are_named(tiny_model, tmp_path, name, content, words):
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ModelError, match=words) as refused:
        read_model_facts(folder)
    assert "\n" not in str(refused.value)


@pytest.mark.hostile
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", ["", DEEP, "[]", '{"added_tokens_decoder": 3}'])
def test_files_of_a_tokenizer_that_hold_anything_are_named(tiny_model, tmp_path, name, content):
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    (folder / name).write_text(content)
    with pytest.raises(ModelError, match=f"{folder}: cannot load the tokenizer"):
        load_tokenizer(folder)
