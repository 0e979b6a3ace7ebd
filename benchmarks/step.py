"""How long a training step takes, and each of its phases: `make bench`, or `python benchmarks/step.py --help`.

Trains a random-weight model of a given shape on made-up prompts with a trivial reward, through the same code as
`burnish ppo`. Prints a table (medians over the steps after the first) and one JSON line to keep; progress goes to
stderr. Speed does not depend on what the weights are, so nothing is downloaded.

    python benchmarks/step.py --quickstart --baseline                          # the quickstart's job, on this CPU
    python benchmarks/step.py --shape qwen2.5-0.5b --prompts 64 --n 8 --tokens 512 --steps 4 --kl \\
        actor_rollout_ref.model.dtype=bfloat16                               # a GPU

With `trainer.executor=ray` the workers are other processes: memory and rates that are measured inside are left out.

`--baseline` runs the job again the simple way: padded rows through transformers' own modules, and whole logits. Phases
that have no part in that, such as gen, show how even the machine was. Runs have a process each, and so has the making
of the model, whose time does not count.

    elsewhere                  seconds of the step that no phase accounts for
    command to first step      from the start of the process to the end of its first step
    update                     operations that it needs (2 per weight and token forward, 2 for the gradient of
                               activations, 2 for that of trained weights, and attention) by its seconds; what gradient
                               checkpointing computes twice counts once
    matrix peak                of a large bf16 product on this GPU, measured here
    floor without generation   the least time of the passes that the step ran, at the matrix peak
"""

import argparse
import json
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from burnish.cli import quickstart
from burnish.config.load import load_ppo
from burnish.data.files import write_parquet
from burnish.data.tasks import arithmetic
from burnish.engine.flops import sequence_flops
from burnish.engine.trainable import Trainable
from burnish.errors import BurnishError
from burnish.models.device import pick_device
from burnish.models.loading import quiet_transformers
from burnish.models.tiny import write_tiny_model
from burnish.tracking.jsonl import read_metrics
from burnish.trainer import setup
from burnish.trainer.ppo import PPOTrainer

# Hidden size, layers, heads, key-value heads, intermediate size, vocabulary, whether the output layer is the embedding.
SHAPES = {
    "nano": (128, 2, 4, 4, 256, 259, True),
    "mini": (256, 6, 8, 8, 1024, 259, True),
    "smollm2-135m": (576, 30, 9, 3, 1536, 49152, True),
    "qwen2.5-0.5b": (896, 24, 14, 2, 4864, 151936, True),
    "qwen2.5-1.5b": (1536, 28, 12, 2, 8960, 151936, True),
    "qwen2.5-3b": (2048, 36, 16, 2, 11008, 151936, True),
    "qwen2.5-7b": (3584, 28, 28, 4, 18944, 152064, False),
    "qwen2.5-14b": (5120, 48, 40, 8, 13824, 152064, False),
    "qwen2.5-32b": (5120, 64, 40, 8, 27648, 152064, False),
}
PROMPT_LENGTH = 64
REWARD = "def compute_score(solution_str):\n    return float(len(solution_str) % 2)\n"
QUIET = ["trainer.logger=jsonl", "trainer.save_freq=-1", "trainer.val_before_train=False", "trainer.test_freq=-1"]
SIMPLE = ["actor_rollout_ref.model.use_remove_padding=False", "actor_rollout_ref.model.use_fused_kernels=False"]
KL = ["actor_rollout_ref.actor.use_kl_loss=True", "actor_rollout_ref.actor.kl_loss_coef=0.001"]
INSIDE = {"engine": "gen", "reward_model": "reward"}  # phases that are part of another
UNITS = {
    "step": "s", "first step": "s", "command to first step": "s", "model made": "s", "tokens per second": "",
    "peak memory": "GiB", "peak memory of the update": "GiB", "update": "TFLOP/s", "matrix peak": "TFLOP/s",
    "update / matrix peak": "", "MFU": "", "floor without generation": "s",
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="nano", help="size of the random model")
    parser.add_argument("--prompts", type=int, default=16, help="prompts per step")
    parser.add_argument("--n", type=int, default=8, help="responses per prompt")
    parser.add_argument("--tokens", type=int, default=64, help="tokens per response; every response is this long")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--kl", action="store_true", help="with a reference model and a KL term of 0.001 in the loss")
    parser.add_argument("--lora", type=int, default=0, metavar="RANK", help="train adapters of this rank alone")
    parser.add_argument("--quickstart", action="store_true", help="the job of `burnish quickstart`, with its own shape")
    parser.add_argument("--baseline", action="store_true", help="the same job the simple way too, and the ratios")
    parser.add_argument("overrides", nargs="*", help="further keys, as for burnish ppo")
    options = parser.parse_intermixed_args()
    if min(options.prompts, options.n, options.tokens) < 1 or options.steps < 2:
        parser.error("--prompts, --n and --tokens must be at least 1, and --steps 2: the first step is not counted")
    pick_device(options.device, key="--device")
    if options.quickstart:
        options.shape, options.prompts, options.n, options.tokens, options.device = "quickstart", 16, 8, 64, "cpu"
    if options.baseline:
        arguments = [argument for argument in sys.argv[1:] if argument != "--baseline"]
        print_table(run_alone("packed and fused", arguments), run_alone("the simple way", [*arguments, *SIMPLE]))
        return
    with tempfile.TemporaryDirectory() as folder:
        print_table(measure(options, Path(folder)))


