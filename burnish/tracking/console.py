"""The console logger: the few metrics one watches, as a growing table on a terminal, elsewhere as one plain line per
step with full metric names. On a terminal only the last line (progress, time left, long waits) is redrawn."""

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import rich
from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from burnish.literal import one_line
from burnish.tracking.base import Backend, RunFacts
from burnish.tracking.batches import BatchLines, batch_in_words, clock, current_batch
from burnish.waits import longest

HEADING_EVERY = 20  # rows
WIDTH, GAP = 8, 2  # of a column, and before it
BAR, REWARDS = 20, 24  # of the progress line: the bar and the sparkline, where there is room
SPARKS = "▁▂▃▄▅▆▇█"
LONG_WAIT_S = 5.0  # a wait is shown from then on
GENERATES = ("engine", "worker")  # waits for what a batch's progress shows


@dataclass(frozen=True)
class Column:
    heading: str
    metrics: tuple[str, ...]
    form: str

    def metric(self, metrics: Mapping[str, float]) -> str | None:
        return next((name for name in self.metrics if name in metrics), None)


REWARD = Column("reward", ("critic/score/mean", "reward/mean"), ".3f")
COLUMNS = (
    REWARD,
    Column("accuracy", ("accuracy", "train/accuracy"), ".3f"),
    Column("loss", ("train/loss",), ".4f"),
    Column("val loss", ("val/loss",), ".4f"),
    Column("val acc", ("val/accuracy",), ".3f"),
    Column("useful", ("groups/useful_ratio",), ".2f"),  # share of groups with responses of different reward
    Column("entropy", ("response/entropy", "actor/entropy"), ".3f"),  # the first is over all tokens
    Column("KL", ("actor/kl_loss", "actor/reward_kl_penalty"), ".4f"),  # where the run has a KL term
    Column("grad", ("actor/grad_norm", "train/grad_norm"), ".3f"),
    Column("length", ("response_length/mean",), ".1f"),
    Column("clipped", ("actor/pg_clipfrac",), ".3f"),  # share of tokens
    Column("lr", ("actor/lr", "train/lr"), ".1e"),
    Column("new", ("augment/share",), ".2f"),  # where prompts are added while training
    Column("tok/s", ("perf/throughput",), ",.0f"),
)


class ConsoleBackend(Backend):
    def __init__(self, facts: RunFacts, console: Console | None = None):
        super().__init__(facts)
        self.console = console or rich.get_console()
        self._pace = Pace(facts.total_steps)
        self._columns: tuple[Column, ...] = ()  # those of the last heading
        self._rows = 0  # below the last heading
        self._step = 0
        self._rewards: deque[float] = deque(maxlen=REWARDS)
        self._live: Live | None = None
        self._lines = BatchLines(partial(current_batch, facts.folder), self._print)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._pace.reached(step, metrics)
        if any(column.metric(metrics) for column in COLUMNS):
            self._show(metrics, step)
        if validation := [f"{name} {value:.4f}" for name, value in metrics.items() if name.startswith("val-core/")]:
            self._print(f"validation at step {step}: " + ", ".join(validation))

    @property
    def _is_drawn(self) -> bool:
        return self.console.is_terminal and not self.console.is_dumb_terminal

    def begin(self) -> None:
        """The progress line is there from now on: what is waited for before the first step is shown too. Elsewhere
        than on a terminal, batches that take long have lines of their own."""
        if not self._is_drawn:
            self._lines.start()
        elif self._live is None:
            self._live = Live(get_renderable=self._progress, console=self.console, refresh_per_second=2)
            self._live.start()

    def _show(self, metrics: Mapping[str, float], step: int) -> None:
        if not self._is_drawn:
            self._print(self._line(metrics, step))
            return
        self._step = step
        if (reward := REWARD.metric(metrics)) is not None:
            self._rewards.append(metrics[reward])
        self._print_row(metrics, step)
        self.begin()
        if self._live is not None:
            self._live.refresh()

    def close(self, failed: bool = False) -> None:
        self._lines.stop()
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def _print(self, text: str, style: str | None = None) -> None:
        self.console.print(one_line(text), style=style, markup=False, highlight=False, emoji=False, soft_wrap=True)

    def _line(self, metrics: Mapping[str, float], step: int) -> str:
        parts = [f"step:{self._pace.count(step)}"]
        for column in COLUMNS:
            if (name := column.metric(metrics)) is not None:
                parts.append(f"{name}:{metrics[name]:{column.form.replace(',', '')}}")
        left = self._pace.left()
        return " - ".join([*parts, f"left:{clock(left)}"] if left is not None else parts)

    def _print_row(self, metrics: Mapping[str, float], step: int) -> None:
        known = tuple(c for c in COLUMNS if c in self._columns or c.metric(metrics))
        if known != self._columns or self._rows == HEADING_EVERY:
            self._columns, self._rows = known, 0
            self._print(self._row("step", [column.heading for column in known]), style="bold")
        names = [column.metric(metrics) for column in known]
        cells = [f"{metrics[n]:{c.form}}" if n else "" for n, c in zip(names, known, strict=True)]
        self._print(self._row(str(step), cells))
        self._rows += 1

    def _row(self, step: str, cells: list[str]) -> str:
        """The cells under each other; those that the terminal is too narrow for are left out."""
        first = max(len("step"), len(str(self._pace.total or "")))
        room = (self.console.width - first) // (WIDTH + GAP)
        return f"{step:>{first}}" + "".join(f"{cell:>{WIDTH + GAP}}" for cell in cells[: max(room, 1)])

    def _progress(self) -> RenderableType:
        """One line, never wider than the terminal: a line that wraps could not be drawn over."""
        total, left = self._pace.total, self._pace.left()
        words = [f"step {self._pace.count(self._step)}"]
        if left is not None:
            words.append(f"{clock(left)} left" if left > 0 else f"{clock(self._pace.elapsed())} in all")
        batch = current_batch(self.facts.folder)
        words += [batch_in_words(batch)] if batch else []
        waits = [wait for wait in longest() if batch is None or wait.kind not in GENERATES][:1]
        words += [one_line(f"waiting {wait.age:.0f} s for {wait}") for wait in waits if wait.age >= LONG_WAIT_S]
        bar = min(BAR, self.console.width // 4) if total else 0
        room = self.console.width - bar - 2  # a blank after the bar, and the last column stays free
        text = " · ".join(words)
        sparks = min(len(self._rewards), room - len(text) - len(" · reward "))
        if sparks > 1:
            text += f" · reward {sparkline(list(self._rewards)[-sparks:])}"
        line = Text(text[: max(room, 0)], no_wrap=True, overflow="crop")
        if not total:
            return line
        grid = Table.grid(padding=(0, 1))
        grid.add_row(ProgressBar(total=total, completed=min(self._step, total), width=bar), line)
        return grid


class Pace:
    """How fast steps go by, and so how long the rest takes. It is made when the run starts."""

    def __init__(self, total: int | None):
        self.total = total
        self._start = time.monotonic()
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
        """Seconds since the run started, its loading included."""
        return time.monotonic() - self._start

    def count(self, step: int) -> str:
        return f"{step}/{self.total}" if self.total else str(step)


def sparkline(values: list[float]) -> str:
    """The values as a row of bars; those that are not finite leave a gap."""
    finite = [v for v in values if v - v == 0]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    scale = (len(SPARKS) - 1) / (high - low) if high > low else 0.0
    return "".join(SPARKS[round((v - low) * scale)] if v - v == 0 else " " for v in values)
