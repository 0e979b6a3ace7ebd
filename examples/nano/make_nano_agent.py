"""Make the embedded model that searches and calculates again, from nothing: `python examples/nano/make_nano_agent.py`.

A random model of 0.4 M parameters becomes one that knows how to use a search engine and a calculator, and does not:

1. `burnish sft` on right demonstrations (demonstrations.py) teaches to write a query for a question, to read what was
   found and copy the name that answers it, and to search again where it was not found; and to call the calculator with
   the numbers of a question and copy the result. It continues until unseen names and numbers are right.
2. `burnish sft` on mostly unhelpful ones, briefly, teaches to guess a name or a number at once, and now and then to
   write a search or a call that is none. Guesses are wrong; a right demonstration in seven keeps the skill alive.

So what RL does in `burnish quickstart --task search` and `--task calculator` is bring a habit back, not teach a skill.
The names of the worlds there are none of those here, and the products it is measured on are held out here too. What is
measured below is measured as it is there: by the agents themselves, with a retrieval server and a calculator.
"""

import argparse
import json
import random
import shutil
import sys
from pathlib import Path

import demonstrations as show
import torch
from make_nano import MODEL_FILES
from transformers import AutoModelForCausalLM

from burnish.agents.tools.calculator import CalculatorTool
from burnish.cli.quickstart import find_lesson, train
from burnish.cli.quickstart_agents import NANO_AGENT
from burnish.data.files import write_parquet
from burnish.data.tasks import calculator, facts
from burnish.entry.guard import guard
from burnish.errors import BurnishError
from burnish.models.tiny import write_tiny_model
from burnish.tracking.jsonl import read_metrics
from burnish.trainer import sft_trainer

ROOT = Path(__file__).resolve().parents[2]
RIGHT, UNHELPFUL, HELD_OUT = 14_000, 2_000, 256  # demonstrations of each task; questions it is measured on
UNHELPFUL_SHARE = 0.8
WAYS = {"greedy": "False", "sampled": "True"}  # val_kwargs.do_sample
SKILL, HABIT = 0.9, 0.3  # at least, sampled, after the first half; at most, greedy, after the second
TEACH = (
    "optim.lr=3e-3", "optim.betas=[0.9,0.99]", "optim.lr_warmup_steps=50", "optim.min_lr_ratio=0.02",
    "trainer.total_epochs=2", "trainer.test_freq=250",
)  # fmt: skip
UNTEACH = ("optim.lr=3e-4", "optim.lr_warmup_steps=10")

CARD = """# nano_agent

A model of 0.4 M parameters (Qwen2 architecture, three layers, a token for each tag, word and half of a name, else one
per byte; weights in float16) for `burnish quickstart --task search` and `--task calculator`. It was made from random
weights by `examples/nano/make_nano_agent.py`, and knows nothing but these two tasks.

Supervised fine-tuning on right demonstrations taught it to search and read, and to call a calculator. A short second
round on mostly guesses and on searches and calls that are none taught it not to. Right answers to held-out questions,
with greedy decoding and sampled at temperature 1:

| | search, greedy | search, sampled | calculator, greedy | calculator, sampled |
|---|---|---|---|---|
| after right demonstrations | {taught[search][greedy]:.3f} | {taught[search][sampled]:.3f} | \
{taught[calculator][greedy]:.3f} | {taught[calculator][sampled]:.3f} |
| as it is here | {nano_agent[search][greedy]:.3f} | {nano_agent[search][sampled]:.3f} | \
{nano_agent[calculator][greedy]:.3f} | {nano_agent[calculator][sampled]:.3f} |

RL brings the first habit back.
"""


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=NANO_AGENT, help="folder of the finished model")
    parser.add_argument("--work", type=Path, default=ROOT / "outputs" / "nano_agent", help="data, runs and checkpoints")
    parser.add_argument("--seed", type=int, default=0)
    options, overrides = parser.parse_known_args(argv)
    work = options.work
    shutil.rmtree(work, ignore_errors=True)
    write_data(work, options.seed)
    start = write_tiny_model(
        work / "start", hidden_size=96, layers=3, heads=4, intermediate_size=256, context=1024,
        chat_template=show.CHAT_TEMPLATE, words=show.vocabulary(), seed=options.seed,
    )  # fmt: skip

    taught = fine_tune("taught", start, work, [*TEACH, *overrides])
    known = measured(taught, work / "known")
    if min(known[task]["sampled"] for task in known) < SKILL:
        raise BurnishError(f"the demonstrations were not learnt: {known}, at least {SKILL} is needed; train longer")
    untaught = fine_tune("untaught", taught, work, [*UNTEACH, *overrides])
    shown = measured(untaught, work / "shown")
    if max(shown[task]["greedy"] for task in shown) > HABIT:
        raise BurnishError(f"the model still does it right: {shown}, at most {HABIT} is wanted; train longer")

    export(untaught, options.out, {"taught": known, "nano_agent": shown})
    print(f"written to {options.out}: {known}, then {shown}")


