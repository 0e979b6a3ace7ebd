"""Passes that ran out of memory are made again, once, in smaller ones: the cut never changes a result. Not where
several processes share a model, which make their passes in step."""

import gc
import logging
from collections.abc import Iterator, Sequence

import torch

from burnish.engine.batching import MicroBatch
from burnish.engine.mesh import Mesh

log = logging.getLogger(__name__)

OOM_RETRIES = "failures/oom_retries"  # the metric


class OomRetries:
    """How many there were in this process since they were last counted."""

    count = 0

    @classmethod
    def take(cls) -> int:
        taken, cls.count = cls.count, 0
        return taken


class Attempt:
    """Passes of a size, as `with attempt:`. `smaller` is set where they ran out of memory and may be tried again."""

    def __init__(self, micro: MicroBatch, lengths: Sequence[int], *, may_fail: bool, again: bool = False):
        self.micro, self.lengths, self.may_fail, self.again = micro, lengths, may_fail, again
        self.smaller: MicroBatch | None = None

    def __enter__(self) -> None:
        if self.again:
            gc.collect()  # what failed held its tensors
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> bool:
        if self.may_fail and kind is not None and issubclass(kind, torch.OutOfMemoryError):
            self.smaller = self.micro.halved(self.lengths)
        return self.smaller is not None


def attempts(lengths: Sequence[int], micro: MicroBatch, mesh: Mesh | None) -> Iterator[Attempt]:
    """One, and where it runs out of memory a second one with passes of half the size. A loop and no function around
    the passes, so that they are no further from the trainer."""
    first = Attempt(micro, lengths, may_fail=mesh is None)
    yield first
    if first.smaller is not None:
        log.warning("out of memory in passes of %s; once more in passes of %s", micro, first.smaller)
        OomRetries.count += 1
        yield Attempt(first.smaller, lengths, may_fail=False, again=True)
