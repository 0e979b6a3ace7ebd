"""The `vllm` rollout engine: what burnish's configuration means to vLLM. Nothing here imports vLLM."""

from pathlib import Path
from typing import Any

from burnish.config.rollout import RolloutConfig
from burnish.errors import RolloutError
from burnish.rollout.admission import RequestState
from burnish.rollout.hosted.engine import HostedEngine, environment
from burnish.rollout.hosted.spec import token_bytes
from burnish.rollout.vllm.spec import SPEC, kv_gib


class VLLMEngine(HostedEngine):
    """While it sleeps on a GPU, the KV pool is given back and weights are in the host's memory; on a CPU requests are
    only refused."""

    spec = SPEC
    host = "burnish.rollout.vllm.host"

    def _engine_arguments(self, config: RolloutConfig, folder: Path, model: Any) -> dict[str, Any]:
        """For vLLM's AsyncEngineArgs."""
        SPEC.check_arguments(config, "rollout")
        self._kv_gib = kv_gib(token_bytes(model, self.dtype.itemsize), self.context, config.max_num_seqs)
        mapped = {name: getattr(config, key) for name, key in SPEC.keys.items()}
        mapped |= {**SPEC.fixed, "model": str(folder), "max_model_len": self.context}
        mapped["dtype"] = str(self.dtype).removeprefix("torch.")
        if config.tensor_model_parallel_size > 1:
            mapped["distributed_executor_backend"] = "mp"  # its own processes, also inside a Ray actor
        if not config.enable_chunked_prefill:  # a prompt is then read at once, whatever its length
            mapped["max_num_batched_tokens"] = max(config.max_num_batched_tokens, self.context)
        return {"seed": 0, **mapped, **config.engine_kwargs.get("vllm", {})}

    def _process_environment(self, temporary: Path) -> dict[str, str]:
        variables = {
            "VLLM_CPU_KVCACHE_SPACE": str(self._kv_gib),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # replicas on one machine would be bound to the same cores
            "VLLM_USE_V2_MODEL_RUNNER": "0",  # the sampler that `worker` replaces is that of the other one
            "VLLM_NO_USAGE_STATS": "1",
        }
        return environment(temporary, variables, {})

    def _request_arguments(self, request: RequestState) -> dict[str, Any]:
        """For vLLM's SamplingParams. RolloutError for what vLLM would silently sample in another way."""
        sampling, truncates = request.sampling, request.sampling.truncates
        if not sampling.greedy and (problem := SPEC.temperature_problem(sampling.temperature)):
            raise RolloutError(f"request {request.request_id}: temperature {problem}, or another rollout engine")
        return {
            "temperature": sampling.temperature,
            "top_k": max(sampling.top_k, 0) if truncates else 0,
            "top_p": sampling.top_p if truncates else 1.0,
            "min_p": sampling.min_p if truncates else 0.0,
            "stop_token_ids": sorted(request.stop_ids),
            "ignore_eos": True,
            "logprobs": 0,  # that of the sampled token
            "detokenize": False,
        }
