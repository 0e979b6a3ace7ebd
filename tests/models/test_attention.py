"""Which models a paged pass can take, and that getting one ready for it leaves its own forward pass alone."""

import copy
from dataclasses import replace

import pytest
import torch

from burnish.config.model import ModelConfig
from burnish.errors import NotAvailable
from burnish.models.attention import PagedPass, layers_of, line_inputs
from burnish.models.loading import load_causal_lm
from burnish.models.tiny import byte_tokenizer, write_tiny_model
from burnish.ops.paged_attention import LayerKV, Paged
from burnish.rollout.native.engine import NativeEngine
from tests.rollout.native.models import DOUBTFUL, EXPERTS, FAMILIES, GROUPED, build, family

WINDOW = 24  # above the tokens of the engine's canary, which would find a smaller one
LENGTH = 40
OWN_WINDOW = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
IN_THE_MASK_ALONE = {
    "llama4_text": DOUBTFUL["llama4_text"] | {"attention_chunk_size": WINDOW},
    "qwen2_moe": GROUPED | EXPERTS | OWN_WINDOW | {"shared_expert_intermediate_size": 32},
    "phimoe": GROUPED | {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": WINDOW},
}
TAKEN = {
    "mistral": GROUPED | {"sliding_window": WINDOW},
    "gemma3_text": {"head_dim": 16, "sliding_window": WINDOW, "sliding_window_pattern": 2},
    "qwen2": GROUPED | OWN_WINDOW,
}
IDS = torch.arange(3, 3 + LENGTH)


@torch.no_grad()
def plain_logits(module):
    return module(input_ids=IDS[None]).logits[0]


@torch.no_grad()
def paged_logits(module, shapes):
    """Of one sequence in one line, in blocks of 8 tokens that lie in reverse."""
    blocks = LENGTH // 8
    table = torch.arange(blocks, 0, -1, dtype=torch.int32)
    places = torch.arange(LENGTH)
    forms = [(blocks + 1, 8, shape.heads, shape.head_size) for shape in shapes]
    kv = [LayerKV(torch.zeros(form), torch.zeros(form)) for form in forms]
    where = Paged(
        slots=table[places // 8].long() * 8 + places % 8,
        tables=table[None],
        lengths=torch.tensor([LENGTH], dtype=torch.int32),
        starts=torch.tensor([0, LENGTH], dtype=torch.int32),
        longest_query=LENGTH,
        longest=LENGTH,
    )
    return module(**line_inputs(IDS, places), paged=PagedPass(kv, where)).logits[0]


@pytest.mark.parametrize("name", [*IN_THE_MASK_ALONE, "doge"])
def test_a_window_that_only_the_mask_has_or_a_custom_mask_is_refused(name):
    module = build(name, IN_THE_MASK_ALONE.get(name) or DOUBTFUL[name])
    words = "it makes its own mask" if name == "doge" else f".*window of {WINDOW} tokens"
    with pytest.raises(NotAvailable, match=rf"{type(module).__name__}: {words}.*rollout\.name=hf"):
        layers_of(module)


@pytest.mark.parametrize("name", TAKEN)
def test_a_sliding_window_passed_to_attention_is_supported(name):
    module = build(name, TAKEN[name])
    wide = build(name, TAKEN[name] | {"sliding_window": LENGTH + 1})
    expected = plain_logits(module)
    assert not torch.allclose(expected, plain_logits(wide), atol=0.1)  # the window is felt
    torch.testing.assert_close(paged_logits(module, layers_of(module)), expected, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("attention", ["flash_attention_2", "flash_attention_3", "flex_attention"])
def test_attention_that_cannot_be_paged_is_refused_by_name(attention):
    module = family("qwen2")
    module.config._attn_implementation = attention
    with pytest.raises(
        NotAvailable, match=rf"attn_implementation={attention}. Choose attn_implementation=sdpa or eager"
    ):
        layers_of(module)


@pytest.mark.parametrize("name", ["gemma2", "qwen2", "gpt2"])
def test_an_engine_leaves_the_plain_forward_as_it_was(name):
    module = family(name)
    before = plain_logits(copy.deepcopy(module))
    NativeEngine(module, byte_tokenizer(), blocks=32)
    assert torch.equal(plain_logits(module), before)
    if name != "gemma2":
        return
    capped = build(FAMILIES[name][0], FAMILIES[name][1] | {"attn_implementation": "sdpa"})
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
