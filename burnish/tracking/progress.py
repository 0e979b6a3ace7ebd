"""Progress of work that is counted in items: a bar on a terminal, a line now and then elsewhere; on stderr."""

import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from burnish.literal import one_line
from burnish.tracking.batches import BatchLines, batch_in_words, current_batch

LINE_EVERY_S = 15.0


class BatchColumn(ProgressColumn):
    """The trajectories that are being generated, if any."""

    def render(self, task: Task) -> Text:
        batch = current_batch()
        return Text(f"({batch_in_words(batch._replace(doing='batch:'))})" if batch else "")


class Progress:
    """`total` items of which `done` were done before; `advance` adds more."""

    def __init__(self, what: str, total: int, *, done: int = 0, unit: str = "rows", console: Console | None = None):
        self.what, self.total, self.unit = one_line(what), total, unit
        self.done = self._before = done
        self.console = console or Console(stderr=True)
        self._began = self._said = time.monotonic()
        self._bar: RichProgress | None = None
        self._lines = BatchLines(current_batch, lambda text: self._print(f"{self.what}: {text}"))

    def __enter__(self) -> Self:
        if self.console.is_terminal and not self.console.is_dumb_terminal:
            what = TextColumn("{task.description}", markup=False)
            note = TextColumn("{task.fields[note]}", markup=False)
            columns = (what, BarColumn(), MofNCompleteColumn(), note, TimeRemainingColumn(), BatchColumn())
            self._bar = RichProgress(*columns, console=self.console)
            self._task = self._bar.add_task(self.what, total=self.total, completed=self.done, note=self.unit)
            self._bar.start()
        else:
            self._lines.start()
        return self

    def advance(self, count: int = 1, note: str = "") -> None:
        """`count` more items are done; `note` is shown next to them."""
        self.done += count
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done, note=f"{self.unit} {note}".strip())
            return
        now = time.monotonic()
        if now - self._said >= LINE_EVERY_S or self.done == self.total:
            self._said = now
            spent, fresh = now - self._began, self.done - self._before
            parts = [f"{self.what}: {self.done}/{self.total} {self.unit}", note, f"{spent:.0f} s"]
            if self.done < self.total:
                parts.append(f"{spent / fresh * (self.total - self.done) if fresh else 0.0:.0f} s left")
            self._print(", ".join(filter(None, parts)))

    def _print(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def __exit__(self, *_: object) -> None:
        self._lines.stop()
        if self._bar is not None:
            self._bar.stop()
