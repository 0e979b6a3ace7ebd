"""Whether runs that learn raise alarms: the quickstarts and every recipe, on the embedded models.

python -m tests.health.alarms --jobs 14 --out FOLDER

A recipe keeps what makes it what it is; batch sizes, lengths and learning rates are those of the quickstart, where the
model is small. Prints a table (held-out accuracy, or loss, before and after; the verdict; every finding with its first
step and number of steps), and ends with exit code 1 where a run that learned has a finding above a note.
"""

import argparse
import os
import random
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from burnish.cli.quickstart import ARITHMETIC, NANO, STEPS, Lesson
from burnish.cli.quickstart_agents import CALCULATOR, SEARCH
from burnish.data.files import write_parquet
from burnish.data.tasks import arithmetic
from burnish.health.rule import NOTE
from burnish.health.watch import Found
from burnish.models.tiny import write_tiny_model
from burnish.tracking.jsonl import read_metrics
from burnish.tracking.run_health import read_health

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "recipes"
PARTS = ROOT / "examples" / "named_rewards" / "parts.py"
HELD_OUT = 256
QUIET = ["trainer.logger=jsonl", "trainer.save_freq=-1"]
LEVELS = ("easy", "medium", "hard")
# Of the recipes, so that four updates a step stay four; a recipe without groups has as many answers a step.
BATCH = {"data.train_batch_size": "16", "actor_rollout_ref.actor.ppo_mini_batch_size": "4"}
ALONE = {"data.train_batch_size": "128", "actor_rollout_ref.actor.ppo_mini_batch_size": "32"}
DROPPED = ("algorithm.adv_estimator=", "actor_rollout_ref.rollout.n=")  # of the quickstart's keys: the recipe's count
FURTHER: dict[str, dict[str, str]] = {
    "dapo": {"actor_rollout_ref.rollout.n": "8", "data.gen_batch_size": "32", "algorithm.overlong_buffer.len": "16"},
    "gdpo": {
        "algorithm.gdpo_reward_keys": "[right,worked]",
        "custom_reward_function.path": str(PARTS),
        "custom_reward_function.functions.right.weight": "1.0", "custom_reward_function.functions.worked.weight": "0.5",
    },
    "ppo_gae": ALONE | {"critic.optim.lr": "1e-4"},
    "prime": {"process_reward.mini_batch_size": "16"},
    "reinforce_plus_plus": ALONE,
    "remax": ALONE,
    "curriculum": {"data.curriculum.stages": "[easy,[easy,medium],[medium,hard]]"},
}  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    before: float
    after: float
    verdict: str
    findings: list[Found]

    @property
    def alarms(self) -> list[Found]:
        return [found for found in self.findings if found.worst.severity != NOTE]


