"""The tensorboard logger: event files under `<run folder>/tensorboard`, read with `tensorboard --logdir=outputs`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import indent
from typing import Any

from burnish.errors import ConfigError
from burnish.tracking.base import Backend, RunFacts, few_samples
from burnish.tracking.jsonl import read_metrics
from burnish.tracking.samples import read_samples, sample_steps, samples_folder

EVENTS = "tensorboard"  # in the run folder


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
        writer = self._open()
        for name, value in metrics.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    def log_samples(self, samples: Sequence[Mapping[str, Any]], step: int) -> None:
        """As indented blocks, in which TensorBoard takes nothing for Markdown or HTML."""
        for number, sample in enumerate(samples):
            blocks = [f"{name}\n\n" + indent(str(text), "    ", lambda _: True) for name, text in sample.items()]
            self._open().add_text(f"samples/{number}", "\n\n".join(blocks), step)

    def _open(self) -> Any:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self.facts.folder / EVENTS), purge_step=self._purge_step)
        return self._writer

    def close(self, failed: bool = False) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def write_events(run: Path, out: Path) -> Path:
    """Event files of a run that was logged without them, from its metrics and samples; returns their folder."""
    folder = out / EVENTS
    if folder.exists():
        raise ConfigError(f"{folder} exists already: look at it with tensorboard --logdir {out}, or name another --out")
    backend, samples = TensorboardBackend(RunFacts(out, "", "")), samples_folder(run)
    dumped = set(sample_steps(samples))
    try:
        for metrics in read_metrics(run):
            step = int(metrics.pop("step"))
            if step in dumped:
                backend.log_samples(few_samples(read_samples(samples, step)), step)
            backend.log(metrics, step)
    finally:
        backend.close()
    return folder
