"""The tensorboard logger: event files under `<run folder>/tensorboard`, read with `tensorboard --logdir=outputs`."""

from collections.abc import Mapping
from typing import Any

from burnish.tracking.base import Backend, RunFacts


class TensorboardBackend(Backend):
    def __init__(self, facts: RunFacts):
        super().__init__(facts)
        self._writer: Any = None
        self._purge_step: int | None = None

    def check(self) -> None:
        from torch.utils.tensorboard import SummaryWriter  # noqa: F401

    def resume(self, step: int) -> None:
        # TensorBoard then hides what earlier event files hold from this step on.
        self._purge_step = step + 1

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self.facts.folder / "tensorboard"), purge_step=self._purge_step)
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, failed: bool = False) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
