"""Profiled steps: what they leave, and that they change nothing else."""

import gzip
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from burnish.config.load import load_ppo
from burnish.errors import ConfigError, WorkerError
from burnish.trainer import nsys, setup
from tests.trainer.conftest import GRPO, PPO, rollouts, same_weights

TWO = ["trainer.total_training_steps=2", "data.val_files=null", "actor_rollout_ref.actor.use_kl_loss=True"]
SECOND, CONTENTS = "global_profiler.steps=[2]", "global_profiler.global_tool_config.torch.contents"
CALLS = ("update_weights", "finish_sequences", "compute_ref_log_prob", "update_actor")


def names(trace: Path) -> list[str]:
    return [event["name"] for event in json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]]


def test_a_profiled_step_leaves_a_trace_and_changes_nothing(train, metrics_of):
    train(*GRPO, *TWO, SECOND, f"{CONTENTS}=[stack,shapes,memory]")
    assert [str(path) for path in Path("run/profiles").rglob("*.*")] == [
        "run/profiles/step_2/actor_rollout_ref-0.json.gz"
    ]
    events = names(Path("run/profiles/step_2/actor_rollout_ref-0.json.gz"))
    assert {"step", "gen", "ref", "adv", "update_actor"} <= set(events)  # phases
    assert {f"ActorRolloutRefWorker.{call}" for call in CALLS} <= set(events)
    assert {"aten::mm", "aten::index_select", "[memory]"} <= set(events)
    assert any(name.endswith("optim_step") for name in events)  # Python's stack
    train(*GRPO, *TWO, "trainer.default_local_dir=plain")
    assert not Path("plain/profiles").exists()
    assert metrics_of("run") == metrics_of("plain") and same_weights(2, "run", "plain")
    assert rollouts(2, "run") == rollouts(2, "plain")


def test_a_file_per_call_of_the_chosen_roles(train):
    keys = [
        "actor_rollout_ref.ref.profiler.enable=True",
        "critic.profiler.enable=True",
        "critic.profiler.discrete=True",
    ]
    ref = "actor_rollout_ref.ref.profiler.tool_config.torch.discrete=True"
    train(*PPO, *TWO, SECOND, "global_profiler.save_path=elsewhere", *keys, ref)
    files = {path.name: names(path) for path in Path("elsewhere/step_2").iterdir()}
    assert sorted(files) == [
        "actor_rollout_ref-0.compute_ref_log_prob.json.gz", "critic-0.compute_values.json.gz",
        "critic-0.update_critic.json.gz",
    ]  # fmt: skip
    assert "CriticWorker.update_critic" in files["critic-0.update_critic.json.gz"]
    assert not any("update_actor" in name for found in files.values() for name in found)


def test_steps_that_the_run_does_not_have_are_reported(build_trainer, caplog):
    build_trainer(*GRPO, *TWO, "global_profiler.steps=[2,5]")
    assert "global_profiler.steps=[2,5]: this run has the steps 1 to 2, so [5] is not profiled" in caplog.text


@pytest.mark.parametrize("tool", ["torch_memory", "nsys"])
def test_tools_of_a_gpu_are_refused_on_a_cpu(build_trainer, tool):
    with pytest.raises(ConfigError, match=f"tool={tool} needs a GPU.*set global_profiler.tool=torch"):
        build_trainer(*GRPO, SECOND, f"global_profiler.tool={tool}")


def test_a_step_that_fails_is_written_and_leaves_no_profiler_behind(build_trainer, monkeypatch):
    trainer = build_trainer(*GRPO, *TWO, "global_profiler.steps=[1]")

    with monkeypatch.context() as patch, pytest.raises(WorkerError, match="not callable"):
        patch.setattr(type(trainer.policy.worker), "update_rows", None)
        trainer.fit()
    assert "update_actor" in names(Path("run/profiles/step_1/actor_rollout_ref-0.json.gz"))
    build_trainer(*GRPO, *TWO, SECOND, "trainer.default_local_dir=next").fit()
    assert Path("next/profiles/step_2/actor_rollout_ref-0.json.gz").exists()