def quickstart(lesson: Lesson, *recipe: str, **further: str) -> Callable[[Path, int], Outcome]:
    """A lesson of the quickstart, as it is or with a recipe's keys."""

    def run(folder: Path, seed: int) -> Outcome:
        lesson.write_data(seed, folder, HELD_OUT)
        if lesson is ARITHMETIC:  # for the curriculum
            rows = arithmetic.rows("train", 4096, seed)
            for i, row in enumerate(rows):
                row["extra_info"]["difficulty"] = LEVELS[i * len(LEVELS) // len(rows)]
            write_parquet(rows, folder / "data" / "train.parquet")
        with lesson.service(folder) as service:
            keys = [*lesson.job(seed, folder, STEPS), *service]
            keys = [one for one in keys if not (recipe and one.startswith(DROPPED))]
            train("main_ppo", folder, *recipe, *keys, *(f"{k}={v}" for k, v in further.items()), "trainer.test_freq=60")
        return outcome(folder, lesson.accuracy)

    return run


def supervised(command: str, recipe: str, *further: str) -> Callable[[Path, int], Outcome]:
    """Worked answers: to be written (sft), or preferred to wrong ones (rm)."""

    def run(folder: Path, seed: int) -> Outcome:
        for split, count in (("train", 16_000), ("test", HELD_OUT)):
            rows = [EXAMPLES[command](*q) for q in arithmetic.questions(split, count, seed)]
            write_parquet(rows, folder / "data" / f"{split}.parquet")
        path = NANO
        if recipe in ("nano_scratchpad", "chat") and command == "sft":  # of what is taught, the embedded one knows all
            path = write_tiny_model(
                folder / "start", hidden_size=128, heads=4, intermediate_size=256, context=1024, seed=seed,
                chat_template=(NANO / "chat_template.jinja").read_text(),
            )  # fmt: skip
        words = [f"--config-path={RECIPES / command}", f"--config-name={recipe}", f"model.path={path}"]
        words += [
            f"data.{name}_files={folder}/data/{file}.parquet" for name, file in (("train", "train"), ("val", "test"))
        ]
        words += ["data.max_length=128", "trainer.device=cpu", f"trainer.default_local_dir={folder}", *further]
        train(f"{command}_trainer", folder, *words, f"data.seed={seed}", f"trainer.seed={seed}", "trainer.test_freq=25")
        return outcome(folder, "val/loss")

    return run


def _preference(a: int, op: str, b: int) -> dict[str, str]:
    """The worked answer is better, but for a tenth of the pairs."""
    sides = arithmetic.scratchpad(a, op, b), f"answer: {arithmetic.solve(a, op, b) + 1}"
    chosen, rejected = sides if random.Random(a * b).random() > 0.1 else sides[::-1]
    return {"prompt": arithmetic.question(a, op, b), "chosen": chosen, "rejected": rejected}


EXAMPLES: dict[str, Callable[[int, str, int], dict]] = {
    "sft": lambda a, op, b: arithmetic.sft_row(a, op, b, arithmetic.scratchpad(a, op, b)),
    "rm": _preference,
}


def recipe(name: str) -> Callable[[Path, int], Outcome]:
    given = {"search_agent": (SEARCH, BATCH), "tool_agent": (CALCULATOR, BATCH)}
    lesson, batch = given.get(name, (ARITHMETIC, BATCH))
    keys = batch | FURTHER.get(name, {})
    return quickstart(lesson, f"--config-path={RECIPES}", f"--config-name={name}", **keys)


CASES: dict[str, Callable[[Path, int], Outcome]] = {
    "quickstart": quickstart(ARITHMETIC),
    "quickstart search": quickstart(SEARCH),
    "quickstart calculator": quickstart(CALCULATOR),
    **{path.stem: recipe(path.stem) for path in sorted(RECIPES.glob("*.yaml"))},
    "sft/nano_scratchpad": supervised("sft", "nano_scratchpad", "trainer.total_epochs=2"),
    "sft/nano_direct": supervised("sft", "nano_direct"),
    "sft/chat": supervised("sft", "chat", "optim.lr=1e-3", "trainer.total_epochs=1"),
    "rm/chat": supervised("rm", "chat", "optim.lr=1e-3"),
}


def train(module: str, folder: Path, *words: str) -> None:
    """In a process of one thread. Of keys that come twice the later counts, as on a command line."""
    words = tuple({word.partition("=")[0]: word for word in (*words, *QUIET)}.values())
    done = subprocess.run(
        [sys.executable, "-m", f"burnish.trainer.{module}", *words],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    (folder / "output.txt").write_text(done.stdout + done.stderr)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])


def outcome(folder: Path, measured: str) -> Outcome:
    values = [line[measured] for line in read_metrics(folder) if measured in line]
    health = read_health(folder)
    return Outcome(values[0], values[-1], health.verdict().splitlines()[0], list(health.found.values()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time")
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="NAME")
    options = parser.parse_args()
    print(f"{'run':<24} seed  before   after  verdict, findings", flush=True)
    false_alarms = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        begun = {
            (name, seed): pool.submit(CASES[name], (options.out / f"{name}-{seed}".replace(" ", "-")).resolve(), seed)
            for seed in options.seeds
            for name in options.only
        }
        for (name, seed), future in begun.items():
            if (error := future.exception()) is not None:
                print(f"{name:<24} {seed:>4}  failed: {error}", flush=True)
                false_alarms += 1
                continue
            one = future.result()
            print(f"{name:<24} {seed:>4}  {one.before:6.3f}  {one.after:6.3f}  {one.verdict}")
            for found in one.findings:
                print(f"{'':<29}  step {found.first_step}, {found.steps} steps: {found}")
            sys.stdout.flush()
            false_alarms += len(one.alarms)
    print(f"{false_alarms} alarms above a note")
    return 1 if false_alarms else 0


if __name__ == "__main__":
    sys.exit(main())
