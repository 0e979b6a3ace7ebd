"""SGLang: what it takes, its memory for keys and values, and what it can do. It was run with burnish on a CPU only, and
what was never run is refused."""

from dataclasses import dataclass

from burnish.config.engines import FREES, RolloutLoad
from burnish.config.rollout import BaseRolloutConfig
from burnish.errors import NotAvailable
from burnish.rollout.hosted.spec import HostedSpec

SPARE = 8  # tokens that SGLang keeps of its context for itself, and more
KV_BYTES = 4 * 2**30  # of keys and values, at most


@dataclass(frozen=True)
class SGLangSpec(HostedSpec):
    def check_devices(self, rollout: BaseRolloutConfig, section: str, gpus: int, choice: str) -> None:
        if gpus:
            raise NotAvailable(
                f"the sglang rollout engine on a GPU ({choice}sglang): SGLang was run with burnish on a CPU only "
                "(docs/sglang.md)",
                f"Use {choice}vllm or {choice}native, which take the same keys",
            )

    def kv_bytes(self, load: RolloutLoad) -> int:
        return kv_tokens(load.token_bytes, load.context, load.rollout.max_num_seqs) * load.token_bytes


SPEC = SGLangSpec(
    name="sglang",
    path="burnish.rollout.sglang.engine:SGLangEngine",
    label="SGLang",
    # Its memory is bounded by gpu_memory_utilization on a CPU too.
    ignores=(("SGLang gives no memory back", FREES), ("SGLang uses no CUDA graphs", "enforce_eager")),
    packages=("sglang",),
    least=(0, 5, 23),
    install="docs/sglang.md says how and where it runs",
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
