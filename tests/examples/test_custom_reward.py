"""The reward functions of examples/custom_reward that take a batch, or keep state: each trains by its script."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from burnish.cli.main import main

EXAMPLES = Path(__file__).parents[2] / "examples" / "custom_reward"
SMALL = ["data.train_batch_size=2", "data.train_max_samples=8", "data.val_files=null", "trainer.total_training_steps=2"]
SMALL += ["actor_rollout_ref.rollout.n=8", "actor_rollout_ref.actor.ppo_mini_batch_size=2", "trainer.device=cpu"]
SMALL += ["data.max_response_length=64", "trainer.logger=jsonl"]


@pytest.fixture
def samples_of(tmp_path, monkeypatch):
    """Run a script with a `burnish` that notes its arguments, and these in this process; returns samples by step."""
    monkeypatch.chdir(tmp_path)
    programs = {"burnish": 'printf "%s\\n" "$@" > notes', "python3": f'exec {sys.executable} "$@"'}
    for name, line in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    environment["PYTHONPATH"] = str(EXAMPLES.parents[1])

    def run(script: str, *keys: str) -> list[list[dict]]:
        subprocess.run([str(EXAMPLES / script), *SMALL, *keys], env=environment, check=True)
        assert main(Path("notes").read_text().splitlines()) == 0
        (folder,) = Path("outputs").rglob("rollouts")
        return [[json.loads(line) for line in (folder / f"{step}.jsonl").read_text().splitlines()] for step in (1, 2)]

    return run


def test_a_reward_that_looks_at_the_whole_batch(samples_of):
    right = 0
    for step in samples_of("batch.sh"):
        infos = [sample["reward_info"] for sample in step]
        lines = [info["lines"] for info in infos if info["acc"]]
        right += len(lines)
        average = sum(lines) / len(lines) if lines else 0.0
        assert {info["average"] for info in infos} == {average}, "all samples of the step were in one call"
        for sample, info in zip(step, infos, strict=True):
            assert sample["score"] == pytest.approx(info["acc"] * (1.1 if info["lines"] < average else 1.0))
    assert right, "some answers are right, so that there is something to compare"


def test_a_class_that_remembers(samples_of):
    samples = [sample for step in samples_of("judge.sh", "reward.num_workers=1") for sample in step]
    seen = [(sample["uid"], sample["response"]) for sample in samples]
    known = sum(sample["reward_info"]["known"] for sample in samples)
    assert known == len(seen) - len(set(seen))
    for sample in samples:
        worked = "\n" in sample["response"].removesuffix("<|end|>")
        assert sample["score"] == pytest.approx(sample["reward_info"]["acc"] + 0.2 * worked)
