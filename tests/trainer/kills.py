"""The kill campaign (`make test-kill N=200`): runs of every kind are killed at random moments and resumed until done.

A series is one run folder: its command is started, killed, started again, up to `KILLS` times, then left to finish.
After each kill every visible checkpoint is complete, the pointer names one, no file is torn, and no process is left. In
the end metrics, rollouts, weights and state are those of a run never killed (with staleness: the same prompts, each
once). What is drawn follows from the seed and the name of the series; `--only grpo/3` repeats one. Exit code 1 if
anything is wrong; the folders of such series stay.

Commands are forked from a process that has imported what they import, because that takes longer than they do; kinds
with `alone` start as `python -m burnish.cli.main`.
"""

import argparse
import contextlib
import itertools
import json
import math
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.same_numbers import JOINED, contents, differences
from burnish.cli.main import main as burnish
from burnish.cli.quickstart import NANO
from burnish.cli.quickstart_agents import NANO_AGENT, serving, write_facts
from burnish.data.files import write_parquet
from burnish.data.tasks import arithmetic, calculator
from burnish.errors import CheckpointError
from burnish.models.folder import LATEST
from burnish.tracking.jsonl import read_lines
from burnish.tracking.run_folder import LEFT_BY_A_RUN
from burnish.trainer.checkpoint import REPLACED, STATE, WRITING, verify
from tests.trainer.conftest import CONVERSATIONS, GRPO, PAIRS, PPO

STEPS = 6  # 12 rows in batches of 4, twice: steps 3 and 6 end an epoch
KILLS = 3  # of a series, at most
STOP_S, GONE_S, FINISH_S = 180, 180, 900  # to end by SIGTERM or SIGINT; for processes of an ended run; to finish
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
MARK = "BURNISH_KILLS"  # a variable that all processes of a run inherit
NAMES = (*LEFT_BY_A_RUN, "status", "stacks", "logs", "previous-*")
ROOT = Path(__file__).parents[2]
FORKS = multiprocessing.get_context("forkserver")
PRELOADED = ["hydra", "peft", "transformers.models.qwen2", "burnish.trainer.setup", "burnish.trainer.rm", __name__]

BEHIND = ["actor_rollout_ref.actor.checkpoint.async_save=True"]
LORA = ["actor_rollout_ref.model.lora_rank=2", "actor_rollout_ref.actor.use_kl_loss=True"]
KEEP = ["trainer.max_actor_ckpt_to_keep=1"]
DAPO = ["algorithm.filter_groups.enable=true", "algorithm.filter_groups.metric=score", "data.gen_batch_size=2"]
AGENT = [f"actor_rollout_ref.model.path={NANO_AGENT}", "custom_reward_function.path=null", "data.train_batch_size=2"]
CALCULATOR = ["data.train_files=../calculator.parquet", "data.max_prompt_length=40", "data.max_response_length=96"]
SEARCH = ["data.train_files=../search/data/train.parquet", "data.max_response_length=160", "data.max_obs_length=64",
          "do_search=true", "max_turns=2", "retriever.topk=2"]  # fmt: skip
TWO = ["trainer.n_gpus_per_node=2", "actor_rollout_ref.rollout.agent.num_workers=1"]
BY_ARRIVAL = ("rollout/steps", "rollout/prefill_tokens", "rollout/shared_tokens", "rollout/prefix_hit_tokens", *JOINED)


@dataclass(frozen=True)
class Kind:
    keys: list[str]
    when: list[str] = field(default_factory=list)  # more keys of the killed runs, which may change no number
    command: str = "ppo"
    alone: bool = False
    copied: bool = False  # killed runs start in a copy of the finished run
    from_scratch: bool = False  # every start is from step 0
    prompts_only: bool = False  # its numbers depend on the clock
    differs: tuple[str, ...] = ()  # parts of names of metrics that do


def ahead(staleness: int) -> list[str]:
    return ["trainer.async_rollout.enable=true", f"trainer.async_rollout.staleness={staleness}"]


RUN = ["trainer.default_local_dir=run", "trainer.logger=jsonl", "trainer.device=cpu", "trainer.save_freq=1",
       f"trainer.total_training_steps={STEPS}"]  # fmt: skip
