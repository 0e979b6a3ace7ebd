"""How long a training step takes, and each of its phases: `make bench`, or `python benchmarks/step.py --help`.

Trains a random-weight model of a given shape on made-up prompts with a trivial reward, through the same code as
`burnish ppo`. Prints a table (median over the steps after the first) and one JSON line to keep. Speed does not depend
on what the weights are, so nothing is downloaded.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch

from burnish.config.load import load_ppo
from burnish.data.files import write_parquet
from burnish.data.tasks import arithmetic
from burnish.models.device import pick_device
from burnish.models.tiny import write_tiny_model
from burnish.tracking.jsonl import read_metrics
from burnish.trainer import setup

SHAPES = {
    "nano": {"hidden_size": 96, "layers": 2, "heads": 4, "intermediate_size": 256},
    "mini": {"hidden_size": 256, "layers": 6, "heads": 8},
    "qwen2.5-0.5b": {
        "hidden_size": 896, "layers": 24, "heads": 14, "num_key_value_heads": 2, "intermediate_size": 4864,
        "vocab_size": 151936,
    },
}  # fmt: skip
REWARD = "def compute_score(solution_str):\n    return float(len(solution_str) % 2)\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="nano", help="size of the random model")
    parser.add_argument("--prompts", type=int, default=16, help="prompts per step")
    parser.add_argument("--n", type=int, default=8, help="responses per prompt")
    parser.add_argument("--tokens", type=int, default=64, help="tokens per response; every response is this long")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("overrides", nargs="*", help="further keys, as for burnish ppo")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report(options, measure(options, Path(folder)))


def measure(options: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Seconds by phase: median over the steps after the first, and the time until training starts."""
    start = time.perf_counter()
    model = write_tiny_model(folder / "model", context=4096, **SHAPES[options.shape])
    rows = write_parquet(arithmetic.rows("train", options.prompts * options.steps), folder / "train.parquet")
    (folder / "reward.py").write_text(REWARD)
    made = time.perf_counter()
    loaded = load_ppo(
        [
            "algorithm.adv_estimator=grpo", f"actor_rollout_ref.rollout.n={options.n}",
            "actor_rollout_ref.rollout.ignore_eos=True", f"data.max_response_length={options.tokens}",
            "data.max_prompt_length=64", f"data.train_files={rows}", f"data.train_batch_size={options.prompts}",
            f"actor_rollout_ref.actor.ppo_mini_batch_size={options.prompts}",
            f"actor_rollout_ref.model.path={model}", f"custom_reward_function.path={folder / 'reward.py'}",
            f"trainer.default_local_dir={folder / 'run'}", "trainer.logger=jsonl", "trainer.save_freq=-1",
            f"trainer.device={options.device}", f"trainer.total_training_steps={options.steps}", *options.overrides,
        ]
    )  # fmt: skip
    setup.prepare(loaded)
    trainer = setup.build(loaded.config)
    trainer.init_workers()
    ready = time.perf_counter()
    trainer.fit()
    steps = read_metrics(folder / "run")
    figures = {"start": ready - made, "model made": made - start, "first step": steps[0]["timing_s/step"]}
    for name in steps[-1]:
        if name.startswith("timing_s/"):
            figures[name.removeprefix("timing_s/")] = statistics.median(line[name] for line in steps[1:])
    tokens = statistics.median(line["perf/total_num_tokens"] for line in steps[1:])
    return figures | {"tokens": tokens, "tokens per second": tokens / figures["step"]}


def report(options: argparse.Namespace, figures: dict[str, float]) -> None:
    device = pick_device(options.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(f"{options.shape}, {options.prompts} prompts × {options.n} × {options.tokens} tokens, on {name}")
    for phase, value in figures.items():
        print(f"  {phase:<20}{value:12.3f}" + ("" if phase.startswith("tokens") else " s"))
    facts = {"shape": options.shape, "prompts": options.prompts, "n": options.n, "response": options.tokens}
    print(json.dumps({**facts, "device": name, "torch": torch.__version__, **figures}))


if __name__ == "__main__":
    main()
