"""What each algorithm makes of the same task: `python benchmarks/learn.py`, or with `--help`.

Trains the embedded small model on the quickstart's questions, once for each advantage estimator (with the vanilla loss)
and once for each policy loss (with GRPO), all else equal: 16 prompts a step, 8 answers to each, one learning rate.
Prints exact-match accuracy on held-out questions before and after, and the seconds of the run. It is a smoke test of
learning, not a ranking: the task is small, its rewards are 0 or 1, and no algorithm was tuned for it.

Runs are processes of one thread, `--jobs` at a time.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from burnish.algorithms import advantages, losses
from burnish.cli.quickstart import ACCURACY, HELD_OUT, STEPS, job
from burnish.data.files import write_parquet
from burnish.data.tasks import arithmetic
from burnish.tracking.jsonl import read_metrics

LOSS = "actor_rollout_ref.actor.policy_loss.loss_mode"
DAPO = [
    "algorithm.filter_groups.enable=true", "actor_rollout_ref.actor.clip_ratio_high=0.28",
    "algorithm.overlong_buffer.enable=true", "algorithm.overlong_buffer.len=16",
]  # fmt: skip


@dataclass(frozen=True)
class Result:
    """One run: its accuracy before and after, or the last line of its error."""

    name: str
    before: float | None
    after: float | None
    seconds: float
    error: str = ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these estimators and losses, instead of all")
    options = parser.parse_args()
    chosen = {name: keys for name, keys in variants() if not options.only or name.split()[-1] in options.only}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        results = pool.map(lambda name: learn(name, chosen[name], Path(folder) / name, options), chosen)
        report(results, options)


def variants() -> Iterable[tuple[str, list[str]]]:
    """Names of the runs, and the keys in which each differs from the quickstart."""
    yield from ((f"estimator {name}", [f"algorithm.adv_estimator={name}"]) for name in advantages.TABLE.entries)
    yield from ((f"loss {name}", [f"{LOSS}={name}"]) for name in losses.TABLE.entries)
    yield "recipe dapo", DAPO


def learn(name: str, keys: list[str], folder: Path, options: argparse.Namespace) -> Result:
    """One run in a separate process."""
    write_parquet(arithmetic.rows("train", 4096, options.seed), folder / "data" / "train.parquet")
    write_parquet(arithmetic.rows("test", HELD_OUT, seed=0), folder / "data" / "test.parquet")
    overrides = [*job(options.seed, folder, options.steps), *keys, "trainer.logger=jsonl", "trainer.save_freq=-1"]
    # Keys that come twice: the later one counts, as on a command line.
    words = list({word.partition("=")[0]: word for word in overrides}.values())
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "burnish.trainer.main_ppo", *words],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    seconds = time.perf_counter() - start
    if done.returncode:
        return Result(name, None, None, seconds, (done.stderr.strip().splitlines() or ["no message"])[-1])
    lines = read_metrics(folder)
    return Result(name, lines[0][ACCURACY], lines[-1][ACCURACY], seconds)


def report(results: Iterable[Result], options: argparse.Namespace) -> None:
    print(f"{options.steps} steps, seed {options.seed}: exact match on {HELD_OUT} held-out questions, sampled")
    print(f"{'':<42} before   after   seconds")
    for result in results:
        if result.error:
            print(f"{result.name:<42} failed: {result.error}", flush=True)
        else:
            print(f"{result.name:<42} {result.before:6.3f}  {result.after:6.3f}   {result.seconds:7.1f}", flush=True)


if __name__ == "__main__":
    main()
