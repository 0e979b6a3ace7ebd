"""What burnish's configuration means to SGLang: arguments of its engine and of one request, and variables.

Pure: nothing here imports SGLang.
"""

from pathlib import Path
from typing import Any

from burnish.config.rollout import RolloutConfig
from burnish.rollout.hosted.arguments import token_bytes
from burnish.rollout.request import RequestState
from burnish.rollout.sglang.spec import SPARE, SPEC, kv_tokens

# Variables of its processes' environment, whatever the user has set.
VARIABLES = {
    "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",  # by `SPARE`, which no request uses
    "SGLANG_USE_CPU_ENGINE": "0",  # which needs kernels that there is no package of
    "SGLANG_RETURN_ORIGINAL_LOGPROB": "0",  # log-probs are of logits / temperature
}


def engine_arguments(config: RolloutConfig, folder: Path, context: int, dtype: str, model: Any) -> dict[str, Any]:
    """For SGLang's Engine. `folder` has the config.json of `model` and nothing else."""
    SPEC.check_arguments(config, "rollout")
    each = token_bytes(model, 4 if dtype == "float32" else 2)
    return {
        "dtype": dtype,
        "context_length": context + SPARE,
        "max_running_requests": config.max_num_seqs,
        "max_total_tokens": kv_tokens(each, context, config.max_num_seqs),
        "max_prefill_tokens": config.max_num_batched_tokens,
        "chunked_prefill_size": config.max_num_batched_tokens if config.enable_chunked_prefill else -1,
        "mem_fraction_static": config.gpu_memory_utilization,
        "disable_radix_cache": not config.enable_prefix_caching,
        "tp_size": config.tensor_model_parallel_size,
        "random_seed": 0,
        "log_level": "warning",
        **SPEC.fixed,
        "model_path": str(folder),
        **config.engine_kwargs.get("sglang", {}),
    }


def request_arguments(request: RequestState) -> dict[str, Any]:
    """SGLang's sampling parameters. Its model names no end of sequence, so `stop_token_ids` alone end a request."""
    sampling = request.sampling
    truncates = sampling.truncates
    return {
        "temperature": sampling.temperature,
        "top_k": sampling.top_k if truncates and sampling.top_k > 0 else -1,
        "top_p": sampling.top_p if truncates else 1.0,
        "min_p": sampling.min_p if truncates else 0.0,
        "stop_token_ids": sorted(request.stop_ids),
        "sampling_seed": signed(sampling.seed),
        "custom_params": {"begin": len(request.prompt_ids)},  # read by `worker`
    }


def signed(seed: int) -> int:
    """The number with the same 64 bits that SGLang takes."""
    bits = seed & (2**64 - 1)
    return bits - 2**64 if bits >= 2**63 else bits
