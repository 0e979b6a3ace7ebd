"""What a step tells about itself: samples as a person reads them, the policy's entropy, the gradient's noise.

Consumes finished batches; hands on rows for the run folder and metrics. Nothing here changes a batch.
"""

from collections.abc import Mapping
from typing import Any

from burnish.algorithms.variance import variance_proxy_metrics
from burnish.data.augment import AUGMENTED
from burnish.protocol import DataProto


def sample_rows(batch: DataProto, tokenizer: Any) -> list[dict[str, Any]]:
    """One plain dictionary per trajectory: texts, the policy's mask and log-probs token by token, score, advantage."""
    columns, others = batch.batch, batch.non_tensor_batch
    width = columns["responses"].shape[1]
    prompts_there, responses_there = (
        columns["attention_mask"].bool().split([columns["prompts"].shape[1], width], dim=-1)
    )
    rows = []
    for i in range(len(batch)):
        real = responses_there[i]
        row = {
            "uid": others["uid"][i],
            "sample": others["sample"][i],
            "data_source": others["data_source"][i],
            "prompt": tokenizer.decode(columns["prompts"][i][prompts_there[i]].tolist()),
            "response": tokenizer.decode(columns["responses"][i][real].tolist()),
            "ground_truth": (others["reward_model"][i] or {}).get("ground_truth"),
            "turns": others["num_turns"][i],
            "finish_reason": others["finish_reason"][i],
            "score": float(columns["token_level_scores"][i].sum()),
            "reward_info": others["reward_info"][i],
            "response_mask": columns["response_mask"][i][real].tolist(),
        }
        if AUGMENTED in others and others[AUGMENTED][i] is not None:
            row[AUGMENTED] = others[AUGMENTED][i]  # the prompt was proposed while training, and by whom
        for name in ("rollout_log_probs", "advantages"):
            if name in columns:  # rounded: these files are read by people and grow with every token
                row[name] = [round(value, 4) for value in columns[name][i][real].tolist()]
        rows.append(row)
    return rows


def entropy_metrics(batch: DataProto) -> dict[str, float]:
    """The policy's mean entropy at the tokens it sampled; nothing where no pass computed it."""
    if "entropys" not in batch.batch:
        return {}
    inside = batch.batch["response_mask"].bool()
    return {"actor/entropy": float(batch.batch["entropys"][inside].mean())}


def variance_metrics(batch: DataProto, metrics: Mapping[str, float]) -> dict[str, float]:
    """How noisy the gradient is, where the log-prob pass gave what that is estimated from."""
    if "sum_pi_squared" not in batch.batch:
        return {}
    return variance_proxy_metrics(batch.batch, metrics.get("actor/grad_norm"))
