"""Which models a paged pass refuses, and the attention that loading chooses.

What those compute that it takes, and that their own forward pass stays: tests/rollout/native/test_architectures.py.
"""

from dataclasses import replace

import pytest
import torch

from burnish.config.model import ModelConfig
from burnish.errors import NotAvailable
from burnish.models.attention import layers_of
from burnish.models.loading import load_causal_lm
from burnish.models.tiny import byte_tokenizer, write_tiny_model
from burnish.rollout.native.engine import NativeEngine
from tests.rollout.native.models import DOUBTFUL, EXPERTS, FAMILIES, GROUPED, build, family

WINDOW = 24  # above the tokens of the engine's canary, which would find a smaller one
OWN_WINDOW = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
IN_THE_MASK_ALONE = {
    "llama4_text": DOUBTFUL["llama4_text"] | {"attention_chunk_size": WINDOW},
    "qwen2_moe": GROUPED | EXPERTS | OWN_WINDOW | {"shared_expert_intermediate_size": 32},
    "phimoe": GROUPED | {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": WINDOW},
}
IDS = torch.arange(3, 43)


@torch.no_grad()
def plain_logits(module):
    return module(input_ids=IDS[None]).logits[0]


@pytest.mark.parametrize("name", [*IN_THE_MASK_ALONE, "doge"])
def test_a_window_that_only_the_mask_has_or_a_custom_mask_is_refused(name):
    module = build(name, IN_THE_MASK_ALONE.get(name) or DOUBTFUL[name])
    words = "it makes its own mask" if name == "doge" else f".*window of {WINDOW} tokens"
    with pytest.raises(NotAvailable, match=rf"{type(module).__name__}: {words}.*rollout\.name=hf"):
        layers_of(module)


@pytest.mark.parametrize("attention", ["flash_attention_2", "flash_attention_3", "flex_attention"])
def test_attention_that_cannot_be_paged_is_refused_by_name(attention):
    module = family("qwen2")
    module.config._attn_implementation = attention
    with pytest.raises(
        NotAvailable, match=rf"attn_implementation={attention}. Choose attn_implementation=sdpa or eager"
    ):
        layers_of(module)


def test_a_refused_model_is_left_as_it_was():
    capped = build(FAMILIES["gemma2"][0], FAMILIES["gemma2"][1] | {"attn_implementation": "sdpa"})
    before = plain_logits(capped)
    words = r"Gemma2ForCausalLM: sdpa leaves out its capped scores. Choose attn_implementation=eager"
    with pytest.raises(NotAvailable, match=words):
        NativeEngine(capped, byte_tokenizer(), blocks=32)
    assert capped.config._attn_implementation == "sdpa" and torch.equal(plain_logits(capped), before)


def test_loading_chooses_attention_that_has_the_caps(tmp_path):
    settings = {"model_type": "gemma2", "head_dim": 16, "query_pre_attn_scalar": 16}
    capped = write_tiny_model(tmp_path / "capped", attn_logit_softcapping=1.0, **settings)
    uncapped = write_tiny_model(tmp_path / "uncapped", attn_logit_softcapping=None, **settings)
    automatic = ModelConfig()
    assert automatic.attn_implementation == "auto"
    module = load_causal_lm(capped, automatic)
    assert module.config._attn_implementation == "eager"
    assert NativeEngine(module, byte_tokenizer(), blocks=64).context > 0
    assert load_causal_lm(uncapped, automatic).config._attn_implementation == "sdpa"
    chosen = load_causal_lm(capped, replace(automatic, attn_implementation="sdpa"))
    assert chosen.config._attn_implementation == "sdpa"  # what is asked for is never changed in silence
