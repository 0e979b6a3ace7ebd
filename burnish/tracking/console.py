"""The console logger: a small live table on a terminal, one plain line per step elsewhere.

It shows the few figures one watches; `metrics.jsonl` holds all. The table keeps the last rows and a progress line with
the time left; prints and log lines of the run appear above it. The plain lines carry the full metric names, so that
`grep critic/score/mean` works on a log file. Validation results are printed when they come.
"""

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import rich
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from burnish.tracking.base import Backend, RunFacts

ROWS = 10
SPARKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Column:
    """A column of the table: its heading, the metrics it can show (the first one present), their format."""

    heading: str
    metrics: tuple[str, ...]
    form: str

    def metric(self, metrics: Mapping[str, float]) -> str | None:
        return next((name for name in self.metrics if name in metrics), None)


REWARD = Column("reward", ("critic/score/mean", "reward/mean"), ".3f")
COLUMNS = (
    REWARD,
    Column("accuracy", ("accuracy",), ".3f"),
    Column("loss", ("train/loss",), ".4f"),
    Column("val loss", ("val/loss",), ".4f"),
    Column("KL", ("actor/kl_loss", "actor/reward_kl_penalty", "actor/ppo_kl"), ".4f"),
    Column("length", ("response_length/mean",), ".1f"),
    Column("tok/s", ("perf/throughput",), ",.0f"),
)


class ConsoleBackend(Backend):
    def __init__(self, facts: RunFacts, console: Console | None = None):
        super().__init__(facts)
        self.console = console or rich.get_console()
        self._pace = Pace(facts.total_steps)
        self._rows: deque[tuple[int, Mapping[str, float]]] = deque(maxlen=ROWS)
        self._rewards: deque[float] = deque(maxlen=24)
        self._live: Live | None = None

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._pace.reached(step, metrics)
        validation = [f"{name} {value:.4f}" for name, value in metrics.items() if name.startswith("val-core/")]
        if validation:
            self._print(f"validation at step {step}: " + ", ".join(validation))
        if any(column.metric(metrics) for column in COLUMNS):
            self._show(metrics, step)

    def _show(self, metrics: Mapping[str, float], step: int) -> None:
        if not self.console.is_terminal or self.console.is_dumb_terminal:
            self._print(self._line(metrics, step))
            return
        self._rows.append((step, metrics))
        reward = REWARD.metric(metrics)
        if reward is not None:
            self._rewards.append(metrics[reward])
        if self._live is None:
            self._live = Live(get_renderable=self._view, console=self.console, refresh_per_second=2)
            self._live.start()
        self._live.refresh()

    def close(self, failed: bool = False) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def _print(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)

    def _line(self, metrics: Mapping[str, float], step: int) -> str:
        parts = [f"step:{self._pace.count(step)}"]
        for column in COLUMNS:
            name = column.metric(metrics)
            if name is not None:
                parts.append(f"{name}:{metrics[name]:{column.form.replace(',', '')}}")
        left = self._pace.left()
        return " - ".join([*parts, f"left:{clock(left)}"] if left is not None else parts)

    def _view(self) -> RenderableType:
        rows = list(self._rows)
        shown = [column for column in COLUMNS if any(column.metric(metrics) for _, metrics in rows)]
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("step", justify="right")
        for column in shown:
            table.add_column(column.heading, justify="right", min_width=8)
        for step, metrics in rows:
            names = [column.metric(metrics) for column in shown]
            cells = [f"{metrics[n]:{c.form}}" if n else "" for n, c in zip(names, shown, strict=True)]
            table.add_row(str(step), *cells)
        return Group(table, self._progress(rows[-1][0] if rows else 0))

    def _progress(self, step: int) -> RenderableType:
        total, left = self._pace.total, self._pace.left()
        words = [f"step {self._pace.count(step)}"]
        if left is not None:
            words.append(f"{clock(left)} left" if left > 0 else f"{clock(self._pace.elapsed())} in all")
        if len(self._rewards) > 1:
            words.append(f"reward {sparkline(list(self._rewards))}")
        line = Text(" · ".join(words))
        if not total:
            return line
        grid = Table.grid(padding=(0, 1))
        grid.add_row(ProgressBar(total=total, completed=min(step, total), width=24), line)
        return grid


class Pace:
    """How fast steps go by, and so how long the rest takes."""

    def __init__(self, total: int | None):
        self.total = total
        self._first: tuple[int, float] | None = None  # a step and when it ended
        self._last = 0
        self._reached = 0.0
        self._seconds_per_step: float | None = None

    def reached(self, step: int, metrics: Mapping[str, float]) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first = (step, now)
            self._seconds_per_step = metrics.get("timing_s/step")
        elif step > self._first[0]:
            self._seconds_per_step = (now - self._first[1]) / (step - self._first[0])
        self._last, self._reached = step, now

    def left(self) -> float | None:
        """Seconds to go; None where the number of steps or their pace is not known yet."""
        if self.total is None or self._seconds_per_step is None:
            return None
        steps = max(self.total - self._last, 0)
        # Time passes between steps too, but the rest never falls below the steps after this one.
        rest = steps * self._seconds_per_step - (time.monotonic() - self._reached)
        return max(rest, max(steps - 1, 0) * self._seconds_per_step)

    def elapsed(self) -> float:
        return time.monotonic() - self._first[1] if self._first else 0.0

    def count(self, step: int) -> str:
        return f"{step}/{self.total}" if self.total else str(step)


def clock(seconds: float) -> str:
    """85 → 01:25, 3700 → 1:01:40."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"


def sparkline(values: list[float]) -> str:
    """The values as a row of bars; those that are not finite leave a gap."""
    finite = [v for v in values if v - v == 0]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    scale = (len(SPARKS) - 1) / (high - low) if high > low else 0.0
    return "".join(SPARKS[round((v - low) * scale)] if v - v == 0 else " " for v in values)
