"""`burnish quickstart`: a small model that comes with burnish learns by RL, on a CPU, in minutes (docs/quickstart.md).

It can do sums, but was fine-tuned to guess instead; GRPO, with a reward for the right number alone, finds that working
it out pays. It is an ordinary `burnish ppo` run; the command is printed.
"""

import argparse
import json
import shlex
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

from burnish.entry.arguments import FlagParser
from burnish.literal import print_text

NANO = Path(__file__).parents[1] / "models" / "nano"
HELD_OUT = 256
STEPS = 60
SHOWN = 3
OUTPUT = "outputs/quickstart"
ACCURACY = "val-core/burnish/arithmetic/acc/mean@1"
INTRODUCTION = """
A model of 0.36 million parameters, which comes with burnish, answers
three-digit sums and differences. Supervised fine-tuning taught it to work them
out digit by digit, and then to guess a number instead. Now it learns by RL:
16 questions a step, 8 answers to each, a reward of 1 for the right number, and
nothing else. It runs this command:
"""
TASKS = {
    "arithmetic": "burnish.cli.quickstart:ARITHMETIC",
    "search": "burnish.cli.quickstart_agents:SEARCH",
    "calculator": "burnish.cli.quickstart_agents:CALCULATOR",
}


@dataclass(frozen=True)
class Share:
    """The share of held-out answers with some property, reported next to accuracy."""

    name: str
    holds: Callable[[str], bool]  # whether a response counts


@dataclass(frozen=True)
class Lesson:
    """One task of the quickstart. `service` is open while the run trains, and yields further keys."""

    introduction: str
    title: str  # of the plot
    accuracy: str  # the metric
    write_data: Callable[[int, Path, int], None]  # seed, folder, number of held-out questions
    job: Callable[[int, Path, int], list[str]]  # seed, folder, steps: the keys of the run
    service: Callable[[Path], AbstractContextManager[list[str]]] = lambda folder: nullcontext([])
    shares: tuple[Share, ...] = ()


@dataclass(frozen=True)
class Result:
    seed: int
    before: float
    after: float
    seconds: float


def main(argv: list[str]) -> None:
    options = parser().parse_args(argv)
    lesson = find_lesson(options.task)
    print_text(lesson.introduction)
    folder = Path(options.output or (OUTPUT if options.task == "arithmetic" else f"{OUTPUT}-{options.task}"))
    several = len(options.seeds) > 1
    results = [learn(seed, folder / f"seed-{seed}" if several else folder, lesson, options) for seed in options.seeds]
    if several:
        print_text("\nseed   before   after   seconds")
        for r in results:
            print_text(f"{r.seed:>4}   {r.before:6.3f}  {r.after:6.3f}   {r.seconds:7.1f}")
    low, high = min(r.before for r in results), min(r.after for r in results)
    seconds = sum(r.seconds for r in results)
    shares = f"{low:.2f} before, {high:.2f} after ({options.steps} steps of GRPO, {seconds:.0f} s)"
    lowest = ", the lowest of all seeds" if several else ""
    print_text(f"\nExact-match accuracy on {HELD_OUT} held-out questions: {shares}{lowest}")


def learn(seed: int, folder: Path, lesson: Lesson, options: argparse.Namespace) -> Result:
    """One run, from the question files to the plot."""
    from burnish.tracking.jsonl import read_metrics
    from burnish.tracking.plot import plot_curve

    start = perf_counter()
    lesson.write_data(seed, folder, HELD_OUT)
    with lesson.service(folder) as further:
        overrides = [*lesson.job(seed, folder, options.steps), *further]
        print_text(f"{as_typed(overrides)}\n")
        train(overrides)

    lines = read_metrics(folder)
    before, after = (line[lesson.accuracy] for line in (lines[0], lines[-1]))
    first, last = validation(folder, 0), validation(folder, options.steps)
    show_samples(first, last, options.steps)
    for share in lesson.shares:
        before_after = [sum(share.holds(row["response"]) for row in rows) / len(rows) for rows in (first, last)]
        print_text(f"{share.name}: {before_after[0]:.2f} before, {before_after[1]:.2f} after")
    picture = plot_curve(folder, folder / "reward.png", title=lesson.title, before=before, after=after)
    print_text(f"reward plot: {picture}")
    print_text(f"trained model: {folder / f'global_step_{options.steps}'} (a Hugging Face folder)")
    return Result(seed, before, after, perf_counter() - start)


