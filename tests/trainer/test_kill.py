"""kill -9 at any moment of a run, then the same command again: metrics and weights are those of a run never killed.

`launch` keeps one process that has imported what runs import and forks each from it, because importing takes longer
than these runs do; a run is otherwise what `python -m burnish.trainer.main_ppo` starts. A run never killed is made once
for the tests that compare with it; when its checkpoints are written makes no difference (test_resume).
"""

import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.trainer.conftest import GRPO, PPO, once, same_weights, state_of, wait_for

BEHIND = ["actor_rollout_ref.actor.checkpoint.async_save=True"]
LORA = ["actor_rollout_ref.model.lora_rank=2", "actor_rollout_ref.actor.use_kl_loss=True"]
# 12 rows in batches of 4: steps 3 and 6 end an epoch, the others are in the middle of one.
RUN = ["data.shuffle=True", "data.val_files=null", "trainer.total_epochs=2", "trainer.save_freq=1"]
LONG = pytest.mark.long

LAUNCHER = """
import json, os, sys
import hydra, peft
from transformers import Qwen2ForCausalLM, Qwen2ForTokenClassification, Qwen2Tokenizer
import burnish.trainer.setup
from burnish.cli.main import main

for line in sys.stdin:
    folder, words = json.loads(line)
    child = os.fork()
    if child == 0:
        os.setsid()
        os.chdir(folder)
        log = os.open("log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        code = 1
        try:
            code = main(["ppo", *words])
        finally:
            os._exit(code)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Run:
    def __init__(self, launcher, folder: Path, words: list[str]):
        self.launcher, self.folder = launcher, folder
        launcher.stdin.write(json.dumps([str(folder), words]) + "\n")
        launcher.stdin.flush()
        self.process = int(launcher.stdout.readline())

    def kill(self) -> bool:
        """SIGKILL; whether it came before the run was over."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process, signal.SIGKILL)
        return self.finish(-signal.SIGKILL, 0) == -signal.SIGKILL

    def is_over(self) -> bool:
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return True
        return False

    def finish(self, *codes: int) -> int:
        """Wait for the end; a code that is neither 0 nor one of these fails the test."""
        code = int(self.launcher.stdout.readline())
        assert code in (codes or (0,)), (self.folder / "log.txt").read_text()
        return code


def lines(run: str) -> list[str]:
    file = Path(run) / "metrics.jsonl"
    return file.read_text().splitlines() if file.exists() else []


@pytest.fixture(scope="module")
def launcher():
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", LAUNCHER], stdin=pipe, stdout=pipe, text=True) as process:
        yield process
        process.stdin.close()


@pytest.fixture
def launch(launcher, job, reward, tmp_path):
    def start(*overrides: str) -> Run:
        return Run(launcher, tmp_path, [*job, *RUN, *overrides])

    return start


@pytest.fixture
def as_whole(launch, made, metrics_of):
    """`whole` has the run with these keys, never killed; gives a function that compares the one in `killed` with it."""

    def check(files: tuple[str, ...]) -> None:
        assert metrics_of("whole") == metrics_of("killed")
        assert same_weights(6, "whole", "killed", *files)
        one, other = state_of(6, "whole"), state_of(6, "killed")
        assert one | {"config": {}} == other | {"config": {}}

    def make(keys: list[str]) -> Callable[[tuple[str, ...]], None]:
        once(made, "whole", lambda *keys: launch(*keys, "trainer.default_local_dir=whole").finish(), *keys)
        return check

    return make


ADAPTER = ("actor/adapter_model.safetensors", "actor/masters.safetensors", "actor/optimizer.safetensors")
CRITIC = ("actor/masters.safetensors", "critic/masters.safetensors", "critic/optimizer.safetensors")


@pytest.mark.parametrize(
    ("keys", "when", "files", "kills", "seed"),
    [
        pytest.param(GRPO, [], CRITIC[:1], 1, 1, id="grpo"),
        pytest.param(PPO, [], CRITIC, 3, 2, id="ppo", marks=LONG),
        pytest.param(GRPO, BEHIND, CRITIC[:1], 3, 3, id="grpo-behind", marks=LONG),
        pytest.param(PPO, BEHIND, CRITIC, 3, 4, id="ppo-behind", marks=LONG),
        pytest.param([*GRPO, *LORA], BEHIND, ADAPTER, 3, 5, id="grpo-lora-behind", marks=LONG),
    ],
)
def test_kills_at_random_moments_change_nothing(launch, as_whole, keys, when, files, kills, seed):
    check = as_whole(keys)
    draw, step = random.Random(seed), statistics.median(json.loads(line)["timing_s/step"] for line in lines("whole"))
    killed, command = 0, [*keys, *when, "trainer.default_local_dir=killed"]
    for _ in range(5 * kills):
        run = launch(*command)
        seen = draw.randint(0, 4)  # steps that it, or a run before it, has logged; then any moment up to a step later
        while len(lines("killed")) < seen and not run.is_over():
            time.sleep(0.005)
        time.sleep(draw.uniform(0, step))
        if run.kill():
            killed += 1
        else:  # over before that moment, as it may be on a busy machine: once more, from the start
            killed = 0
            shutil.rmtree("killed")
        if killed == kills:
            break
    assert killed == kills, "runs were over before they could be killed"
    launch(*command).finish()
    check(files)


@LONG
def test_kill_9_of_the_command_itself(job, as_whole):
    check = as_whole(PPO)
    words = [*job, *RUN, *PPO, "trainer.default_local_dir=killed"]
    command = [sys.executable, "-m", "burnish.trainer.main_ppo", *words]
    process = subprocess.Popen(command, start_new_session=True)
    wait_for(Path("killed/global_step_3").exists, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not Path("killed/global_step_6").exists(), "the run was over before it could be killed"
    subprocess.run(command, check=True)
    check(CRITIC)
