"""Series of kills: one run folder each, whose command is started, killed and started again, and then left to finish.

What is drawn (signal, moment, whom, whether the next start waits until every process of this one is gone) follows from
the seed and the name of the series. After each kill every visible checkpoint is complete, the pointer names one, no
file is torn, and no process stays. In the end metrics, rollouts, weights and state are those of a run never killed;
where generation runs ahead, the prompts of each step are.
"""

import contextlib
import json
import math
import os
import random
import shutil
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from burnish.cli.quickstart_agents import serving, write_facts
from burnish.data.files import write_parquet
from burnish.data.tasks import arithmetic, calculator
from burnish.models.folder import LATEST
from burnish.trainer.checkpoint import WRITING
from tests.trainer.conftest import CONVERSATIONS, PAIRS
from tests.trainer.kills.command import Command, forks_are_ready
from tests.trainer.kills.folder import PHASES, compared, logged, phase, places, pointer, problems
from tests.trainer.kills.kinds import JOBS, KINDS, RUN, STEPS, Kind

KILLS = 3  # of a series, at most
STOP_S, GONE_S, FINISH_S = 180, 180, 900  # to end by SIGTERM or SIGINT; for processes of an ended run; to finish
SIGNALS = {signal.SIGKILL: 2, signal.SIGTERM: 1, signal.SIGINT: 1}  # how often each is drawn
REWARD = """
def compute_score(solution_str, ground_truth, extra_info):
    return float(sum(map(ord, solution_str)) % 7)
"""


@dataclass(frozen=True)
class Moment:
    """When to strike: some time after the start, or after a step is logged, being saved, saved, or pointed to."""

    after: str
    step: int
    delay: float

    @classmethod
    def drawn(cls, draw: random.Random, done: int, start_s: float, step_s: float) -> "Moment":
        after = draw.choice(("start", "logged", "saving", "saving", "saved", "pointed"))
        step = draw.randint(min(done + 1, STEPS), STEPS)
        delay = draw.uniform(0, start_s + step_s if after == "start" else step_s)
        if after not in ("start", "logged"):  # what a save does then takes between parts of a millisecond and many
            delay = math.exp(draw.uniform(math.log(1e-4), math.log(0.2 if after == "saving" else 0.05)))
        return cls(after, step, delay)

    def has_come(self, run: Path, before: dict[str, int]) -> bool:
        """`before`: the `places` when the command was started."""
        if self.after == "logged":
            return self.step in logged(run)
        if self.after == "pointed":
            return pointer(run) == self.step and before.get(LATEST) != (run / LATEST).stat().st_ino
        name = f".global_step_{self.step}{WRITING}" if self.after == "saving" else f"global_step_{self.step}"
        return self.after == "start" or bool(places(run).get(name, 0) not in (0, before.get(name)))

    def __str__(self) -> str:
        step = "" if self.after == "start" else f" of step {self.step}"
        return f"{1000 * self.delay:.1f} ms after {self.after}{step}"


class Campaign:
    """Everything in folders below `place`; `say` prints a line."""

    def __init__(self, place: Path, seed: int = 1, say: Callable[[str], None] = lambda line: None):
        self.place, self.seed, self.say = place, seed, say
        self.series: dict[str, list[Series]] = defaultdict(list)  # by kind
        self._whole: dict[str, tuple[Path, float, float]] = {}
        self._open = ExitStack()
        self._service: list[str] = []
        write_parquet(arithmetic.rows("train", 12, seed=0), place / "train.parquet")
        write_parquet(arithmetic.rows("test", 4, seed=0), place / "test.parquet")
        write_parquet(calculator.rows("train", 12, seed=0), place / "calculator.parquet")
        pairs = [dict(zip(("prompt", "chosen", "rejected"), pair, strict=True)) for pair in PAIRS]
        rows = [{"messages": talk, **pair} for talk, pair in zip(CONVERSATIONS, pairs, strict=True)]
        write_parquet(rows, place / "supervised.parquet")
        (place / "reward.py").write_text(REWARD)

    def __enter__(self) -> "Campaign":
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    @property
    def wrong(self) -> list[str]:
        return [f"{one.name}: {text}" for several in self.series.values() for one in several for text in one.wrong]

    def run(self, kills: int, chosen: Sequence[str]) -> int:
        """So many kills over these kinds (`grpo`) and series (`grpo/3`) in turn; returns how many there were. It gives
        up where runs are always over before they can be killed."""
        total = 0
        for number in range(kills + 5):
            for name in chosen:
                kind, _, only = name.partition("/")
                if total < kills and (not only or number == 0):
                    series = Series(self, kind, int(only or number))
                    self.series[kind].append(series)
                    total += series.run(min(KILLS, kills - total))
        return total

    def whole(self, kind: str) -> tuple[Path, float, float]:
        """A run with the keys of a kind that was never killed: its folder, seconds to its first step, and of a step."""
        facts = KINDS[kind]
        same = json.dumps([facts.command, facts.keys])
        if same not in self._whole:
            folder = self.place / f"whole-{len(self._whole)}"
            folder.mkdir()
            forks_are_ready()
            began = time.monotonic()
            command = self.start(facts, folder, [])
            while command.code(0) is None and not logged(folder / "run"):
                time.sleep(0.001)
            first = time.monotonic()
            if command.code(FINISH_S) != 0:
                raise RuntimeError(f"a run that was not killed failed: {command.last_words()}")
            self._whole[same] = folder / "run", first - began, (time.monotonic() - first) / STEPS
        return self._whole[same]

    def start(self, kind: Kind, folder: Path, more: list[str]) -> Command:
        words = [kind.command, *JOBS[kind.command], *RUN, *kind.keys, *more]
        return Command(words + (self.service() if "do_search=true" in words else []), folder, kind.alone)

    def service(self) -> list[str]:
        """The key with the address of the retrieval server, which is started by the first call."""
        if not self._service:
            write_facts(1, self.place / "search", 2)
            with contextlib.redirect_stdout(None):
                self._service = self._open.enter_context(serving(self.place / "search"))
        return self._service

    def summary(self) -> Iterator[str]:
        columns = ("series", "starts", "kills", *(number.name for number in SIGNALS), *PHASES, "wrong")
        yield f"{'kind':16}" + "".join(f"{column:>10}" for column in columns)
        for kind, several in self.series.items():
            kills = [kill for series in several for kill in series.kills]
            counts = [len(several), sum(series.starts for series in several), len(kills)]
            counts += [sum(number == drawn for drawn, _ in kills) for number in SIGNALS]
            counts += [sum(found == one for _, found in kills) for one in PHASES]
            yield f"{kind:16}" + "".join(f"{n:>10}" for n in (*counts, sum(len(series.wrong) for series in several)))


