"""Whether a refactor kept every number: `python benchmarks/same_numbers.py OTHER_CHECKOUT`, or with `--help`.

Trains the embedded models for a few steps in this checkout and in the other one, on a CPU, and compares bit by bit:
the metrics of every step (except times), the rollouts, and the weights of the last checkpoint. The case `killed` is
ended by SIGKILL after its first checkpoint and resumed; it must equal `grpo`. Exit code 1 if anything differs.

Make the other checkout with `git worktree add ../before HEAD~1`. Runs use the packages of this Python and one thread.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from safetensors import safe_open

HERE = Path(__file__).parents[1]
STEPS = 4
CLOCKS = ("timing_s/", "timing_per_token_ms/", "perf/", "seconds")
# How searches of one round are joined to requests and batches depends on when they come, in one checkout as in two.
JOINED = ("retrieval/", "rollout_corr/", "training/rollout_", "response/entropy")
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
GRPO = ["algorithm.adv_estimator=grpo", f"{ACTOR}.use_kl_loss=true", f"{ROLLOUT}.n=8"]
CASES = {
    "grpo": GRPO,
    "killed": GRPO,
    "ppo": ["algorithm.adv_estimator=gae", "algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.type=adaptive",
            "algorithm.kl_ctrl.horizon=100", "critic.optim.lr=1e-4", f"{ACTOR}.ppo_epochs=2"],
    "lora": [*GRPO, "actor_rollout_ref.model.lora_rank=4"],
    "dapo": [*GRPO, "algorithm.filter_groups.enable=true", f"{ACTOR}.clip_ratio_high=0.28",
             "algorithm.overlong_buffer.enable=true", "algorithm.overlong_buffer.len=16"],
    "remax": ["algorithm.adv_estimator=remax"],
    "gspo": [*GRPO, f"{ACTOR}.policy_loss.loss_mode=gspo", f"{ACTOR}.loss_agg_mode=seq-mean-token-mean"],
    "prime": ["algorithm.adv_estimator=prime", f"{ROLLOUT}.n=4"],
    "hf": [*GRPO, f"{ROLLOUT}.name=hf"],
    "correction": [*GRPO, "algorithm.rollout_correction.rollout_is=token"],
    "calculator": ["--task", "calculator"],
    "search": ["--task", "search"],
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="another checkout of burnish, before the change")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="CASE", help=", ".join(CASES))
    options = parser.parse_args()
    differ = False
    with tempfile.TemporaryDirectory() as folder:
        for case in options.only:
            runs = [run(case, root.resolve(), Path(folder, case, name))
                    for name, root in (("before", options.other), ("after", HERE))]  # fmt: skip
            found = differences(*map(contents, runs))
            if case == "search":
                found = [name for name in found if not any(part in name for part in JOINED)]
            if case == "killed" and "grpo" in options.only:
                found += differences(contents(Path(folder, "grpo", "after")), contents(runs[1]))
            differ |= bool(found)
            print(f"{case:12} {'identical' if not found else 'DIFFERENT: ' + ', '.join(found[:12])}", flush=True)
    sys.exit(differ)


def run(case: str, root: Path, folder: Path) -> Path:
    """Train this case with the burnish of a checkout; returns the run folder."""
    folder.mkdir(parents=True)
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    burnish = [sys.executable, "-m", "burnish.cli.main"]
    if CASES[case][0] == "--task":
        command = [*burnish, "quickstart", *CASES[case], "--steps", str(STEPS), "--output", str(folder)]
    else:
        making = [*burnish, "data", "make", "arithmetic", "--train-size", "64", "--test-size", "8"]
        subprocess.run([*making, "--out", "data"], cwd=folder, env=environment, check=True, capture_output=True)
        command = [
            *burnish, "ppo", "data.train_files=data/train.parquet", "data.val_files=data/test.parquet",
            "data.train_batch_size=8", "data.max_prompt_length=32", "data.max_response_length=48",
            f"actor_rollout_ref.model.path={root}/burnish/models/nano", f"{ACTOR}.ppo_mini_batch_size=4",
            f"{ACTOR}.optim.lr=1e-4", f"trainer.total_training_steps={STEPS}", "trainer.device=cpu",
            "trainer.save_freq=2", "trainer.test_freq=2", "trainer.default_local_dir=.", "trainer.logger=jsonl",
            *CASES[case],
        ]  # fmt: skip
    for attempt in range(1 + (case == "killed")):
        with open(folder / "log.txt", "a") as log:
            process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
        if case == "killed" and attempt == 0:
            while process.poll() is None and not (folder / "latest_checkpointed_iteration.txt").exists():
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
            process.wait()
        elif process.wait() != 0:
            sys.exit(f"{case} in {root} failed:\n{(folder / 'log.txt').read_text()[-3000:]}")
    return folder


def contents(folder: Path, step: int = STEPS) -> dict[str, object]:
    """What a run of so many steps computed, by name."""
    found: dict[str, object] = {}
    for number, line in enumerate((folder / "metrics.jsonl").read_text().splitlines()):
        for name, value in json.loads(line).items():
            if not any(part in name for part in CLOCKS):
                found[f"{name} (line {number})"] = value
    for file in sorted([*folder.glob("rollouts/*.jsonl"), *folder.glob("validation/*.jsonl")]):
        found[str(file.relative_to(folder))] = file.read_text()
    for file in sorted(folder.glob(f"global_step_{step}/**/*.safetensors")):
        with safe_open(file, "numpy") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (it is no dict)
                found[f"{file.relative_to(folder)} {name}"] = tensors.get_tensor(name).tobytes()
    return found


def differences(before: dict[str, object], after: dict[str, object]) -> list[str]:
    """Names of what is not the same in both."""
    return [name for name in {**before, **after} if before.get(name) != after.get(name)]


if __name__ == "__main__":
    main()
