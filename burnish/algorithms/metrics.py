"""What a step reports about its data, its time and its speed, under the names the field knows.

Consumes the batch's tensors after the credit stage and the seconds each stage took; returns plain numbers by name.
Scores, rewards, advantages, returns and values are read inside the mask only. Lengths count every real token, also
the observations of a multi-turn response.

How we differ from the usual implementation: clip ratios compare with the configured maximum, not with a tensor's
width; `reduce_metrics` goes by the last word of a name, so that "administrative" is not a minimum; turns are reported
as `training/num_turns/*`; where nothing was counted a statistic is left out rather than invented.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from burnish.algorithms.masked import masked_sum, masked_var

Batch = Mapping[str, torch.Tensor]
ArrayLike = Sequence[float] | np.ndarray

# Stages that touch every token of the batch, prompts included; "gen" only makes responses, also those left out of it.
STAGES_OVER_ALL_TOKENS = ("old_log_prob", "ref", "values", "process_reward", "adv", "update_critic", "update_actor")


def data_metrics(
    batch: Batch,
    *,
    max_prompt_length: int,
    max_response_length: int,
    accuracy: ArrayLike | None = None,
    num_turns: ArrayLike | None = None,
    tool_call_counts: ArrayLike | None = None,
) -> dict[str, float]:
    """Rewards, advantages and lengths of a batch.

    batch: token_level_scores, token_level_rewards, advantages, returns, response_mask (B, R), attention_mask (B, P+R),
    and values (B, R) where there is a critic. The other arrays are (B,). Without `accuracy` (the reward function's
    `acc`, NaN for samples that have none), scores that are all 0 or 1 stand for it.
    """
    mask = batch["response_mask"].bool()
    prompt, response = lengths(batch)
    present = response > 0  # an aborted response has no tokens and no score
    scores = masked_sum(batch["token_level_scores"], mask, dim=-1)[present]
    rewards = masked_sum(batch["token_level_rewards"], mask, dim=-1)[present]
    if accuracy is not None:
        known = np.asarray(accuracy, dtype=float)[present.numpy(force=True)]
        accuracy = known[~np.isnan(known)]
    elif bool(((scores == 0) | (scores == 1)).all()):
        accuracy = scores.numpy(force=True)
    values = {}
    if "values" in batch.keys():  # noqa: SIM118  (a TensorDict answers `in` only for its keys)
        values = _spread("critic/values", batch["values"][mask])
        if mask.sum() > 1:  # how well the critic knew the returns: 1 is perfect, 0 no better than a constant
            gap = masked_var(batch["returns"] - batch["values"], mask) / (masked_var(batch["returns"], mask) + 1e-5)
            values["critic/vf_explained_var"] = 1 - float(gap)
    return {
        **_spread("critic/score", scores),
        **_spread("critic/rewards", rewards),
        **_spread("critic/advantages", batch["advantages"][mask]),
        **_spread("critic/returns", batch["returns"][mask]),
        **values,
        **_length("response_length", response, max_response_length),
        **_length("response_length_non_aborted", response[present], max_response_length),
        "response/aborted_ratio": 1 - _mean(present),
        **_length("prompt_length", prompt, max_prompt_length),
        **_spread("training/num_turns", _tensor(num_turns)),
        **_spread("tool_call_counts", _tensor(tool_call_counts)),
        **_only_mean("reward/mean", scores),
        **_only_mean("accuracy", _tensor(accuracy)),
    }


def lengths(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Real tokens of each prompt and of each response, both (B,)."""
    width = batch["response_mask"].shape[-1]
    attention = batch["attention_mask"].bool()
    return attention[:, :-width].sum(-1), attention[:, -width:].sum(-1)


def timing_metrics(seconds: Mapping[str, float], *, total_tokens: int, response_tokens: int) -> dict[str, float]:
    """`timing_s/<stage>` for every stage and `timing_per_token_ms/<stage>` for those that work token by token.

    total_tokens: of the batch. response_tokens: of all responses that were generated for it.
    """
    tokens = {"gen": response_tokens, **dict.fromkeys(STAGES_OVER_ALL_TOKENS, total_tokens)}
    per_token = {stage: seconds[stage] * 1000 / n for stage, n in tokens.items() if stage in seconds and n > 0}
    return {
        **{f"timing_s/{stage}": value for stage, value in seconds.items()},
        **{f"timing_per_token_ms/{stage}": value for stage, value in per_token.items()},
    }


def throughput_metrics(*, total_tokens: int, step_seconds: float, n_devices: int) -> dict[str, float]:
    """Tokens per second and device, prompts and responses together."""
    return {
        "perf/total_num_tokens": total_tokens,
        "perf/time_per_step": step_seconds,
        "perf/throughput": total_tokens / (step_seconds * n_devices),
    }


def reduce_metrics(metrics: Mapping[str, float | Sequence[float]]) -> dict[str, float]:
    """One number per name from those of several updates: the largest `…max`, the smallest `…min`, else the mean.

    A `…max_deviation` is a `…max`. A "max" further in front is not: `…_seq_max_k3_mean` is a mean.
    """
    reduced = {}
    for name, values in metrics.items():
        last_word = name.rsplit("/", 1)[-1].removesuffix("_deviation").rsplit("_", 1)[-1]
        reduce = {"max": np.max, "min": np.min}.get(last_word, np.mean)
        reduced[name] = float(reduce(values))
    return reduced


def _spread(name: str, values: torch.Tensor) -> dict[str, float]:
    if values.numel() == 0:
        return {}
    return {f"{name}/mean": _mean(values), f"{name}/max": float(values.max()), f"{name}/min": float(values.min())}


def _length(name: str, values: torch.Tensor, maximum: int) -> dict[str, float]:
    return {**_spread(name, values), **_only_mean(f"{name}/clip_ratio", values >= maximum)}


def _only_mean(name: str, values: torch.Tensor) -> dict[str, float]:
    return {name: _mean(values)} if values.numel() else {}


def _mean(values: torch.Tensor) -> float:
    return float(values.double().mean())  # the sum of large rewards may be more than float32 holds


def _tensor(values: ArrayLike | None) -> torch.Tensor:
    """(B,), empty for None."""
    return torch.as_tensor(np.asarray([] if values is None else values, dtype=np.float64))