class Series:
    """One run folder and its kills."""

    def __init__(self, campaign: Campaign, kind: str, number: int):
        self.campaign, self.kind, self.name = campaign, KINDS[kind], f"{kind}/{number}"
        self.draw = random.Random(f"{campaign.seed}/{self.name}")
        self.whole, self.start_s, self.step_s = campaign.whole(kind)
        self.folder = campaign.place / f"{kind}-{number}"
        self.root = self.folder / "run"
        self.folder.mkdir()
        if self.kind.copied:
            shutil.copytree(self.whole, self.root, symlinks=True)
        self.starts = 0
        self.kills: list[tuple[signal.Signals, str]] = []  # and the phase
        self.wrong: list[str] = []
        self._ended: list[Command] = []  # whose processes may still be there

    def run(self, kills: int) -> int:
        while len(self.kills) < kills and self.kill():
            pass
        self.finish()
        self.campaign.say(f"{self.name}: {len(self.kills)} kills, {'; '.join(self.wrong) or 'as if never killed'}")
        if not self.wrong:
            shutil.rmtree(self.folder)
        return len(self.kills)

    def kill(self) -> bool:
        """Start the command and kill it; False where it was over before that."""
        root, before, newest = self.root, places(self.root), pointer(self.root)
        done = 1 if self.kind.copied else 0 if self.kind.from_scratch else newest
        moment = Moment.drawn(self.draw, done, self.start_s, self.step_s)
        (number,) = self.draw.choices([*SIGNALS], [*SIGNALS.values()])
        in_group, at_once = self.draw.random() < 0.5, self.draw.random() < 0.5
        command = self.start()
        while command.code(0) is None and not moment.has_come(root, before):
            time.sleep(0.001)
        time.sleep(moment.delay)
        found = phase(root, before, done)
        command.kill(number, in_group)
        code = command.code(STOP_S)
        if code == 0:
            return False
        if number == signal.SIGKILL:  # exact: it could do no more
            found = phase(root, before, done)
        self.kills.append((number, found))
        whom = "group" if in_group else "command"
        self.campaign.say(f"{self.name} kill {len(self.kills)}: {number.name} to the {whom}, {moment}: {found}")
        if code is None:
            self.wrong.append(f"did not end within {STOP_S} s of {number.name}")
            command.kill(signal.SIGKILL, True)
        elif code not in (130, -number) and not (number == signal.SIGTERM and in_group and self.kind.on_ray):
            self.wrong.append(f"exit code {code} after {number.name}: {command.last_words()}")
        self.wrong += [text for text in problems(root) if text not in self.wrong]  # it may stay
        if not (self.kind.copied or self.kind.from_scratch) and pointer(root) < newest:
            self.wrong.append(f"the pointer went back from step {newest} to {pointer(root)}")
        if not at_once:
            self.wait_until_gone()
        return True

    def finish(self) -> None:
        command = self.start()
        code = command.code(FINISH_S)
        if code == 0:
            found = [*problems(self.root), *compared(self.kind, self.whole, self.root)]
            self.wrong += [text for text in found if text not in self.wrong]
        else:
            self.wrong.append(f"the last start ended with {code}: {command.last_words()}")
            command.kill(signal.SIGKILL, True)
        self.wait_until_gone()

    def start(self) -> Command:
        self.starts += 1
        command = self.campaign.start(self.kind, self.folder, self.kind.when)
        self._ended.append(command)
        return command

    def wait_until_gone(self) -> None:
        """Of all ended commands; a process that stays is wrong, and ended here."""
        end = time.monotonic() + GONE_S
        for command in self._ended:
            while (left := command.left()) and time.monotonic() < end:
                time.sleep(0.05)
            for process, line in left.items():
                self.wrong.append(f"still there {GONE_S} s after its command: {line}")
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        self._ended.clear()
