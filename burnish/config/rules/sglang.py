"""SGLang: what it may be given, and its memory for keys and values. It was run with burnish on a CPU only, and what was
never run is refused."""

from burnish.config.rules.program import Program

SPARE = 8  # tokens that SGLang keeps of its context for itself, and more
KV_BYTES = 4 * 2**30  # of keys and values, at most

SGLANG = Program(
    name="sglang",
    label="SGLang",
    packages=("sglang",),
    least=(0, 5, 23),
    install="docs/sglang.md says how and where it runs",
    instead="native",
    keys={
        "dtype": "dtype",
        "context_length": "max_model_len",
        "max_running_requests": "max_num_seqs",
        "max_prefill_tokens": "max_num_batched_tokens",
        "chunked_prefill_size": "max_num_batched_tokens",
        "mem_fraction_static": "gpu_memory_utilization",
        "disable_radix_cache": "enable_prefix_caching",
        "tp_size": "tensor_model_parallel_size",
    },
    # Weights come by publish, ids go in and out without text, one batch is computed at a time.
    fixed={
        "model_path": None,
        "skip_tokenizer_init": True,
        "load_format": "dummy",
        "device": "cpu",
        "attention_backend": "torch_native",
        "sampling_backend": "pytorch",
        "incremental_streaming_output": True,
        "disable_overlap_schedule": True,
        "disable_cuda_graph": True,
        "grammar_backend": "none",
    },
    tried=frozenset({"log_level", "max_total_tokens", "random_seed", "schedule_policy", "watchdog_timeout"}),
)


def kv_tokens(token_bytes: int, context: int, sequences: int) -> int:
    """Tokens whose keys and values are kept: those of all sequences at once, within `KV_BYTES`; one always fits."""
    one = context + 2 * SPARE
    return max(one, min(one * sequences, KV_BYTES // token_bytes))
