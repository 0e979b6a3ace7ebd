"""What generation that runs ahead of training is worth: `python benchmarks/run_ahead.py --help`.

Trains a random-weight model, as `benchmarks/step.py` does and through the same code as `burnish ppo`, on trajectories
like those of agents: lengths have a long tail (log-normal, cut at --tokens), and some call a slow tool in the middle.
Each trajectory's length and its call are a function of its prompt and sample, so every run does the same work, in a
separate process:

    staleness 0   generate, then train: the step takes as long as its longest trajectory and its update
    staleness k   up to k rounds are on their way while the policy trains

    python benchmarks/run_ahead.py                                                            # a small model, on a CPU
    python benchmarks/run_ahead.py --shape qwen2.5-0.5b --prompts 64 --n 8 --tokens 1024 --tool-seconds 5 \\
        actor_rollout_ref.model.dtype=bfloat16                                                # a GPU

Prints a table (means over all steps but the first and the last ones) and one JSON line. `waited` is
what the controller waited for rounds, `age` the mean number of updates between a token and what it trains.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import step as single
import torch
import yaml  # type: ignore[import-untyped]

from burnish.agents import AgentLoopBase, AgentLoopOutput
from burnish.agents.server import Transcript
from burnish.config.load import load_ppo
from burnish.models.device import pick_device
from burnish.tracking.jsonl import read_metrics
from burnish.trainer import setup

LEFT_OUT = 3  # steps at the beginning, where rounds are begun and kernels compiled, and at the end, without any ahead
SHORTEST, SPREAD = 8, 1.0  # tokens of a trajectory at least; sigma of the logarithm of lengths
COLUMNS = {
    "step, s": "timing_s/step",
    "waited, s": "timing_s/gen",
    "update, s": "timing_s/update_actor",
    "age": "training/off_policy/age_mean",
    "mixed": "training/off_policy/mixed_ratio",
}


class Tailed(AgentLoopBase):
    """Writes as many tokens as the length that its prompt and sample have; some wait for a tool half way."""

    def __init__(self, *args: Any, seconds: float, share: float, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.seconds, self.share = seconds, share

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        most = self.config.data.response_limit
        random = np.random.default_rng([row["uid"], row["sample"]])
        length = int(np.clip(random.lognormal(np.log(most / 8), SPREAD), SHORTEST, most))
        transcript = Transcript(self.server_manager, self.prompt_ids(row["messages"]), most)
        await transcript.sample(sampling_params, max_tokens=-(-length // 2))
        if random.random() < self.share:
            await asyncio.sleep(self.seconds)
        await transcript.sample(sampling_params, max_tokens=length // 2)
        return transcript.output()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=single.SHAPES, default="mini", help="size of the random model [%(default)s]")
    parser.add_argument("--prompts", type=int, default=16, help="prompts per step [%(default)s]")
    parser.add_argument("--n", type=int, default=4, help="responses per prompt [%(default)s]")
    parser.add_argument("--tokens", type=int, default=256, help="the longest response [%(default)s]")
    parser.add_argument("--tool-seconds", type=float, default=3.0, help="that the tool takes [%(default)s]")
    parser.add_argument("--tool-share", type=float, default=0.1, help="of trajectories that call it [%(default)s]")
    parser.add_argument("--steps", type=int, default=12, help="[%(default)s]")
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 1, 2], help="[%(default)s]")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("overrides", nargs="*", help="further keys, as for burnish ppo")
    options = parser.parse_intermixed_args()
    if options.steps <= 2 * LEFT_OUT:
        parser.error(f"--steps must be more than {2 * LEFT_OUT}: the first and last {LEFT_OUT} are not counted")
    pick_device(options.device, key="--device")
    if len(options.staleness) == 1:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(measure(options, options.staleness[0], Path(folder))))
        return
    print_table([alone(staleness, sys.argv[1:]) for staleness in options.staleness])


def alone(staleness: int, arguments: list[str]) -> dict[str, Any]:
    """The results of one staleness, in a separate process."""
    single.progress(f"staleness {staleness}:")
    done = subprocess.run(
        [sys.executable, __file__, *arguments, "--staleness", str(staleness)], stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise SystemExit(f"staleness {staleness}: the run failed ({done.returncode}), see above")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def measure(options: argparse.Namespace, staleness: int, folder: Path) -> dict[str, Any]:
    """Run the job; return its results."""
    entry = {"name": "tailed", "_target_": f"{Path(__file__).resolve()}:Tailed"}
    entry |= {"seconds": options.tool_seconds, "share": options.tool_share}
    (folder / "agents.yaml").write_text(yaml.safe_dump([entry]))
    agent = "actor_rollout_ref.rollout.agent"
    overrides = [
        *single.job(options, folder), *single.QUIET,
        f"{agent}.agent_loop_config_path={folder / 'agents.yaml'}", f"{agent}.default_agent_loop=tailed",
        "trainer.async_rollout.enable=True", f"trainer.async_rollout.staleness={staleness}",
        "algorithm.rollout_correction.mode=on",  # also where nothing is old, so that every run has the same passes
        *options.overrides,
    ]  # fmt: skip
    loaded = load_ppo(overrides)
    setup.prepare(loaded)
    trainer = setup.build(loaded.config)
    trainer.init_workers()
    single.watch_steps(trainer, options.steps)
    trainer.fit()
    lines = read_metrics(loaded.config.trainer.default_local_dir)[LEFT_OUT:-LEFT_OUT]
    results = {name: statistics.mean(line.get(key, 0.0) for line in lines) for name, key in COLUMNS.items()}
    tokens = statistics.mean(line["perf/generated_tokens"] for line in lines)
    on_gpu = pick_device(options.device).type == "cuda"
    return {
        "staleness": staleness, **results, "tokens per s": tokens / results["step, s"],
        "device": torch.cuda.get_device_name() if on_gpu else f"CPU, {os.cpu_count()} cores", "steps": len(lines),
    }  # fmt: skip


def print_table(rows: list[dict[str, Any]]) -> None:
    names = [*COLUMNS, "tokens per s"]
    print(f"{rows[0]['device']}, means over {rows[0]['steps']} steps")
    print(f"{'staleness':>10}" + "".join(f"{name:>14}" for name in names) + f"{'against 0':>12}")
    for row in rows:
        ratio = rows[0]["step, s"] / row["step, s"]
        print(f"{row['staleness']:>10}" + "".join(f"{row[name]:>14.3f}" for name in names) + f"{ratio:>11.2f}×")
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
