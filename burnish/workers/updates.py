"""How a batch becomes optimiser steps, and what those report; shared by all workers that train a model."""

from collections.abc import Iterator

import numpy as np
import torch

from burnish.engine.batching import mini_batches
from burnish.engine.flops import mfu, sequence_flops
from burnish.engine.trainable import Trainable
from burnish.protocol import DataProto


def update_rows(
    data: DataProto, count: int, epochs: int, shuffle: bool, *, seed: int, step: int
) -> Iterator[np.ndarray]:
    """The rows of each optimiser step: `epochs` times over the batch in `count` mini-batches of whole groups."""
    for epoch in range(epochs):
        yield from mini_batches(
            data.non_tensor_batch["uid"], count, epoch=step * epochs + epoch, shuffle=shuffle, seed=seed
        )


def loss_mask(data: DataProto) -> torch.Tensor:
    """(B, R) the tokens in the policy's loss: those it sampled, without those that a correction rejected.

    Padding rows of a dispatch have no token in `response_mask`, whatever the correction kept of what they repeat.
    """
    sampled: torch.Tensor = data.batch["response_mask"]
    kept = data.batch.get("loss_mask", None)
    return sampled if kept is None else sampled * kept


def rows_with_gradient(data: DataProto) -> np.ndarray:
    """(B,) bool: the rows with an advantage other than 0 on a token of the policy's loss.

    Where there is none, the shortest row: its gradient of 0 still moves the optimiser's moments and decays weights, as
    all of them would have, and the step has its metrics.
    """
    signal: np.ndarray = ((data.batch["advantages"] != 0) & loss_mask(data).bool()).any(-1).numpy()
    if not signal.any():
        signal[np.argmin(lengths(data))] = True
    return signal


def lengths(data: DataProto) -> list[int]:
    """Tokens of each sequence, prompt and response."""
    counts: list[int] = data.batch["attention_mask"].sum(-1).tolist()
    return counts


def update_metrics(
    role: str, updates: list[dict[str, float]], trainable: Trainable, computed: list[int], seconds: float
) -> dict[str, list[float]]:
    """The metrics of the optimiser steps of one batch, by name; what every update reports is named after the role.

    computed   lengths of all sequences that the updates ran the model on, forward and backward
    """
    metrics: dict[str, list[float]] = {}
    for update in updates:
        for name, value in update.items():
            metrics.setdefault(name if "/" in name else f"{role}/{name}", []).append(value)
    processes = 1 if trainable.mesh is None else trainable.mesh.size
    flops = sequence_flops(trainable.module, computed, backward=True) / processes
    utilisation = mfu(flops, seconds, trainable.device)
    if utilisation is not None:
        metrics[f"perf/mfu/{role}"] = [utilisation]
    if trainable.device.type == "cuda":
        metrics["perf/max_memory_allocated_gb"] = [torch.cuda.max_memory_allocated(trainable.device) / 2**30]
    return metrics