def run_alone(what: str, arguments: list[str]) -> dict[str, Any]:
    """The results of a run in a separate process, so that neither memory nor what is cached mixes with another's."""
    progress(f"{what}:")
    done = subprocess.run([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{what}: the run failed ({done.returncode}), see above")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run the job; return what it was and its results by name, of which `phases` are seconds."""
    begin = time.perf_counter()
    overrides = quickstart_job(options, folder) if options.quickstart else job(options, folder)
    made = time.perf_counter() - begin
    progress(f"  model and data made in {made:.1f} s")
    overrides += [f"actor_rollout_ref.model.lora_rank={options.lora}"] if options.lora else []
    loaded = load_ppo([*overrides, *(KL if options.kl else []), *QUIET, *options.overrides])
    setup.prepare(loaded)
    trainer = setup.build(loaded.config)
    trainer.init_workers()
    progress(f"  ready to fit {alive() - made:.1f} s after the command, not counting that")
    here = getattr(trainer.policy, "worker", None)  # None: in other processes (trainer.executor=ray)
    ends, peaks = watch_steps(trainer, options.steps), watch_memory(here.actor) if here else None
    trainer.fit()

    lines = read_metrics(loaded.config.trainer.default_local_dir)
    for line in lines:
        inside = [line[f"timing_s/{name}"] for name in INSIDE if f"timing_s/{name}" in line]
        phases = sum(value for name, value in line.items() if name.startswith("timing_s/")) - line["timing_s/step"]
        line["timing_s/elsewhere"] = line["timing_s/step"] - (phases - sum(inside))
    names = [name for name in lines[-1] if name.startswith(("timing_s/", "perf/", "actor/skipped_tokens_ratio"))]
    later = {name: statistics.median(line[name] for line in lines[1:]) for name in names}
    known = {name: getattr(options, name) for name in ("shape", "prompts", "n", "tokens", "kl", "lora", "overrides")}
    on_gpu = pick_device(trainer.config.trainer.device).type == "cuda"
    known["device"] = torch.cuda.get_device_name() if on_gpu else f"CPU, {torch.get_num_threads()} threads"
    known["torch"] = torch.__version__
    known["phases"] = {name.removeprefix("timing_s/"): later[name] for name in names if name.startswith("timing_s/")}
    known["step"] = step = known["phases"].pop("step")
    known |= {"first step": lines[0]["timing_s/step"], "command to first step": ends[0] - made, "model made": made}
    known["tokens per second"] = later["perf/total_num_tokens"] / step
    if peaks is not None:
        known |= {"peak memory": max(peaks()), **rates(trainer, later)}
    named = {"peak memory of the update": "perf/max_memory_allocated_gb", "MFU": "perf/mfu/actor"}
    return known | {name: later[metric] for name, metric in named.items() if metric in later}


def job(options: argparse.Namespace, folder: Path) -> list[str]:
    """A random model, prompts, and the keys of the run."""
    arguments = (folder / "model", options.shape, PROMPT_LENGTH + options.tokens, options.device)
    maker = multiprocessing.get_context("spawn").Process(target=write_model, args=arguments)
    maker.start()
    maker.join()
    if maker.exitcode:
        raise SystemExit(f"the model could not be made ({maker.exitcode}), see above")
    rows = write_parquet(arithmetic.rows("train", options.prompts * options.steps), folder / "train.parquet")
    (folder / "reward.py").write_text(REWARD)
    return [
        "algorithm.adv_estimator=grpo", f"actor_rollout_ref.rollout.n={options.n}",
        "actor_rollout_ref.rollout.ignore_eos=True", f"data.max_response_length={options.tokens}",
        f"data.max_prompt_length={PROMPT_LENGTH}", f"data.train_files={rows}",
        f"data.train_batch_size={options.prompts}", f"actor_rollout_ref.actor.ppo_mini_batch_size={options.prompts}",
        f"actor_rollout_ref.model.path={folder / 'model'}", f"custom_reward_function.path={folder / 'reward.py'}",
        f"trainer.default_local_dir={folder / 'run'}", f"trainer.device={options.device}",
        f"trainer.total_training_steps={options.steps}",
    ]  # fmt: skip


def write_model(folder: Path, shape: str, context: int, device: str) -> None:
    """In a separate process: it makes nothing on the GPU ready for the run, and leaves no memory taken."""
    hidden, layers, heads, kv_heads, intermediate, vocabulary, tied = SHAPES[shape]
    with torch.device(pick_device(device)), quiet_transformers():
        write_tiny_model(
            folder, hidden_size=hidden, layers=layers, heads=heads, num_key_value_heads=kv_heads, dtype="bfloat16",
            intermediate_size=intermediate, vocab_size=vocabulary, tie_word_embeddings=tied, context=max(4096, context),
        )  # fmt: skip


def quickstart_job(options: argparse.Namespace, folder: Path) -> list[str]:
    """What `burnish quickstart` runs, but for the held-out questions, which are not asked."""
    for split, count in (("train", 4096), ("test", quickstart.HELD_OUT)):
        write_parquet(arithmetic.rows(split, count), folder / "data" / f"{split}.parquet")
    return quickstart.job(1, folder, options.steps)


def watch_steps(trainer: PPOTrainer, steps: int) -> list[float]:
    """Tells of every step, and notes when it ended, in seconds after the command."""
    ends, log = [], trainer.tracker.log

    def log_and_print(metrics: dict[str, float], step: int) -> None:
        ends.append(alive())
        log(metrics, step)
        progress(f"  step {step} of {steps}: {metrics['timing_s/step']:.2f} s")

    trainer.tracker.log = log_and_print  # type: ignore[method-assign, assignment]
    return ends


def watch_memory(actor: Trainable) -> Callable[[], list[float]]:
    """The peaks so far, in GiB, when called. On a GPU an update begins a new one, which is then what it reports."""
    if actor.device.type != "cuda":
        return lambda: [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20]
    peaks, forward_backward = [0.0], actor.forward_backward

    def from_here(*arguments: Any) -> dict[str, float]:
        peaks.append(torch.cuda.max_memory_allocated() / 2**30)
        torch.cuda.reset_peak_memory_stats()
        return forward_backward(*arguments)

    actor.forward_backward = from_here  # type: ignore[method-assign, assignment]
    return lambda: [*peaks, torch.cuda.max_memory_allocated() / 2**30]


def rates(trainer: PPOTrainer, later: dict[str, float]) -> dict[str, float]:
    """How fast the update computes; on a GPU also the share of its matrix peak, and the floor of the step."""
    module, config = trainer.policy.worker.actor.module, trainer.config
    rows = config.data.train_batch_size * config.actor_rollout_ref.rollout.n
    each = later["perf/total_num_tokens"] / rows  # attention is counted as if all were of one length
    forward, update = (sequence_flops(module, [each] * rows, backward=backward) for backward in (False, True))
    update *= config.actor_rollout_ref.actor.ppo_epochs * (1 - later["actor/skipped_tokens_ratio"])
    found = {"update": update / later["timing_s/update_actor"] / 1e12}
    if module.device.type == "cuda":
        found["matrix peak"] = peak = matrix_peak() / 1e12
        passes = sum(f"timing_s/{name}" in later for name in ("old_log_prob", "ref"))
        found["update / matrix peak"] = found["update"] / peak
        found["floor without generation"] = (passes * forward + update) / peak / 1e12
    return found


def matrix_peak(size: int = 8192, repeat: int = 200) -> float:
    """FLOP/s of a bf16 product on the GPU, of random numbers: those of zeros take less power and are faster."""
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for count in (10, repeat):  # the first is for the library to choose a kernel
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            torch.mm(a, b)
        torch.cuda.synchronize()
    return 2.0 * size**3 * repeat / (time.perf_counter() - begin)


def print_table(ours: dict[str, Any], simple: dict[str, Any] | None = None) -> None:
    """One run by itself with shares of its step, or two side by side with their ratios; then all as JSON."""
    print(f"{ours['shape']}, {ours['prompts']} prompts × {ours['n']} × {ours['tokens']} tokens, on {ours['device']}")
    if simple:
        print(f"  {'':<30}{'packed, fused':>14}{'simple':>14}{'simple / ours':>16}")
    for name, unit in {**dict.fromkeys(ours["phases"], "s"), **UNITS}.items():
        values = [run["phases"].get(name, run.get(name)) for run in (ours, simple) if run]
        if None in values:
            continue
        note = f"{values[1] / values[0]:16.2f}" if simple and name != "elsewhere" else ""
        if not simple and name in ours["phases"]:
            note = f"{values[0] / ours['step']:8.1%}" + (f" (in {INSIDE[name]})" if name in INSIDE else "")
        print(f"  {name + ', ' * bool(unit) + unit:<30}" + "".join(f"{value:14.3f}" for value in values) + note)
    print(json.dumps({"ours": ours, "simple": simple} if simple else ours))


def alive() -> float:
    """Seconds since the command was given."""
    began = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19]  # in ticks after the machine's start
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(began) / os.sysconf("SC_CLK_TCK")


def progress(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        main()
    except BurnishError as error:
        raise SystemExit(str(error)) from error
