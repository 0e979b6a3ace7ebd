"""What burnish adds to the processes of vLLM that compute: new weights, log-probs as training has them, a sign of life.

vLLM makes `BurnishWorker` a base class of its worker there, whose attributes it therefore has, and calls its methods in
all of them at once.
"""

import os
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler

from burnish.rollout.hosted.weights import read_weights


class ScaledSampler(Sampler):
    """vLLM's sampler, but for log-probs: of logits / temperature over all tokens, before top-k, top-p and min-p."""

    def __init__(self, use_fp64_gumbel: bool) -> None:
        super().__init__("raw_logprobs", use_fp64_gumbel)  # so that no part computes those that are not asked for
        self.logprobs_mode = "processed_logprobs"

    def sample(
        self, logits: Tensor, sampling_metadata: SamplingMetadata, logprobs_mode_override: Any = None
    ) -> tuple[Tensor, Tensor | None]:
        log_probs = None
        if sampling_metadata.max_num_logprobs is not None:
            log_probs = self.compute_logprobs(_scaled(logits, sampling_metadata))
        sampled, _ = super().sample(logits, sampling_metadata, "raw_logprobs")  # which changes the logits in place
        return sampled, log_probs

    @staticmethod
    def gather_logprobs(logprobs: Tensor, num_logprobs: int, token_ids: Tensor) -> LogprobsTensors:
        """Those of the tokens themselves, which is all that burnish asks for. Ranks, which vLLM compiles a kernel for,
        are not counted."""
        assert num_logprobs == 0, f"{num_logprobs} log-probs per token were asked for"
        column = token_ids.unsqueeze(-1)
        return LogprobsTensors(column.to(torch.int32), logprobs.gather(-1, column), torch.zeros_like(token_ids))


def _scaled(logits: Tensor, metadata: SamplingMetadata) -> Tensor:
    if metadata.all_greedy:
        return logits
    assert metadata.temperature is not None, "some requests are sampled"
    return Sampler.apply_temperature(logits.clone(), metadata.temperature, metadata.all_random)


def _follow_ties(model: Any) -> None:
    """An output layer that is tied to the embedding has nothing loaded into it, so vLLM leaves what it made of the
    weights before: on a CPU, a packed copy."""
    for head in (part for part in model.modules() if isinstance(part, ParallelLMHead)):
        head.quant_method.process_weights_after_loading(head)


class BurnishWorker:
    """Names begin with `burnish_`, because those of vLLM's worker must not be among them."""

    model_runner: Any

    def burnish_prepare(self) -> int:
        """Before the first request; gives the process id."""
        runner = self.model_runner
        if not isinstance(getattr(runner, "sampler", None), Sampler):
            raise RuntimeError(
                f"burnish cannot replace the sampler of {type(runner).__module__}.{type(runner).__name__}, so log-probs"
                " would be others than those of training; unset VLLM_USE_V2_MODEL_RUNNER"
            )
        runner.sampler = ScaledSampler(runner.sampler.use_fp64_gumbel)
        return os.getpid()

    def burnish_alive(self) -> bool:
        return True

    def burnish_load(self, files: list[str]) -> dict[str, Any]:
        """Take over the weights in these files, this worker's share of them: the digests of what was read, and the
        model's weights that nothing was loaded into."""
        digests: dict[str, str] = {}
        model: Any = self.model_runner.get_model()
        loaded: set[str] = set()

        own_load = model.load_weights

        def load_and_note(weights: Iterable[tuple[str, Tensor]]) -> Any:
            names = own_load(weights)
            loaded.update(names if names is not None else own)  # a model that does not say has its own checks
            return names

        own = [name for name, _ in model.named_parameters()]
        model.load_weights = load_and_note
        try:
            with torch.inference_mode():
                self.reload_weights(weights_iterator=read_weights(files, digests))  # type: ignore[attr-defined]
        finally:
            del model.load_weights
        _follow_ties(model)
        return {"digests": digests, "absent": [name for name in own if name not in loaded]}
