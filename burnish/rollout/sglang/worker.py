"""What burnish adds to the processes of SGLang that compute: new weights, noise by seed and place, a sign of life.

SGLang calls `run_worker` in each of them in place of its own function, which runs in it with a scheduler and a sampler
of ours. Log-probs are SGLang's own: of logits / temperature over all tokens, before top-k, top-p and min-p.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from sglang.srt.layers import sampler
from sglang.srt.managers import scheduler
from sglang.srt.runtime_context import get_parallel
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
from torch import Tensor, nn

from burnish.ops.sampling import draw, uniforms
from burnish.rollout.hosted.weights import read_weights


def run_worker(*arguments: Any, **named: Any) -> None:
    scheduler.Scheduler = BurnishScheduler
    sampler.Sampler._sample_from_probs = _sample_from_probs
    SamplingBatchInfo.from_schedule_batch = classmethod(_with_seeds)
    scheduler.run_scheduler_process(*arguments, **named)


_from_schedule_batch = SamplingBatchInfo.from_schedule_batch.__func__


def _with_seeds(cls: type[SamplingBatchInfo], batch: Any, vocab_size: int) -> SamplingBatchInfo:
    """With (B, 2) seeds and where completions begin. SGLang itself keeps seeds for some kernels only, and rows of
    whatever shape together with the other columns."""
    info = _from_schedule_batch(cls, batch, vocab_size)
    rows = [
        (r.sampling_params.sampling_seed or 0, (r.sampling_params.custom_params or {}).get("begin", 0))
        for r in batch.reqs
    ]
    info.sampling_seed = torch.tensor(rows, dtype=torch.int64, device=batch.device)
    return info


def _sample_from_probs(
    self: sampler.Sampler,
    probs: Tensor,
    sampling_info: SamplingBatchInfo,
    positions: Tensor,
    simple_sampling_case: bool,
) -> tuple[Tensor, None]:
    """As the native engine does. `positions` (B,) are of the tokens that were read last."""
    seeds, begin = sampling_info.sampling_seed.unbind(1)
    noise = uniforms(seeds, positions + 1 - begin)
    truncation = None
    if not simple_sampling_case:  # a greedy row has top_k 1
        truncation = (sampling_info.top_ks, sampling_info.top_ps, sampling_info.min_ps)
    tokens, _ = draw(probs.log(), torch.ones_like(noise, dtype=torch.float32), noise, truncation)
    return tokens.to(torch.int32), None


class BurnishScheduler(scheduler.Scheduler):
    """Names begin with `burnish_`, because those of SGLang's scheduler must not be among them. All ranks are called at
    once, and each writes its answer into a folder."""

    def burnish_prepare(self, answers: str) -> None:
        self._burnish_answer(answers, {"pid": os.getpid()})

    def burnish_alive(self, answers: str) -> None:
        self._burnish_answer(answers, {})

    def burnish_load(self, files: list[str], answers: str) -> None:
        """Take over the weights in these files, this worker's share of them: the digests of what was read, and the
        model's weights that nothing was loaded into."""
        try:
            answer = _load(self.tp_worker.model_runner.model, files)
        except Exception as error:  # noqa: BLE001 (the host reports it)
            answer = {"problem": f"{type(error).__name__}: {error}"}
        self._burnish_answer(answers, answer)

    def _burnish_answer(self, answers: str, value: dict[str, Any]) -> None:
        (Path(answers) / f"{get_parallel().tp_rank}.json").write_text(json.dumps(value))


@torch.no_grad()
def _load(model: nn.Module, files: list[str]) -> dict[str, Any]:
    """SGLang passes over names that it does not know and does not say what it loaded. So all weights are NaN before."""
    digests: dict[str, str] = {}
    is_sound = True

    def all_weights() -> Iterator[tuple[str, Tensor]]:
        nonlocal is_sound
        for name, tensor in read_weights(files, digests):
            is_sound = is_sound and not bool(tensor.isnan().any())
            yield name, tensor

    weights = [(name, weight) for name, weight in model.named_parameters() if weight.is_floating_point()]
    for _, weight in weights:
        weight.fill_(torch.nan)
    model.load_weights(all_weights())  # type: ignore[operator]
    absent = [name for name, weight in weights if bool(weight.isnan().any())] if is_sound else []
    return {"digests": digests, "absent": absent}
