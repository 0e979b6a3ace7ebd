"""Tiny random models of many architectures, made from configurations alone: no files, no hub.

`FAMILIES` must generate exactly, `FUSED` of them through the hand-written decoder too. `OTHER_KINDS` keep something
else than ordinary keys and values and must be refused. `DOUBTFUL` ones may be refused, but never be wrong.
"""

import copy
from functools import cache

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

CONTEXT = 96
VOCABULARY = 259  # of the byte tokenizer
LLAMA3_ROPE = dict(rope_type="llama3", rope_theta=10000.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0)
LLAMA3_ROPE |= {"original_max_position_embeddings": 24}
GROUPED = {"num_attention_heads": 4, "num_key_value_heads": 2}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "decoder_sparse_step": 1}

LATENT = dict.fromkeys(("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), 8)
LATENT |= {"first_k_dense_replace": 2}
LINEAR = dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads", "num_experts"), 2)
LINEAR |= dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 8)
LINEAR |= {"num_experts_per_tok": 1, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}
SOFT_CAPPED = {"query_pre_attn_scalar": 24, "attn_logit_softcapping": 1.0, "attn_implementation": "eager"}

# name: (model type, what differs from the settings of `build`)
FAMILIES = {
    "qwen2": ("qwen2", GROUPED),
    "qwen2-tied": ("qwen2", GROUPED | {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", GROUPED | {"head_dim": 16}),
    "llama": ("llama", GROUPED),
    "llama-biased": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama3": ("llama", GROUPED | {"rope_parameters": LLAMA3_ROPE, "rope_theta": 10000.0}),
    "mistral": ("mistral", GROUPED | {"sliding_window": None}),
    "mistral-window": ("mistral", GROUPED | {"sliding_window": 12}),
    "qwen2-window": ("qwen2", GROUPED | {"use_sliding_window": True, "sliding_window": 12, "max_window_layers": 1}),
    "gemma": ("gemma", {"head_dim": 16, "num_key_value_heads": 1}),
    "gemma2": ("gemma2", SOFT_CAPPED | {"head_dim": 16, "sliding_window": 12}),  # sdpa would leave out the caps
    "gemma3": ("gemma3_text", {"head_dim": 16, "sliding_window": 12, "sliding_window_pattern": 2}),
    "phi": ("phi", {"partial_rotary_factor": 0.5}),
    "phi3": ("phi3", GROUPED),
    "phi3-window": ("phi3", GROUPED | {"sliding_window": 12}),
    "gpt2": ("gpt2", {}),
    "gpt_neox": ("gpt_neox", {"num_attention_heads": 4, "rotary_pct": 0.5}),
    "gpt_neox-sequential": ("gpt_neox", {"rotary_pct": 0.5, "use_parallel_residual": False}),
    "opt": ("opt", {"ffn_dim": 64, "word_embed_proj_dim": 32}),
    "olmo2": ("olmo2", GROUPED),
    "granite": ("granite", GROUPED | {"attention_multiplier": 0.2, "logits_scaling": 0.5, "residual_multiplier": 0.7}),
    "cohere2": ("cohere2", GROUPED | {"sliding_window": 12, "sliding_window_pattern": 2, "logit_scale": 1.0}),
    "smollm3": ("smollm3", GROUPED | {"no_rope_layer_interval": 2}),
    "starcoder2": ("starcoder2", GROUPED | {"sliding_window": None}),
    "qwen3_moe": ("qwen3_moe", GROUPED | EXPERTS | {"head_dim": 16}),
}
FUSED = ["qwen2", "qwen2-tied", "qwen3", "llama", "llama-biased", "llama3", "mistral", "mistral-window"]

OTHER_KINDS = {
    "mamba": {"state_size": 4},
    "jamba": {"num_experts": 2, "attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False},
    "bamba": {"attn_layer_indices": [1], "mamba_n_heads": 4, "mamba_d_state": 8, "mamba_d_head": 16},
    "falcon_h1": {"mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_ssm": 32, "mamba_d_state": 8, "head_dim": 16},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "qwen3_next": LINEAR | {"layer_types": ["linear_attention", "full_attention"], "head_dim": 16},
    "recurrent_gemma": {"lru_width": 32, "attention_window_size": 16, "head_dim": 16, "block_types": ["recurrent"]},
    "deepseek_v2": LATENT,
    "deepseek_v3": LATENT,
    "gpt_oss": {"num_local_experts": 2, "num_experts_per_tok": 1, "head_dim": 16, "sliding_window": 12},
    "t5": {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0},
}

DOUBTFUL = {
    "deepseek_v3": LATENT | {"v_head_dim": 16},  # as large as its keys
    "bloom": {"n_head": 2},
    "gptj": {"n_embd": 32, "n_head": 2, "n_layer": 2, "n_positions": CONTEXT, "rotary_dim": 8},
    "gpt_neo": {"num_layers": 2, "num_heads": 2, "attention_types": [[["global", "local"], 1]], "window_size": 8},
    "gpt_bigcode": {"n_embd": 32, "n_head": 2, "n_layer": 2, "n_positions": CONTEXT},
    "falcon": {"alibi": False, "new_decoder_architecture": False},
    "mpt": {"d_model": 32, "n_heads": 2, "n_layers": 2, "max_seq_len": CONTEXT, "expansion_ratio": 2},
    "diffllama": {"head_dim": 16},
    "doge": {"head_dim": 16},
    "llama4_text": {
        "head_dim": 16,
        "attention_chunk_size": 8,
        "num_local_experts": 2,
        "intermediate_size_mlp": 64,
        "interleave_moe_layer_step": 1,
    },
    "gemma3n_text": {
        "head_dim": 16,
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "sliding_window": 8,
        "vocab_size_per_layer_input": VOCABULARY,
        "hidden_size_per_layer_input": 8,
        "laurel_rank": 4,
        "activation_sparsity_pattern": None,
    },
    "cohere": {"logit_scale": 1.0},
    "stablelm": {"partial_rotary_factor": 0.5},
    "glm4": {"head_dim": 16, "pad_token_id": 0},
    "nanochat": {},
    "exaone4": {"sliding_window": 8, "sliding_window_pattern": 2},
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8},
    "ministral": {"head_dim": 16, "sliding_window": 8},
    "arcee": {},
    "persimmon": {},
    "xglm": {"d_model": 32, "ffn_dim": 64, "num_layers": 2, "attention_heads": 2},
    "biogpt": {},
    "modernbert-decoder": {"local_attention": 8, "global_attn_every_n_layers": 2, "bos_token_id": 1},
}


def build(
    model_type, overrides, *, seed=0, sharpness=10, dtype=torch.float32, hidden_size=32, layers=2, context=CONTEXT
):
    """A random model. Its weights are scaled up, so that what is likely depends much on what came before."""
    settings = dict(
        vocab_size=VOCABULARY,
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=context,
        tie_word_embeddings=False,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    config = AutoConfig.for_model(model_type, **(settings | overrides))
    kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = kind.from_config(config).to(dtype).eval()
    with torch.no_grad():
        for parameter in {id(p): p for p in module.parameters()}.values():
            if parameter.ndim > 1:
                parameter.mul_(sharpness)
    return module


@cache
def _family(name):
    return build(*FAMILIES[name])


def family(name):
    """A copy of the named tiny model for one test, which may change it."""
    return copy.deepcopy(_family(name))


def very_tiny(context=128, vocab_size=VOCABULARY):
    """One small layer, for tests of very many requests."""
    return build("qwen2", {"vocab_size": vocab_size}, hidden_size=16, layers=1, context=context)