def write_data(work: Path, seed: int) -> None:
    """The conversations of both halves, and some to validate the first on."""
    write_parquet(conversations(RIGHT, seed), work / "taught.parquet")
    write_parquet(conversations(UNHELPFUL, seed + 1, unhelpful=UNHELPFUL_SHARE), work / "untaught.parquet")
    write_parquet(conversations(HELD_OUT, seed + 2), work / "test.parquet")


def conversations(count: int, seed: int, unhelpful: float = 0.0) -> list[dict]:
    """`count` of each task, mixed; a share of them unhelpful."""
    draw = random.Random(seed)
    rows = []
    for a, b in calculator.questions("train", count, seed):
        helps = not unhelpful or draw.random() >= unhelpful
        calculate, search = (
            (show.calculation, show.search) if helps else (show.unhelpful_calculation, show.unhelpful_search)
        )
        rows.append(show.sft_row(calculator.DATA_SOURCE, calculate(draw, a, b), [CalculatorTool.SCHEMA]))
        rows.append(show.sft_row(facts.DATA_SOURCE, search(draw)))
    draw.shuffle(rows)
    return rows


def fine_tune(name: str, model: Path, work: Path, keys: list[str]) -> Path:
    """`burnish sft` on the conversations of that name; returns the last checkpoint."""
    run = work / name
    sft_trainer.main(
        [
            f"model.path={model}", f"data.train_files={run}.parquet", f"data.val_files={work / 'test.parquet'}",
            "data.max_length=192", "data.train_batch_size=64", "data.micro_batch_size_per_gpu=64",
            "optim.lr_scheduler_type=cosine", f"trainer.experiment_name={name}", f"trainer.default_local_dir={run}",
            "trainer.device=cpu", *keys,
        ]
    )  # fmt: skip
    return run / f"global_step_{(run / 'latest_checkpointed_iteration.txt').read_text().strip()}"


def measured(model: Path, work: Path) -> dict[str, dict[str, float]]:
    """Right answers to held-out questions of the quickstart, by task and way of decoding."""
    found: dict[str, dict[str, float]] = {}
    for task in ("search", "calculator"):
        lesson, folder = find_lesson(task), work / task
        lesson.write_data(0, folder, HELD_OUT)
        with lesson.service(folder) as further:
            for way, sample in WAYS.items():
                keys = [f"actor_rollout_ref.model.path={model}", f"trainer.default_local_dir={folder / way}"]
                keys += [f"actor_rollout_ref.rollout.val_kwargs.do_sample={sample}", "trainer.val_only=True"]
                train([*lesson.job(0, folder, 1), *further, *keys])
                found.setdefault(task, {})[way] = read_metrics(folder / way)[0][lesson.accuracy]
    print(found)
    return found


def export(checkpoint: Path, out: Path, results: dict) -> None:
    """Model and tokenizer files only, the weights in half the space, and a card that says what was measured."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    for pattern in MODEL_FILES:
        for path in checkpoint.glob(pattern):
            shutil.copyfile(path, out / path.name)
    AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float16).save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)  # as the other files are; safetensors keeps it to its owner
    (out / "measured.json").write_text(json.dumps(results, indent=1) + "\n")
    (out / "README.md").write_text(CARD.format(**results))


if __name__ == "__main__":
    sys.exit(guard(main, sys.argv[1:]))
