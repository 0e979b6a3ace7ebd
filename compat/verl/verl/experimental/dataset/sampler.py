"""The base of users' samplers (`data.sampler`)."""

from abc import abstractmethod
from collections.abc import Sized
from typing import Any

from torch.utils.data import Sampler


class AbstractSampler(Sampler[int]):
    """Iterated once for each epoch, after `set_epoch(epoch)` if there is such a method. The order follows from that
    alone, so that a run can resume."""

    @abstractmethod
    def __init__(self, data_source: Sized, data_config: Any): ...
