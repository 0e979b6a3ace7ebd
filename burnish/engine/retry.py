"""Passes that ran out of memory are made again, once, in smaller ones: the cut never changes a result. Not where
several processes share a model, which make their passes in step."""

import gc
import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from burnish.engine.batching import MicroBatch

log = logging.getLogger(__name__)

T = TypeVar("T")
OOM_RETRIES = "failures/oom_retries"  # the metric


class OomRetries:
    """How many there were in this process since they were last counted."""

    count = 0

    @classmethod
    def take(cls) -> int:
        taken, cls.count = cls.count, 0
        return taken


def in_smaller_passes(run: Callable[[MicroBatch], T], lengths: Sequence[int], micro: MicroBatch) -> T:
    """`run(micro)`; where the device runs out of memory, once more with passes of half the size."""
    try:
        return run(micro)
    except torch.OutOfMemoryError:
        smaller = micro.halved(lengths)
        if smaller is None:
            raise
        log.warning("out of memory in passes of %s; once more in passes of %s", micro, smaller)
    OomRetries.count += 1
    gc.collect()  # out of the handler: what failed held its tensors
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return run(smaller)
