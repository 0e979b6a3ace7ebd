"""The `sglang` rollout engine: what burnish's configuration means to SGLang. Nothing here imports SGLang."""

from pathlib import Path
from typing import Any

from burnish.config.rollout import RolloutConfig
from burnish.rollout.admission import RequestState
from burnish.rollout.hosted.engine import HostedEngine, environment
from burnish.rollout.hosted.spec import token_bytes
from burnish.rollout.sglang.spec import SPARE, SPEC, kv_tokens

# Variables of its processes' environment, whatever the user has set.
VARIABLES = {
    "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",  # by `SPARE`, which no request uses
    "SGLANG_USE_CPU_ENGINE": "0",  # which needs kernels that there is no package of
    "SGLANG_RETURN_ORIGINAL_LOGPROB": "0",  # log-probs are of logits / temperature
}


class SGLangEngine(HostedEngine):
    spec = SPEC
    host = "burnish.rollout.sglang.host"

    def _engine_arguments(self, config: RolloutConfig, folder: Path, model: Any) -> dict[str, Any]:
        """For SGLang's Engine."""
        SPEC.check_arguments(config, "rollout")
        dtype = str(self.dtype).removeprefix("torch.")
        each = token_bytes(model, 4 if dtype == "float32" else 2)
        return {
            "dtype": dtype,
            "context_length": self.context + SPARE,
            "max_running_requests": config.max_num_seqs,
            "max_total_tokens": kv_tokens(each, self.context, config.max_num_seqs),
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

    def _process_environment(self, temporary: Path) -> dict[str, str]:
        return environment(temporary, {}, VARIABLES)

    def _request_arguments(self, request: RequestState) -> dict[str, Any]:
        """SGLang's sampling parameters. Its model names no end of sequence, so `stop_token_ids` alone end a request."""
        sampling, truncates = request.sampling, request.sampling.truncates
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
