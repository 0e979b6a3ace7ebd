"""`burnish quickstart`: the embedded small model learns by RL, here, in minutes, and shows it.

The model (`burnish/models/nano`, made by `make nano`) was taught by supervised fine-tuning to work sums out digit by
digit, and then to blurt a number out instead. It can do it, and mostly does not. The run below gives it questions and a
reward for the right number, nothing else: GRPO finds that working it out pays. Accuracy is exact match, sampled at
temperature 1, on questions that neither fine-tuning nor RL trained on.

Everything it does is an ordinary `burnish ppo` run; the command is printed.
"""

import argparse
import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from burnish.cli.arguments import Parser

NANO = Path(__file__).parents[1] / "models" / "nano"
HELD_OUT = 256
STEPS = 60
SHOWN = 3
ACCURACY = "val-core/burnish/arithmetic/acc/mean@1"
INTRODUCTION = """
A model of 0.25 million parameters, which comes with burnish, answers
three-digit sums and differences. Supervised fine-tuning taught it to work them
out digit by digit, and then to blurt a number out instead. Now it learns by RL:
16 questions a step, 8 answers to each, a reward of 1 for the right number, and
nothing else. The same as this command:
"""


@dataclass(frozen=True)
class Result:
    """What one seed came to."""

    seed: int
    before: float
    after: float
    seconds: float


def main(argv: list[str]) -> None:
    options = parser().parse_args(argv)
    print(INTRODUCTION)
    folder = Path(options.output)
    several = len(options.seeds) > 1
    results = [learn(seed, folder / f"seed-{seed}" if several else folder, options) for seed in options.seeds]
    if several:
        print("\nseed   before   after   seconds")
        for r in results:
            print(f"{r.seed:>4}   {r.before:6.3f}  {r.after:6.3f}   {r.seconds:7.1f}")
    low, high = min(r.before for r in results), min(r.after for r in results)
    seconds = sum(r.seconds for r in results)
    print(f"\nExact-match accuracy on {HELD_OUT} held-out questions: {low:.2f} before, {high:.2f} after", end="")
    print(f" ({options.steps} steps of GRPO, {seconds:.0f} s)" + (", the lowest of all seeds" if several else ""))


def learn(seed: int, folder: Path, options: argparse.Namespace) -> Result:
    """One run, from the question files to the plot."""
    from burnish.config.load import load_ppo
    from burnish.data.files import write_parquet
    from burnish.data.tasks import arithmetic
    from burnish.tracking.jsonl import read_metrics
    from burnish.tracking.plot import plot_curve
    from burnish.trainer import setup

    start = perf_counter()
    write_parquet(arithmetic.rows("train", 4096, seed), folder / "data" / "train.parquet")
    write_parquet(arithmetic.rows("test", HELD_OUT, seed=0), folder / "data" / "test.parquet")
    overrides = job(seed, folder, options.steps)
    print(f"{as_typed(overrides)}\n", flush=True)
    loaded = load_ppo(overrides)
    setup.prepare(loaded)
    trainer = setup.build(loaded.config)
    trainer.tracker.folder.write_recipe(loaded.given)
    trainer.init_workers()
    trainer.fit()

    lines = read_metrics(folder)
    before, after = (line[ACCURACY] for line in (lines[0], lines[-1]))
    show_samples(folder, 0, options.steps)
    picture = plot_curve(folder, folder / "reward.png", title="GRPO on three-digit sums", before=before, after=after)
    print(f"reward plot: {picture}")
    print(f"trained model: {folder / f'global_step_{options.steps}'} (a Hugging Face folder)")
    return Result(seed, before, after, perf_counter() - start)


def job(seed: int, folder: Path, steps: int) -> list[str]:
    """The keys of the run, as anyone could type them."""
    return [
        "algorithm.adv_estimator=grpo",
        f"data.train_files={folder}/data/train.parquet",
        f"data.val_files={folder}/data/test.parquet",
        "data.train_batch_size=16",
        "data.max_prompt_length=32",
        "data.max_response_length=64",
        f"data.seed={seed}",
        f"actor_rollout_ref.model.path={NANO}",
        "actor_rollout_ref.rollout.n=8",
        "actor_rollout_ref.rollout.val_kwargs.do_sample=True",
        "actor_rollout_ref.rollout.val_kwargs.temperature=1.0",
        "actor_rollout_ref.actor.ppo_mini_batch_size=16",
        "actor_rollout_ref.actor.optim.lr=2e-5",
        f"trainer.total_training_steps={steps}",
        f"trainer.seed={seed}",
        "trainer.device=cpu",
        "trainer.resume_mode=disable",
        f"trainer.default_local_dir={folder}",
    ]


def as_typed(overrides: list[str]) -> str:
    """The command as it can be pasted into a shell, one key on a line."""
    return " \\\n    ".join(["burnish ppo", *map(shlex.quote, overrides)])


def show_samples(folder: Path, *steps: int) -> None:
    """The same held-out questions at several steps, side by side."""
    from rich.console import Console
    from rich.table import Table

    answers = {step: _validation(folder, step) for step in steps}
    table = Table(title="held-out questions", show_lines=True)
    for heading in ("question", "right answer", *(f"after step {step}" if step else "before" for step in steps)):
        table.add_column(heading)
    for i in range(SHOWN):
        row = answers[steps[0]][i]
        cells = [_answer(answers[step][i]) for step in steps]
        table.add_row(row["prompt"].removeprefix("<|start|>").strip(), str(row["ground_truth"]), *cells)
    Console().print(table)


def _answer(row: dict[str, Any]) -> str:
    verdict = "right" if row["score"] == 1 else "wrong"
    return f"{row['response'].removesuffix('<|end|>')}\n→ {verdict}"


def _validation(folder: Path, step: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "validation" / f"{step}.jsonl").read_text().splitlines()]


def parser() -> Parser:
    found = Parser("quickstart", "A small model learns arithmetic by RL.", "quickstart --seeds 1 2 3")
    found.add_argument("--seeds", type=int, nargs="+", default=[1], metavar="SEED", help="one run for each seed [1]")
    found.add_argument("--steps", type=int, default=STEPS, help=f"training steps [{STEPS}]")
    found.add_argument("--output", default="outputs/quickstart", help="folder of the run [outputs/quickstart]")
    return found
