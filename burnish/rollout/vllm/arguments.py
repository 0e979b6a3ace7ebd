"""What burnish's configuration means to vLLM: arguments of its engine and of one request, and variables.

Pure: nothing here imports vLLM.
"""

from pathlib import Path
from typing import Any

from burnish.config.rollout import RolloutConfig
from burnish.errors import RolloutError
from burnish.rollout.base import Sampling, request_seed
from burnish.rollout.vllm.spec import SPEC


def engine_arguments(config: RolloutConfig, folder: Path, context: int, dtype: str) -> dict[str, Any]:
    """For vLLM's AsyncEngineArgs. `folder` has the model's config.json and nothing else."""
    SPEC.check_arguments(config, "rollout")
    mapped = {name: getattr(config, key) for name, key in SPEC.keys.items()}
    mapped |= {**SPEC.fixed, "model": str(folder), "max_model_len": context, "dtype": dtype}
    if config.tensor_model_parallel_size > 1:
        mapped["distributed_executor_backend"] = "mp"  # its own processes, also inside a Ray actor
    if not config.enable_chunked_prefill:  # a prompt is then read at once, whatever its length
        mapped["max_num_batched_tokens"] = max(config.max_num_batched_tokens, context)
    return {"seed": 0, **mapped, **config.engine_kwargs.get("vllm", {})}


def variables(kv_gib: int) -> dict[str, str]:
    """Of vLLM's processes, where the user has not set them."""
    return {
        "VLLM_CPU_KVCACHE_SPACE": str(kv_gib),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # replicas on one machine would be bound to the same cores
        "VLLM_USE_V2_MODEL_RUNNER": "0",  # the sampler that `worker` replaces is that of the other one
        "VLLM_NO_USAGE_STATS": "1",
    }


def check_sampling(sampling: Sampling, request_id: str) -> None:
    """RolloutError for what vLLM would silently sample in another way."""
    if not sampling.greedy and (problem := SPEC.temperature_problem(sampling.temperature)):
        raise RolloutError(f"request {request_id}: temperature {problem}, or another rollout engine")


def sampling_arguments(sampling: Sampling, stop_ids: frozenset[int]) -> dict[str, Any]:
    """For vLLM's SamplingParams. Ends of sequences are among `stop_ids`; stop strings are matched by the engine."""
    truncates = sampling.truncates
    return {
        "temperature": sampling.temperature,
        "top_k": max(sampling.top_k, 0) if truncates else 0,
        "top_p": sampling.top_p if truncates else 1.0,
        "min_p": sampling.min_p if truncates else 0.0,
        "stop_token_ids": sorted(stop_ids),
        "ignore_eos": True,
        "logprobs": 0,  # that of the sampled token
        "detokenize": False,
    }


def part_seed(seed: int, position: int) -> int:
    """The seed of the part of a completion that begins at a position. vLLM's noise restarts with each part."""
    mixed = request_seed(seed, "part", 0, 0, position) if position else seed
    return mixed & (2**63 - 1)
