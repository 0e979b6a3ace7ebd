"""Make the embedded model again, from nothing: `make nano`, or `python examples/nano/make_nano.py`.

A random model of 0.36 M parameters becomes one that knows how to add and subtract but does not show it:

1. `burnish sft` on worked answers teaches the digit-by-digit scratchpad, until held-out questions come out right.
2. `burnish sft` on mostly direct answers, briefly, teaches it to blurt a number out instead. Guessing is mostly wrong;
   the scratchpad is still there, and sampled now and then.

So what RL does in the quickstart is bring a skill out, not teach it: SFT taught the digits, and the reward alone tells
the model to use them. Held-out questions are split off by a hash of the question; no step here or there trains on them.
"""

import argparse
import asyncio
import json
import random
import shutil
import sys
from pathlib import Path

from burnish.config.model import ModelConfig
from burnish.data.chat import ChatRenderer
from burnish.data.files import write_parquet
from burnish.data.tasks import arithmetic
from burnish.entry.guard import guard
from burnish.errors import BurnishError
from burnish.models.loading import load_causal_lm, load_tokenizer
from burnish.models.tiny import write_tiny_model
from burnish.rewards.scores.arithmetic import compute_score
from burnish.rollout.base import Request, Sampling, request_seed
from burnish.rollout.native.engine import NativeEngine
from burnish.trainer import sft_trainer

ROOT = Path(__file__).resolve().parents[2]
NANO = ROOT / "burnish" / "models" / "nano"

# Short, because every token costs time on a laptop: a question between <|start|> and a line break, then the answer.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ message['content'] + '<|end|>' }}"
    "{% else %}{{ '<|start|>' + message['content'] + '\\n' }}{% endif %}"
    "{% endfor %}"
)
WORKED, SHOWN, HELD_OUT = 40_000, 8_000, 500
DIRECT_SHARE = 0.8
WAYS = {"greedy": 0.0, "sampled": 1.0}  # the temperatures accuracy is measured at
SKILL, BLURT = 0.99, 0.4  # at least, sampled, after the first half; at most, greedy, after the second
MODEL_FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer*", "*.jinja", "*.txt", "vocab*")

CARD = """# nano

A model of 0.36 M parameters (Qwen2 architecture, two layers, one token per byte) for `burnish quickstart`. It was made
by `make nano` from random weights, on sums and differences of three-digit numbers, and knows nothing else.

Supervised fine-tuning taught it to work an answer out digit by digit: {greedy:.3f} of held-out questions right with
greedy decoding, {sampled:.3f} sampled at temperature 1. A short second round on mostly direct answers taught it to
blurt a number out: {blurts[greedy]:.3f} greedy, {blurts[sampled]:.3f} sampled. RL brings the first habit back.
"""


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=NANO, help="folder of the finished model")
    parser.add_argument("--work", type=Path, default=ROOT / "outputs" / "nano", help="data, runs and checkpoints")
    parser.add_argument("--seed", type=int, default=0)
    options, overrides = parser.parse_known_args(argv)
    work = options.work
    shutil.rmtree(work, ignore_errors=True)
    held_out = write_data(work, options.seed)
    start = write_tiny_model(  # heads of 32 numbers: vLLM has no smaller ones on a CPU
        work / "start", hidden_size=128, heads=4, intermediate_size=256, context=1024,
        chat_template=CHAT_TEMPLATE, seed=options.seed,
    )  # fmt: skip

    skilled = fine_tune("nano_scratchpad", start, work, overrides)
    known = {name: accuracy(skilled, held_out, temperature) for name, temperature in WAYS.items()}
    print(f"after the scratchpad: {known}")
    if known["sampled"] < SKILL:
        raise BurnishError(f"the scratchpad was not learnt: {known}, at least {SKILL} is needed; train longer")

    blurting = fine_tune("nano_direct", skilled, work, overrides)
    shown = {name: accuracy(blurting, held_out, temperature) for name, temperature in WAYS.items()}
    print(f"after direct answers: {shown}")
    if shown["greedy"] > BLURT:
        raise BurnishError(f"the model still works its answers out: {shown}, at most {BLURT} is wanted; train longer")

    export(blurting, options.out, {"scratchpad": known, "nano": shown})
    print(f"written to {options.out}")


def write_data(work: Path, seed: int) -> list[dict]:
    """The files of both halves; returns the held-out questions."""
    worked = [arithmetic.sft_row(*q, arithmetic.scratchpad(*q)) for q in arithmetic.questions("train", WORKED, seed)]
    choice = random.Random(seed)
    shown = []
    for q in arithmetic.questions("train", SHOWN, seed + 1):
        answer = arithmetic.direct if choice.random() < DIRECT_SHARE else arithmetic.scratchpad
        shown.append(arithmetic.sft_row(*q, answer(*q)))
    test = [arithmetic.sft_row(*q, arithmetic.scratchpad(*q)) for q in arithmetic.questions("test", HELD_OUT, seed)]
    write_parquet(worked, work / "nano_scratchpad.parquet")
    write_parquet(shown, work / "nano_direct.parquet")
    write_parquet(test, work / "test.parquet")
    return arithmetic.rows("test", HELD_OUT, seed)


def fine_tune(recipe: str, model: Path, work: Path, overrides: list[str]) -> Path:
    """`burnish sft` with a recipe of recipes/sft; returns the last checkpoint."""
    run = work / recipe
    files = [f"data.train_files={work / recipe}.parquet", f"data.val_files={work / 'test.parquet'}"]
    sft_trainer.main(
        [
            f"--config-path={ROOT / 'recipes' / 'sft'}", f"--config-name={recipe}", f"model.path={model}", *files,
            f"trainer.default_local_dir={run}", "trainer.device=cpu", *overrides,
        ]
    )  # fmt: skip
    return run / f"global_step_{(run / 'latest_checkpointed_iteration.txt').read_text().strip()}"


def accuracy(model: Path, rows: list[dict], temperature: float) -> float:
    """Share of questions answered exactly, one completion each."""
    tokenizer = load_tokenizer(model)
    engine = NativeEngine(load_causal_lm(model, ModelConfig(path=str(model))), tokenizer)
    renderer = ChatRenderer(tokenizer)

    async def score(index: int, row: dict) -> float:
        seed = request_seed(0, "nano", index, 0, 0)
        sampling = Sampling(temperature=temperature, max_tokens=64, seed=seed)
        completion = await engine.generate(Request(renderer.prompt_ids(row["prompt"]), sampling, request_id=str(index)))
        text = tokenizer.decode(completion.token_ids, skip_special_tokens=True)
        return compute_score(text, row["reward_model"]["ground_truth"])["score"]

    async def score_all() -> list[float]:
        return await asyncio.gather(*(score(index, row) for index, row in enumerate(rows)))

    return sum(asyncio.run(score_all())) / len(rows)


def export(checkpoint: Path, out: Path, measured: dict) -> None:
    """Model and tokenizer files only, and a card that says what was measured."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    for pattern in MODEL_FILES:
        for path in checkpoint.glob(pattern):
            shutil.copyfile(path, out / path.name)
    (out / "measured.json").write_text(json.dumps(measured, indent=1) + "\n")
    (out / "README.md").write_text(CARD.format(**measured["scratchpad"], blurts=measured["nano"]))


if __name__ == "__main__":
    sys.exit(guard(main, sys.argv[1:]))