def train(overrides: list[str]) -> None:
    from burnish.config.load import load_ppo
    from burnish.trainer import setup

    loaded = load_ppo(overrides)
    setup.prepare(loaded)
    trainer = setup.build(loaded.config)
    trainer.tracker.folder.write_recipe(loaded.given)
    trainer.init_workers()
    trainer.fit()


def write_rows(task: str, seed: int, folder: Path, held_out: int) -> None:
    """The question files of a generated task."""
    from burnish.data.files import write_parquet

    rows = import_module(f"burnish.data.tasks.{task}").rows
    write_parquet(rows("train", 4096, seed), folder / "data" / "train.parquet")
    write_parquet(rows("test", held_out, seed=0), folder / "data" / "test.parquet")


def job(seed: int, folder: Path, steps: int) -> list[str]:
    lengths = ["data.max_prompt_length=32", "data.max_response_length=64"]
    return [*common_keys(seed, folder, steps, NANO, "2e-5"), *lengths]


def common_keys(seed: int, folder: Path, steps: int, model: Path, lr: str) -> list[str]:
    """Keys of all tasks: GRPO with 16 questions a step and 8 answers to each."""
    return [
        "algorithm.adv_estimator=grpo",
        f"data.train_files={folder}/data/train.parquet",
        f"data.val_files={folder}/data/test.parquet",
        "data.train_batch_size=16",
        f"data.seed={seed}",
        f"actor_rollout_ref.model.path={model}",
        "actor_rollout_ref.rollout.n=8",
        "actor_rollout_ref.rollout.val_kwargs.do_sample=True",
        "actor_rollout_ref.rollout.val_kwargs.temperature=1.0",
        "actor_rollout_ref.actor.ppo_mini_batch_size=16",
        f"actor_rollout_ref.actor.optim.lr={lr}",
        f"trainer.total_training_steps={steps}",
        f"trainer.seed={seed}",
        "trainer.device=cpu",
        "trainer.resume_mode=disable",
        f"trainer.default_local_dir={folder}",
    ]


ARITHMETIC = Lesson(INTRODUCTION, "GRPO on three-digit sums", ACCURACY, partial(write_rows, "arithmetic"), job)


def find_lesson(task: str) -> Lesson:
    module, name = TASKS[task].split(":")
    lesson: Lesson = getattr(import_module(module), name)
    return lesson


def as_typed(overrides: list[str]) -> str:
    return " \\\n    ".join(["burnish ppo", *map(shlex.quote, overrides)])


def show_samples(before: list[dict[str, Any]], after: list[dict[str, Any]], steps: int) -> None:
    """The same held-out questions before and after, side by side."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title="held-out questions", show_lines=True)
    for heading in ("question", "right answer", "before", f"after step {steps}"):
        table.add_column(heading)
    for row, later in list(zip(before, after, strict=True))[:SHOWN]:
        # The question without what the chat template writes around it.
        prompt = row["prompt"].removesuffix("<|start|>assistant\n").rpartition("<|start|>")[2]
        question = prompt.removesuffix("<|end|>\n").removeprefix("user\n").strip()
        truth = row["ground_truth"]
        right = ", ".join(truth["target"]) if isinstance(truth, dict) else str(truth)
        table.add_row(*map(escape, (question, right, _answer(row), _answer(later))))
    Console().print(table)


def validation(folder: Path, step: int) -> list[dict[str, Any]]:
    """The held-out questions and their answers at a step."""
    with (folder / "validation" / f"{step}.jsonl").open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _answer(row: dict[str, Any]) -> str:
    verdict = "right" if row["score"] == 1 else "wrong"
    return f"{row['response'].removesuffix('<|end|>')}\n→ {verdict}"


def parser() -> FlagParser:
    found = FlagParser("quickstart", "Train a small model by RL.", "quickstart --task search --seeds 1 2 3")
    add = found.add_argument
    add("--task", choices=TASKS, default="arithmetic", help="what the model learns [arithmetic]")
    add("--seeds", type=int, nargs="+", default=[1], metavar="SEED", help="one run for each seed [1]")
    add("--steps", type=int, default=STEPS, help=f"training steps [{STEPS}]")
    add("--out", "--output", dest="output", help=f"run folder [{OUTPUT}; for another task {OUTPUT}-TASK]")
    return found
