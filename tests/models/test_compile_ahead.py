"""The calls that compile kernels before they are needed. Whether they are all that a run needs: trainer/test_gpu.py."""

import copy

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from burnish.config.model import ModelConfig
from burnish.models.compile_ahead import FirstCalls, compile_ahead
from burnish.models.lora import add_adapter

SIZES = dict(vocab_size=97, hidden_size=32, intermediate_size=72, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0)  # fmt: skip


@pytest.fixture
def make():
    def build(kind, **settings):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SIZES, **settings))

    return build


BOTH = dict(rollout=True, training=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "mistral"])
def test_every_call_runs_and_leaves_the_module_as_it_was(make, kind, dtype):
    module = make(kind).to(dtype)
    before = copy.deepcopy(module.state_dict())
    compile_ahead(module, **BOTH)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in module.parameters())


def test_frozen_weights_stay_frozen(make):
    module = make("qwen3")
    add_adapter(module, ModelConfig(path="base", lora_rank=2), seed=0)
    trained = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    compile_ahead(module, **BOTH)
    assert trained == {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    assert all(parameter.grad is None for parameter in module.parameters())


def test_layers_with_and_without_a_window_have_attention_of_their_own(make, monkeypatch):
    seen = set()
    monkeypatch.setattr(FirstCalls, "attend", lambda self, window, *line: seen.add(window))
    compile_ahead(make("qwen2", use_sliding_window=True, sliding_window=7, max_window_layers=1), **BOTH)
    assert seen == {None, 7}


@pytest.mark.parametrize("wanted", [{"rollout"}, {"training"}, {"rollout", "training"}, set()], ids=sorted)
def test_only_what_is_asked_for_is_compiled(make, monkeypatch, wanted):
    called = set()
    for name in ("rollout", "training"):
        monkeypatch.setattr(FirstCalls, f"of_{name}", lambda self, name=name: [lambda: called.add(name)])
    compile_ahead(make("llama"), rollout="rollout" in wanted, training="training" in wanted)
    assert called == wanted


def test_modules_that_are_not_run_fused_are_left_alone(make, monkeypatch):
    monkeypatch.setattr(FirstCalls, "__init__", lambda self, module: pytest.fail("called"))
    compile_ahead(make("gemma"), **BOTH)


def test_a_kernel_that_does_not_compile_is_an_error(make, monkeypatch):
    def breaks(self):
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(FirstCalls, "store", breaks)
    with pytest.raises(RuntimeError, match="no such instruction"):
        compile_ahead(make("llama"), **BOTH)
