"""examples/search_agent and examples/tool_agent, shortened, as they are: several programs that start and end."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from burnish.tracking.jsonl import read_metrics
from tests.examples.conftest import on_path

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = ["data.train_batch_size=2", "data.val_max_samples=4", "actor_rollout_ref.rollout.n=2", "trainer.device=cpu"]
SMALL += ["actor_rollout_ref.actor.ppo_mini_batch_size=2", "trainer.total_training_steps=1", "trainer.logger=jsonl"]
BURNISH = f'#!/bin/sh\nexec {sys.executable} -m burnish.cli.main "$@"\n'


@pytest.fixture
def run_script(tmp_path):
    """Run a script in a folder of its own; returns the metrics of the run, by step."""
    environment = on_path(tmp_path / "bin", {"burnish": BURNISH})

    def run(script: str, **variables: str) -> list[dict[str, float]]:
        where = {"cwd": tmp_path, "env": environment | variables, "timeout": 240}
        done = subprocess.run([EXAMPLES / script, *SMALL], **where, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        (metrics,) = (tmp_path / "outputs").rglob("metrics.jsonl")
        return read_metrics(metrics)

    return run


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return str(listener.getsockname()[1])


@pytest.mark.slow
def test_search_agent(run_script):
    port = free_port()
    lines = run_script("search_agent/run.sh", PORT=port)
    assert [line["step"] for line in lines] == [0, 1] and "val-core/searchR1_facts/acc/mean@1" in lines[0]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(port)), timeout=5)


@pytest.mark.slow
def test_tool_agent(run_script):
    lines = run_script("tool_agent/run.sh")
    assert [line["step"] for line in lines] == [0, 1] and "val-core/multiply/acc/mean@1" in lines[0]
