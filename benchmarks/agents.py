"""How long a batch of trajectories waits for slow tools: `python benchmarks/agents.py`, `--help` for the sizes.

Runs `tool_agent` through `TrajectoryRunner`, as a training step does, over an engine that writes calls without a model:
what is measured is the loop, its tool and the waiting, not generation. Each trajectory calls a tool that sleeps, so
many times one after another, and then answers. Beside it stands what the tools alone would take one by one, and the
same batch with a tool that answers at once and without any call, which is the loop's own work. Prints a table and one
JSON line to keep. Fails where a trajectory did not make its calls.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from burnish.agents.runner import TrajectoryRunner
from burnish.agents.tools.base import BaseTool, ToolResponse
from burnish.config import PPOConfig
from burnish.models.tiny import byte_tokenizer
from burnish.rollout.base import Completion, OnToken, Request, RolloutEngine, Sampling
from burnish.workers.rollouts import agent_settings

CALL = '<tool_call>\n{"name": "wait", "arguments": {}}\n</tool_call>'
ANSWER = "That is all."


class Wait(BaseTool):
    """Sleeps for `config.seconds`, without holding anybody up."""

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        await asyncio.sleep(self.config["seconds"])
        return ToolResponse("waited"), 0.0, {}


class Scribe(RolloutEngine):
    """Writes `calls` calls, one in each turn, and then the answer."""

    def __init__(self, tokenizer: Any, calls: int):
        self.context, self.vocabulary = 100_000, len(tokenizer)
        self.calls = calls
        self.call, self.answer = (
            [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id] for text in (CALL, ANSWER)
        )

    async def generate(self, request: Request, on_token: OnToken | None = None) -> Completion:
        await asyncio.sleep(0)
        ids = list(self.call if request.order[2] < self.calls else self.answer)
        return Completion(ids, [-1.0] * len(ids), "stop", ids[-1], 0)

    def publish(self, weights: Any, version: int) -> None: ...
    def sleep(self) -> None: ...
    def wake(self) -> None: ...
    def abort(self, request_id: str) -> None: ...
    @property
    def in_flight(self) -> int:
        return 0

    def stats(self) -> dict[str, float]:
        return {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=256, help="in the batch [%(default)s]")
    parser.add_argument("--seconds", type=float, default=1.0, help="that the tool takes [%(default)s]")
    parser.add_argument("--calls", type=int, nargs="+", default=[1, 2], help="per trajectory [%(default)s]")
    options = parser.parse_args()
    if options.trajectories < 1 or options.seconds < 0 or min(options.calls) < 1:
        parser.error("--trajectories and --calls must be at least 1, --seconds at least 0")
    measure(4, 1, 0.0)  # what is made at first use is not counted
    print(f"{options.trajectories} trajectories")
    print(f"{'calls':>7}{'seconds of the tool':>21}{'batch, s':>10}{'one by one, s':>15}")
    results = []
    batches = [(calls, seconds) for calls in options.calls for seconds in (0.0, options.seconds)]
    for calls, seconds in [(0, 0.0), *batches]:
        taken = measure(options.trajectories, calls, seconds)
        alone = options.trajectories * calls * seconds
        print(f"{calls:>7}{seconds:>21g}{taken:>10.2f}{alone:>15.1f}", flush=True)
        results.append({"calls": calls, "tool_s": seconds, "batch_s": taken, "one_by_one_s": alone})
    facts = {"cores": os.cpu_count(), "python": sys.version.split()[0], "trajectories": options.trajectories}
    print(json.dumps({**facts, "batches": results}))


def measure(trajectories: int, calls: int, seconds: float) -> float:
    """Seconds for one batch."""
    tokenizer = byte_tokenizer()
    config = PPOConfig()
    config.data.max_response_length = 4096
    entry = {
        "class_name": f"{Path(__file__).resolve()}:Wait",
        "config": {"seconds": seconds},
        "tool_schema": {
            "type": "function",
            "function": {"name": "wait", "description": "Waits.", "parameters": {"type": "object", "properties": {}}},
        },
    }
    prompt = [{"role": "user", "content": "Wait, and then answer."}]
    rows = [{"uid": i, "sample": 0, "raw_prompt": prompt, "agent_name": "tool_agent"} for i in range(trajectories)]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tools.yaml"
        file.write_text(json.dumps({"tools": [entry]}))  # JSON is YAML
        config.actor_rollout_ref.rollout.multi_turn.tool_config_path = str(file)
        runner = TrajectoryRunner(Scribe(tokenizer, calls), tokenizer, agent_settings(config))
        begin = time.perf_counter()
        done = runner.run(rows, Sampling(), namespace="benchmark", seed=0)
        taken = time.perf_counter() - begin
        runner.close()
    for trajectory in done:
        if trajectory.output.metrics.get("num_tool_calls") != calls:
            raise SystemExit(f"a trajectory did not make its {calls} calls: {trajectory.output}")
    return taken


if __name__ == "__main__":
    main()