# The job of each command, in a folder next to the data.
JOBS = {
    "ppo": ["data.train_files=../train.parquet", "data.val_files=null", "data.train_batch_size=4",
            "data.shuffle=True", "data.max_prompt_length=32", "data.max_response_length=8",
            f"actor_rollout_ref.model.path={NANO}", "actor_rollout_ref.actor.ppo_mini_batch_size=2",
            "actor_rollout_ref.actor.optim.lr=1e-3", "custom_reward_function.path=../reward.py"],
    **dict.fromkeys(("sft", "rm"), ["data.train_files=../supervised.parquet", "data.max_length=128",
                                    "data.train_batch_size=3", f"model.path={NANO}", "optim.lr=0.01"]),
}  # fmt: skip
KINDS = {
    "grpo": Kind(GRPO),
    "ppo": Kind(PPO),
    "grpo-behind": Kind(GRPO, BEHIND),
    "ppo-behind": Kind(PPO, BEHIND),
    "lora-behind": Kind([*GRPO, *LORA], BEHIND),
    "pruning": Kind(GRPO, KEEP),
    "pruning-behind": Kind(PPO, [*BEHIND, *KEEP]),
    "dapo": Kind([*GRPO, *DAPO]),
    "validation": Kind([*GRPO, "data.val_files=../test.parquet", "trainer.test_freq=1"]),
    "staleness-0": Kind(GRPO, ahead(0)),
    "staleness-1": Kind([*GRPO, *ahead(1)], prompts_only=True),
    "again": Kind(GRPO, ["trainer.resume_mode=disable"], from_scratch=True),
    "overwrite": Kind(
        GRPO, ["trainer.resume_mode=resume_path", "trainer.resume_from_path=run/global_step_1"], copied=True
    ),
    "calculator": Kind([*GRPO, *AGENT, *CALCULATOR]),
    "search": Kind([*GRPO, *AGENT, *SEARCH], differs=JOINED),
    "sft": Kind([], command="sft"),
    "rm": Kind([], ["trainer.max_ckpt_to_keep=2"], command="rm"),
    "command": Kind(GRPO, alone=True),
    "two": Kind([*GRPO, *TWO], alone=True, differs=BY_ARRIVAL),
    "two-ppo-behind": Kind([*PPO, *TWO], BEHIND, alone=True, differs=BY_ARRIVAL),
}



class Run:
    """One start of a command, the leader of a process group."""

    def __init__(self, words: list[str], folder: Path, alone: bool):
        self.folder, self.mark = folder, uuid.uuid4().hex
        self.ended = 0.0  # when
        if alone:
            command, environment = [sys.executable, "-m", "burnish.cli.main", *words], os.environ | {MARK: self.mark}
            with (folder / "log.txt").open("a") as log:
                self.process = subprocess.Popen(
                    command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True
                )
        else:
            self.process = FORKS.Process(target=forked, args=(words, folder, self.mark))
            self.process.start()

    def code(self, seconds: float) -> int | None:
        """How it ended; None where it has not within that time."""
        if isinstance(self.process, subprocess.Popen):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(seconds)
            return self.process.returncode
        self.process.join(seconds)
        return self.process.exitcode

    def kill(self, number: int, group: bool) -> None:
        """A signal to the command, or to all of its group."""
        with contextlib.suppress(ProcessLookupError):
            if group:
                with contextlib.suppress(ProcessLookupError):  # it has none yet
                    return os.killpg(self.process.pid, number)
            os.kill(self.process.pid, number)

    def left(self) -> dict[int, str]:
        """Processes that it has started and that still run."""
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"{MARK}={self.mark}".encode() in (process / "environ").read_bytes():
                    found[int(process.name)] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:120]
        return found


