"""Adapter folders may come from anyone: read as data, every weight accounted for, and merged as peft runs them."""

import importlib.util
import re
import shutil

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from burnish.config.model import ModelConfig
from burnish.errors import ConfigError, ModelError, install_command
from burnish.models.adapters import apply_adapter, initial_adapter, is_adapter, merge, read_adapter
from burnish.models.folder import resolve_path
from burnish.models.loading import load_unchanged
from tests.models.helpers import edit_json, shaken

IDS = torch.arange(3, 40)[None]


@pytest.fixture(scope="module")
def written(tiny_model, tmp_path_factory):
    """An adapter with random weights on two projections and, whole, on the last norm."""
    folder = tmp_path_factory.mktemp("adapters") / "a"
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], modules_to_save=["norm"], task_type="CAUSAL_LM")
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_model), config)
    shaken(model, seed=0, width=0.2).save_pretrained(folder)
    with torch.no_grad():
        torch.save(model.eval()(IDS).logits, folder.parent / "logits.pt")
    return folder


@pytest.fixture
def folder(written, tmp_path):
    return shutil.copytree(written, tmp_path / "adapter")


def base(tiny_model):
    return load_unchanged(tiny_model).module


def test_a_folder_is_read_as_data(written, tiny_model):
    assert is_adapter(written) and not is_adapter(tiny_model)
    adapter = read_adapter(written)
    assert adapter.base == str(tiny_model) and adapter.settings["r"] == adapter.rank == 4
    tensor = adapter.tensors["base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"]
    assert (tensor.dtype, tensor.shape) == ("F32", (4, 32))


def test_on_its_base_and_merged(written, tiny_model, monkeypatch):
    adapter, expected = read_adapter(written), torch.load(written.parent / "logits.pt")
    torch.manual_seed(3)
    drawn = torch.rand(1)
    torch.manual_seed(3)
    with torch.no_grad():
        model = apply_adapter(base(tiny_model), adapter)
        assert torch.allclose(model(IDS).logits, expected, atol=1e-6)
        merged = merge(model, adapter)
        assert torch.allclose(merged(IDS).logits, expected, atol=1e-5)
    assert torch.equal(torch.rand(1), drawn), "the random state is left alone"
    assert type(merged).__name__ == "Qwen2ForCausalLM" and merged.config.tie_word_embeddings
    assert merged.get_input_embeddings().weight is merged.get_output_embeddings().weight
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    words = re.escape(f"needs the package peft; install it with `{install_command('lora')}`")
    with pytest.raises(ConfigError, match=words):
        apply_adapter(base(tiny_model), adapter)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"peft_type": "IA3"}, r"adapter_config\.json: peft_type=IA3 is not supported; LORA is"),
        ({"base_model_name_or_path": ["a"]}, r"base_model_name_or_path=\['a'\] should be the name of a model"),
        ({"revision": 3}, r"revision=3 should be a branch, tag or commit"),
        ({"r": "8"}, r"adapter_config\.json: r='8' should be the rank of the adapter"),
        ({"megatron_config": {"x": 1}, "megatron_core": "os"}, "megatron_config is not supported; it asks for code"),
    ],
)
def test_settings_that_are_refused(folder, changes, words):
    edit_json(folder / "adapter_config.json", **changes)
    with pytest.raises(ModelError, match=words):
        read_adapter(folder)


def test_pickles_and_damaged_files_are_refused(folder):
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    with pytest.raises(ModelError, match=r"adapter_model\.bin is a pickle, which can run code, and is not read; save"):
        read_adapter(folder)
    (folder / "adapter_model.bin").unlink()
    with pytest.raises(ModelError, match=r"no adapter_model\.safetensors; save the adapter with"):
        read_adapter(folder)
    for name, words in (("model.safetensors", "damaged or cut off"), ("config.json", "not readable as JSON")):
        (folder / f"adapter_{name}").write_text("short")
        with pytest.raises(ModelError, match=rf"adapter_{name}: {words}"):
            read_adapter(folder)


def test_settings_that_peft_does_not_accept(folder, tiny_model):
    edit_json(folder / "adapter_config.json", use_something_new=False)
    apply_adapter(base(tiny_model), read_adapter(folder))
    for changes, words in (
        ({"use_something_new": True}, r"peft \S+ does not know the setting use_something_new; install"),
        ({"use_something_new": False, "target_modules": ["nope"]}, "cannot use the adapter: .*`target_modules`"),
    ):
        edit_json(folder / "adapter_config.json", **changes)
        with pytest.raises(ModelError, match=words) as caught:
            apply_adapter(base(tiny_model), read_adapter(folder))
        assert "\n" not in str(caught.value)


QUERY = "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop(QUERY), r"lacks .*layers\.1\.self_attn\.q_proj\.lora_A.*; the adapter is incomplete"),
        (lambda t: t.pop("base_model.model.model.norm.weight"), "lacks norm; the adapter is incomplete"),
        (
            lambda t: t.update({QUERY.replace("layers.1", "layers.9"): torch.zeros(4, 32)}),
            r"layers\.9.* does not fit the base model; name the adapter's own base with --base",
        ),
        (
            lambda t: t.update({QUERY: torch.zeros(4, 31)}),
            r"not fit the base model: size mismatch .*\(1 such tensors\)",
        ),
    ],
    ids=["missing", "missing module", "left over", "shape"],
)
def test_weights_that_do_not_fit(folder, tiny_model, change, words):
    tensors = load_file(folder / "adapter_model.safetensors")
    change(tensors)
    save_file(tensors, folder / "adapter_model.safetensors")
    with pytest.raises(ModelError, match=words) as caught:
        apply_adapter(base(tiny_model), read_adapter(folder))
    assert "\n" not in str(caught.value)


def test_the_initial_adapter_is_found_in_checkpoints_and_runs(written, tmp_path):
    assert initial_adapter(ModelConfig()) is None
    run = tmp_path / "run"
    shutil.copytree(written, run / "global_step_2/actor")
    shutil.copytree(written, run / "global_step_1/actor")
    (run / "latest_checkpointed_iteration.txt").write_text("1")
    second = run / "global_step_2"
    for path, folder in ((written, written), (second, second / "actor"), (run, run / "global_step_1/actor")):
        assert initial_adapter(ModelConfig(lora_adapter_path=str(path))).folder == folder
    with pytest.raises(ModelError, match=r"lora_adapter_path=.*: no adapter_config\.json there; name the folder"):
        initial_adapter(ModelConfig(lora_adapter_path=str(tmp_path)))
    for rank in (0, 4):
        assert initial_adapter(ModelConfig(lora_adapter_path=str(written), lora_rank=rank)).rank == 4
    with pytest.raises(ConfigError, match=r"lora_rank=8 with .*: that adapter has rank 4, .*leave lora_rank out"):
        initial_adapter(ModelConfig(lora_adapter_path=str(written), lora_rank=8))
    with pytest.raises(ModelError, match=rf"a LoRA adapter, not a whole model; .*`burnish export {written} --out"):
        resolve_path(written)