@pytest.mark.gpu
def test_kernels_of_a_profiled_step(train):
    train(*GRPO, *TWO, SECOND, "trainer.device=cuda")
    trace = Path("run/profiles/step_2/actor_rollout_ref-0.json.gz")
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert {"kernel", "cpu_op"} <= {event.get("cat") for event in events}


@pytest.mark.gpu
def test_the_allocations_of_a_profiled_step(train):
    train(*GRPO, *TWO, SECOND, "trainer.device=cuda", "global_profiler.tool=torch_memory")
    assert not Path("run/profiles/step_1").exists()
    recorded = pickle.loads(Path("run/profiles/step_2/actor_rollout_ref-0.pickle").read_bytes())  # noqa: S301 (of this test)
    (trace,) = [one for one in recorded["device_traces"] if one]
    assert {"alloc", "free_completed"} <= {event["action"] for event in trace}
    assert "update_actor" in {frame["name"] for event in trace for frame in event["frames"]}


@pytest.mark.gpu
def test_nsys_is_told_the_step_and_its_parts(train, monkeypatch):
    told = []
    for owner, name in ((torch.cuda.profiler, "start"), (torch.cuda.profiler, "stop"), (torch.cuda.nvtx, "range_push")):
        original = getattr(owner, name)

        def call(*words, original=original, name=name):
            told.append(words[0] if words else name)
            return original(*words)

        monkeypatch.setattr(owner, name, call)
    train(*GRPO, *TWO, SECOND, "trainer.device=cuda", "global_profiler.tool=nsys")
    assert (told[0], told[-1], told.count("start")) == ("start", "stop", 1)
    assert {"step", "gen", "update_actor", *(f"ActorRolloutRefWorker.{call}" for call in CALLS)} <= set(told)


NSYS = """#!/bin/sh
echo "$@" >> nsys.log
while true; do case "$1" in profile|--*) shift;; -?) shift 2;; *) break;; esac; done
exec "$@"
"""


def test_worker_processes_get_their_options_over_those_that_record_the_chosen_steps(job, reward, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: name)
    options = "worker_nsight_options={cuda-memory-usage:'true',capture-range-end:null,force-overwrite:'false'}"
    loaded = load_ppo([*job, *GRPO, "global_profiler.steps=[1]", "global_profiler.tool=nsys", options])
    setup.prepare(loaded)
    run = nsys.workers(loaded.config)
    assert run("global_pool-1") == [
        "nsys", "profile", f"--output={Path.cwd()}/run/nsys/global_pool-1", "--trace=cuda,nvtx,cublas,cudnn",
        "--force-overwrite=false", "--capture-range=cudaProfilerApi", "--capture-range-end=repeat",
        "--cuda-memory-usage=true",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ("trainer.worker_nsight_options={trace:cuda}", "--trace=cuda "),
        ("controller_nsight_options={trace:nvtx,t:osrt,kill:null}", "--trace=nvtx"),
        ("global_profiler.tool=nsys", "there is no program nsys on the PATH; install"),
    ],
)
def test_the_command_starts_itself_again_under_nsys(job, reward, tmp_path, options, found):
    """Once: then the worker refuses to be profiled, for it is on a CPU."""
    (tmp_path / "bin").mkdir()
    if "PATH" not in found:
        (tmp_path / "bin/nsys").write_text(NSYS)
        (tmp_path / "bin/nsys").chmod(0o755)
    command = [sys.executable, "-m", "burnish.trainer.main_ppo", *job, *GRPO, "trainer.profile_steps=[1]", options]
    environment = os.environ | {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ended.returncode == 2
    if "PATH" in found:
        assert found in ended.stderr
        return
    assert "global_profiler.tool=nsys needs a GPU" in ended.stderr
    (line,) = Path("nsys.log").read_text().splitlines()
    assert found in line and "--capture-range=cudaProfilerApi --capture-range-end=repeat" in line
    assert f"--output={tmp_path}/run/nsys/controller" in line and "--kill" not in line
    assert ("-t osrt" in line) == ("osrt" in options) and "--trace-fork-before-exec=true" in line
