"""How a batch becomes optimiser steps, and what those report; shared by actor and critic."""

from collections.abc import Iterator

import numpy as np
import torch

from burnish.engine.batching import mini_batches
from burnish.engine.flops import mfu, sequence_flops
from burnish.engine.trainable import Trainable
from burnish.protocol import DataProto


def passes(data: DataProto, count: int, epochs: int, shuffle: bool, *, seed: int, step: int) -> Iterator[np.ndarray]:
    """The rows of each optimiser step: `epochs` times over the batch in `count` mini-batches of whole groups."""
    for epoch in range(epochs):
        yield from mini_batches(
            data.non_tensor_batch["uid"], count, epoch=step * epochs + epoch, shuffle=shuffle, seed=seed
        )


def update_metrics(
    role: str, updates: list[dict[str, float]], trainable: Trainable, data: DataProto, epochs: int, seconds: float
) -> dict[str, list[float]]:
    """The metrics of the optimiser steps of one batch, by name; what every update reports is named after the role."""
    metrics: dict[str, list[float]] = {}
    for update in updates:
        for name, value in update.items():
            metrics.setdefault(name if "/" in name else f"{role}/{name}", []).append(value)
    lengths = data.batch["attention_mask"].sum(-1).tolist()
    utilisation = mfu(epochs * sequence_flops(trainable.module, lengths, backward=True), seconds, trainable.device)
    if utilisation is not None:
        metrics[f"perf/mfu/{role}"] = [utilisation]
    if trainable.device.type == "cuda":
        metrics["perf/max_memory_allocated_gb"] = [torch.cuda.max_memory_allocated(trainable.device) / 2**30]
    return metrics
