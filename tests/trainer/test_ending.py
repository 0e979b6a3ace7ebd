"""Whole runs with a tool that does not end: the real command, in its own process, ends by itself and by signals."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from burnish.tracking.run_status import read_status
from tests.processes import until
from tests.trainer.conftest import write_parquet
from tests.trainer.scripted import question

# The command, with a policy that calls the tool in the first trajectory.
COMMAND = """
import sys
from burnish.cli.main import main
from burnish.entry.ending import leave
from burnish.workers import replica
from tests.trainer.scripted import Script, call

make = replica.make_engine


def write(asked):
    return "<answer>Goethe</answer>" if asked.turn or asked.uid or asked.sample else call("go", "stuck")


def scripted(name, module, tokenizer, *rest):
    return Script(tokenizer, write, make(name, module, tokenizer, *rest))


replica.make_engine = scripted
leave(main(["ppo", *sys.argv[1:]]))
"""
TOOL = """
import asyncio, time
from burnish.agents.tools import BaseTool

def rest():
    while True: time.sleep(0.05)

class Stuck(BaseTool):
    SCHEMA = {{"type": "function", "function": {{"name": "stuck", "description": "Never ends.", "parameters": {{
        "type": "object", "properties": {{"text": {{"type": "string"}}}}}}}}}}

    async def execute(self, instance_id, parameters, **kwargs):
        open("called", "w").close()
        {body}
"""
BODIES = {
    "thread": "await asyncio.to_thread(rest)",
    "cancellation": """while True:
            try:
                await asyncio.sleep(1e6)
            except BaseException:
                pass""",
    "blocks": """while True:
            try:
                rest()
            except BaseException:
                pass""",
}
KEYS = ["algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=4", "data.val_files=null",
        "data.train_batch_size=2", "trainer.total_training_steps=2", "data.max_prompt_length=400",
        "data.max_response_length=400", "reward.max_failure_ratio=0.9", "custom_reward_function.path=null",
        "actor_rollout_ref.rollout.multi_turn.enable=true",
        "actor_rollout_ref.rollout.multi_turn.tool_config_path=tools.yaml"]  # fmt: skip


@pytest.fixture
def start(job, roomy):
    started = []

    def begin(body, *keys):
        write_parquet([question(f"Who wrote Faust? {i}") for i in range(4)], "train.parquet")
        Path("stuck.py").write_text(TOOL.format(body=BODIES[body]))
        Path("tools.yaml").write_text("tools:\n  - class_name: stuck.py:Stuck\n")
        Path("command.py").write_text(COMMAND)
        command = [sys.executable, "command.py", *job, f"actor_rollout_ref.model.path={roomy}", *KEYS, *keys]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        started.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.hostile
@pytest.mark.long
@pytest.mark.parametrize("body", ["thread", "cancellation"])
@pytest.mark.parametrize("enable", [False, True], ids=["in step", "ahead"])
def test_run_whose_tool_does_not_end_ends_after_its_last_step(start, body, enable):
    limit = "actor_rollout_ref.rollout.multi_turn.tool_timeout=5"
    ahead = ["trainer.async_rollout.enable=true", "trainer.async_rollout.staleness=1"] if enable else []
    process = start(body, limit, "trainer.save_freq=2", *ahead)
    _, log = process.communicate(timeout=500)
    assert process.returncode == 0, log
    assert read_status("run").state == "done" and Path("run/global_step_2").is_dir()
    assert "given up: " in log and ("still running: thread" in log) == (body == "thread"), log


@pytest.mark.hostile
@pytest.mark.long
@pytest.mark.parametrize("body", ["thread", "cancellation", "blocks"])
@pytest.mark.parametrize("numbers", [(signal.SIGINT, signal.SIGTERM), (signal.SIGTERM, signal.SIGINT)])
def test_two_signals_end_a_run_whatever_its_tool_does(start, body, numbers):
    """Two different ones: of the same, the kernel may deliver one."""
    process = start(body)
    until(Path("called").exists, 300.0)
    for number in numbers:
        process.send_signal(number)
    _, log = process.communicate(timeout=300)
    assert process.returncode == 130, log
