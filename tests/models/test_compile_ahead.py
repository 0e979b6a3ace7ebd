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


BOTH = dict(rollout=True, training=True)


def make(kind, **settings):
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SIZES, **settings))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "mistral"])
def test_every_call_runs_and_leaves_the_module_as_it_was(kind, dtype):
    """Also with frozen weights, which stay so."""
    module = make(kind).to(dtype)
    for adapted in (False, True):
        if adapted:
            add_adapter(module, ModelConfig(path="base", lora_rank=2), seed=0)
        before, trained = copy.deepcopy(module.state_dict()), [p.requires_grad for p in module.parameters()]
        compile_ahead(module, **BOTH)
        assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
        assert [p.requires_grad for p in module.parameters()] == trained and all(trained) != adapted
        assert all(parameter.grad is None for parameter in module.parameters())


def test_layers_with_and_without_a_window_have_attention_of_their_own_and_a_failure_is_an_error(monkeypatch):
    seen = set()
    monkeypatch.setattr(FirstCalls, "attend", lambda self, window, *line: seen.add(window))
    compile_ahead(make("qwen2", use_sliding_window=True, sliding_window=7, max_window_layers=1), **BOTH)
    assert seen == {None, 7}

    def breaks(self):
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(FirstCalls, "store", breaks)
    with pytest.raises(RuntimeError, match="no such instruction"):
        compile_ahead(make("llama"), **BOTH)


@pytest.mark.parametrize("wanted", [{"rollout"}, {"training"}, {"rollout", "training"}, set()], ids=sorted)
def test_only_what_is_asked_for_is_compiled_and_nothing_of_modules_that_are_not_run_fused(monkeypatch, wanted):
    called = set()
    for name in ("rollout", "training"):
        monkeypatch.setattr(FirstCalls, f"of_{name}", lambda self, name=name: [lambda: called.add(name)])
    compile_ahead(make("llama"), rollout="rollout" in wanted, training="training" in wanted)
    assert called == wanted
    monkeypatch.setattr(FirstCalls, "__init__", lambda self, module: pytest.fail("called"))
    compile_ahead(make("gemma"), **BOTH)
