"""What a step tells about itself: samples as a person reads them, the policy's entropy, the gradient's noise.

Consumes finished batches; hands on rows for the run folder and metrics. Nothing here changes a batch.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from burnish.algorithms.variance import variance_proxy_metrics
from burnish.data.augment import AUGMENTED
from burnish.protocol import DataProto
from burnish.workers.trajectories import VERSIONS


def sample_rows(batch: DataProto, tokenizer: Any) -> list[dict[str, Any]]:
    """One plain dictionary per trajectory: texts, score, and token by token the policy's mask, log-probs, advantage and
    version, the latter where generation runs ahead."""
    columns, others = batch.batch, batch.non_tensor_batch
    prompts, responses, mask = (columns[name].numpy() for name in ("prompts", "responses", "response_mask"))
    prompts_there, responses_there = np.split(columns["attention_mask"].bool().numpy(), [prompts.shape[1]], axis=1)
    scores = columns["token_level_scores"].sum(-1).tolist()
    rounded = {  # because these files are read by people and grow with every token
        name: columns[name].double().numpy().round(4) for name in ("rollout_log_probs", "advantages") if name in columns
    }
    rows = []
    for i in range(len(batch)):
        real = responses_there[i]
        row = {
            "uid": others["uid"][i],
            "sample": others["sample"][i],
            "data_source": others["data_source"][i],
            "prompt": tokenizer.decode(prompts[i][prompts_there[i]]),
            "response": tokenizer.decode(responses[i][real]),
            "ground_truth": (others["reward_model"][i] or {}).get("ground_truth"),
            "turns": others["num_turns"][i],
            "finish_reason": others["finish_reason"][i],
            "policy_version": others["policy_version"][i],
            "score": scores[i],
            "reward_info": others["reward_info"][i],
            "response_mask": mask[i][real].tolist(),
        }
        if VERSIONS in columns:
            row[VERSIONS] = columns[VERSIONS][i].numpy()[real].tolist()  # of the weights that sampled each token
        if AUGMENTED in others and others[AUGMENTED][i] is not None:
            row[AUGMENTED] = others[AUGMENTED][i]  # the prompt was proposed while training, and by whom
        rows.append(row | {name: values[i][real].tolist() for name, values in rounded.items()})
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