def forked(words: list[str], folder: Path, mark: str) -> None:
    """What a forked process does: a command, as if it had been started in this folder."""
    try:
        os.setsid()
        os.chdir(folder)
        os.environ[MARK] = mark
        log = os.open("log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        code = burnish(words)
    except KeyboardInterrupt:  # before the command was there to handle it
        code = 130
    sys.exit(code)


def problems(run: Path) -> list[str]:
    """What is wrong with a run folder whose run was killed, or is done."""
    found = []
    for folder in [*run.glob("global_step_*"), *run.glob("previous-*/global_step_*")]:
        try:
            verify(folder)
        except CheckpointError as error:
            found.append(f"visible, but not complete: {error}")
    if (step := pointer(run)) and not (run / f"global_step_{step}").is_dir():
        if not (run / f".global_step_{step}{REPLACED}").is_dir():
            found.append(f"{LATEST} names step {step}, which is not there")
    for path in run.glob("[!.]*"):
        if not any(path.match(name) for name in NAMES):
            found.append(f"{path.name} is none of a run's files")
    for file in run.rglob("[!.]*.jsonl"):
        try:
            read_lines(file)
            if file.parent != run and not file.parent.name.startswith("previous-"):
                assert file.read_bytes().endswith(b"\n"), "torn"  # samples appear as a whole
        except (ValueError, AssertionError) as error:
            found.append(f"{file.relative_to(run)}: {error}")
    if (steps := logged(run)) and steps != list(range(steps[0], steps[0] + len(steps))):
        found.append(f"metrics.jsonl has the steps {steps}")
    return found


def pointer(run: Path) -> int:
    """The step that the pointer of a run folder names; 0: none."""
    with contextlib.suppress(FileNotFoundError):
        return int((run / LATEST).read_text())
    return 0


def logged(run: Path) -> list[int]:
    file = run / "metrics.jsonl"
    return [line["step"] for line in read_lines(file)] if file.exists() else []


def places(run: Path) -> dict[str, int]:
    """The checkpoints that are there or being written, by name; the number tells two of one name apart."""
    found = {}
    for path in [*run.glob("global_step_*"), *run.glob(".global_step_*")]:
        with contextlib.suppress(FileNotFoundError):
            found[path.name] = path.stat().st_ino
    return found


def compared(kind: Kind, whole: Path, run: Path) -> list[str]:
    """What differs between the finished run and one never killed."""
    if kind.prompts_only:
        one, other = prompts(whole), prompts(run)
        return [f"prompts of step {step}" for step in one | other if one.get(step) != other.get(step)]
    found = differences(contents(whole, STEPS), contents(run, STEPS))
    found = [name for name in found if not any(part in name for part in kind.differs)]
    return found + ([] if state(whole) == state(run) else [STATE])


def prompts(run: Path) -> dict[int, list[tuple[int, int]]]:
    steps = {int(file.stem): read_lines(file) for file in (run / "rollouts").glob("*.jsonl")}
    return {step: [(row["uid"], row["sample"]) for row in rows] for step, rows in steps.items()}


def state(run: Path) -> dict[str, object]:
    file = run / f"global_step_{STEPS}" / STATE
    return json.loads(file.read_text()) | {"config": {}} if file.exists() else {}


@dataclass(frozen=True)
class Moment:
    """When to strike: some time after the start, or after a step is logged, being saved, or saved."""

    after: str
    step: int
    delay: float

    @classmethod
    def drawn(cls, draw: random.Random, done: int, start_s: float, step_s: float) -> "Moment":
        after = draw.choice(("start", "logged", "saving", "saving", "saved"))
        step = draw.randint(min(done + 1, STEPS), STEPS)
        longest = {"start": start_s + step_s, "logged": step_s, "saving": 0.2, "saved": 0.05}[after]
        few = after in ("saving", "saved")  # most of their operations take far less than the longest
        delay = math.exp(draw.uniform(math.log(1e-4), math.log(longest))) if few else draw.uniform(0, longest)
        return cls(after, step, delay)

    def has_come(self, run: Path, before: dict[str, int]) -> bool:
        """`before`: the `places` when the command was started."""
        if self.after == "logged":
            return self.step in logged(run)
        name = f".global_step_{self.step}{WRITING}" if self.after == "saving" else f"global_step_{self.step}"
        return self.after == "start" or bool(places(run).get(name, 0) not in (0, before.get(name)))

    def __str__(self) -> str:
        step = "" if self.after == "start" else f" of step {self.step}"
        return f"{1000 * self.delay:.1f} ms after {self.after}{step}"


def phase(kind: Kind, run: Path, before: dict[str, int], began_at: int) -> str:
    """What a run was doing when it was killed, by what it left."""
    now = places(run)
    new = {name for name, number in now.items() if before.get(name) != number}
    if any(name.endswith(REPLACED) for name in new):
        return "replacing"
    if any(name.endswith(WRITING) for name in new):
        return "saving"
    if any(name == f"global_step_{step}" for name in new for step in range(pointer(run) + 1, STEPS + 1)):
        return "naming"
    if any(name.startswith(".") for name in new):
        return "pruning"
    if pointer(run) == STEPS:
        return "ending"
    return "training" if max(logged(run), default=0) > began_at else "starting"


class Campaign:
    """Series of kills in folders below `place`; `say` prints a line."""

    def __init__(self, place: Path, seed: int = 1, say: Callable[[str], None] = lambda line: None):
        self.place, self.seed, self.say = place, seed, say
        self.wrong: list[str] = []
        self.kills: dict[str, list[tuple[str, str]]] = defaultdict(list)  # signal and phase of each, by kind
        self.series: Counter[str] = Counter()
        self.starts: Counter[str] = Counter()
        self._whole: dict[str, tuple[Path, float, float]] = {}
        self._open = ExitStack()
        self._service: list[str] = []
        write_parquet(arithmetic.rows("train", 12, seed=0), place / "train.parquet")
        write_parquet(arithmetic.rows("test", 4, seed=0), place / "test.parquet")
        write_parquet(calculator.rows("train", 12, seed=0), place / "calculator.parquet")
        pairs = [dict(zip(("prompt", "chosen", "rejected"), pair, strict=True)) for pair in PAIRS]
        rows = [{"messages": talk, **pair} for talk, pair in zip(CONVERSATIONS, pairs, strict=True)]
        write_parquet(rows, place / "supervised.parquet")
        score = "return float(len(set(solution_str)) % 3)"
        (place / "reward.py").write_text(f"def compute_score(solution_str, ground_truth, extra_info):\n    {score}\n")
        FORKS.set_forkserver_preload(PRELOADED)

    def __enter__(self) -> "Campaign":
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def strike(self, name: str, number: int, most: int = KILLS) -> int:
        """A series of at most so many kills; returns how many there were. What is wrong is in `wrong`."""
        kind, draw = KINDS[name], random.Random(f"{self.seed}/{name}/{number}")
        whole, start_s, step_s = self.whole(kind)
        folder = self.place / f"{name}-{number}"
        folder.mkdir()
        run, kills, newest, earlier, wrong = folder / "run", 0, 0, list[Run](), list[str]()
        if kind.copied:
            shutil.copytree(whole, run, symlinks=True)
        while kills < most:
            before, done = places(run), 1 if kind.copied else 0 if kind.from_scratch else pointer(run)
            moment, signalled = Moment.drawn(draw, done, start_s, step_s), draw.choice(SIGNALS)
            in_group, at_once = draw.random() < 0.5, draw.random() < 0.5
            command = self.start(name, folder, [*kind.when])
            while command.code(0) is None and not moment.has_come(run, before):
                time.sleep(0.001)
            time.sleep(moment.delay)
            command.kill(signalled, in_group)
            code = command.code(STOP_S)
            if code is None:
                wrong.append(f"did not end within {STOP_S} s of {signalled.name}")
                command.kill(signal.SIGKILL, True)
                command.code(STOP_S)
            earlier.append(command)
            if code == 0:  # over before that
                break
            kills += 1
            found = phase(kind, run, before, done)
            self.kills[name].append((signalled.name, found))
            if code not in (None, 130, -signalled):
                wrong.append(f"exit code {code} after {signalled.name}")
            wrong += problems(run) if run.exists() else []
            if not kind.from_scratch and not kind.copied and pointer(run) < newest:
                wrong.append(f"the pointer went back from step {newest} to {pointer(run)}")
            newest = pointer(run)
            whom = "group" if in_group else "command"
            self.say(f"{name}/{number} kill {kills}: {signalled.name} to the {whom}, {moment}: {found}")
            if not at_once:
                wrong += self.leftovers(earlier)
        command = self.start(name, folder, kind.when)
        code = command.code(FINISH_S)
        if code != 0:
            wrong.append(f"the last start ended with {code}: {(folder / 'log.txt').read_text()[-2000:]}")
            command.kill(signal.SIGKILL, True)
        else:
            wrong += [*problems(run), *(f"different: {name}" for name in compared(kind, whole, run)[:10])]
        wrong += self.leftovers([*earlier, command])
        self.series[name] += 1
        self.wrong += [f"{name}/{number}: {text}" for text in wrong]
        self.say(f"{name}/{number}: {kills} kills, " + ("; ".join(wrong) if wrong else "as if never killed"))
        if not wrong:
            shutil.rmtree(folder)
        return kills

    def whole(self, kind: Kind) -> tuple[Path, float, float]:
        """A run with these keys that was never killed: its folder, seconds to its first step, and of a step."""
        name = json.dumps([kind.command, kind.keys])
        if name not in self._whole:
            folder = self.place / f"whole-{len(self._whole)}"
            folder.mkdir()
            imported = FORKS.Process(target=int)  # the first waits for that
            imported.start()
            imported.join()
            began = time.monotonic()
            command = self.start(next(name for name in KINDS if KINDS[name] is kind), folder, [])
            while command.code(0) is None and not logged(folder / "run"):
                time.sleep(0.001)
            first = time.monotonic()
            if command.code(FINISH_S) != 0:
                raise SystemExit(f"a run that was not killed failed:\n{(folder / 'log.txt').read_text()[-3000:]}")
            step_s = (time.monotonic() - first) / STEPS
            self._whole[name] = folder / "run", first - began, step_s
        return self._whole[name]

    def start(self, name: str, folder: Path, more: list[str]) -> Run:
        kind = KINDS[name]
        if "do_search=true" in kind.keys and not self._service:
            write_facts(1, self.place / "search", 2)
            with contextlib.redirect_stdout(None):
                self._service = self._open.enter_context(serving(self.place / "search"))
        service = self._service if "do_search=true" in kind.keys else []
        self.starts[name] += 1
        return Run([kind.command, *JOBS[kind.command], *RUN, *kind.keys, *service, *more], folder, kind.alone)

    def leftovers(self, runs: list[Run]) -> list[str]:
        """Wait until nothing of these runs is left, and forget them; what stays is wrong, and ended here."""
        end, found = time.monotonic() + GONE_S, []
        for run in runs:
            while (left := run.left()) and time.monotonic() < end:
                time.sleep(0.05)
            for process, line in left.items():
                found.append(f"still there {GONE_S} s after its run: {line}")
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        runs.clear()
        return found

    def summary(self) -> Iterable[str]:
        phases = ("starting", "training", "saving", "replacing", "naming", "pruning", "ending")
        yield "kind            series starts kills  " + " ".join(f"{name.name:>7}" for name in SIGNALS) + "  " + "  ".join(phases) + "  wrong"
        for name in self.series:
            kills = self.kills[name]
            wrong = sum(text.startswith(f"{name}/") for text in self.wrong)
            by_signal = " ".join(f"{sum(s == number.name for s, _ in kills):>7}" for number in SIGNALS)
            by_phase = "  ".join(f"{sum(p == phase for _, p in kills):>{len(phase)}}" for phase in phases)
            yield f"{name:<16}{self.series[name]:>6}{self.starts[name]:>7}{len(kills):>6}  {by_signal}  {by_phase}  {wrong:>5}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, metavar="N", help="how many, over all kinds [200]")
    parser.add_argument("--seed", type=int, default=1, help="of everything that is drawn [1]")
    parser.add_argument("--only", nargs="+", default=list(KINDS), metavar="KIND[/SERIES]", help=", ".join(KINDS))
    options = parser.parse_args()
    began, total, place = time.monotonic(), 0, Path(tempfile.mkdtemp(prefix="kills-"))
    os.environ |= {"OMP_NUM_THREADS": "1", "RAY_TMPDIR": str(place)}
    chosen = [(name, number) for one in options.only for name, _, number in [one.partition("/")]]
    with Campaign(place, options.seed, lambda line: print(line, flush=True)) as campaign:
        for number in range(options.kills):
            for name, only in chosen:
                if total < options.kills and (not only or number == 0):
                    total += campaign.strike(name, int(only or number), min(KILLS, options.kills - total))
        print(*campaign.summary(), sep="\n")
    print(f"{total} kills in {time.monotonic() - began:.0f} s, seed {options.seed}; wrong: {len(campaign.wrong)}")
    if campaign.wrong:
        sys.exit("\n".join([*campaign.wrong, f"the folders are in {place}"]))
    shutil.rmtree(place)


if __name__ == "__main__":
    main()
