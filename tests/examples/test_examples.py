"""Every example runs: scripts by bash, with a `burnish` that notes its arguments, which are then run in this process.

(A process of its own for each would spend most of its time importing torch.)
"""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from burnish.cli.main import main
from burnish.data.tasks import arithmetic
from burnish.tracking.jsonl import read_metrics
from tests.examples.conftest import noting, on_path

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = ["data.train_batch_size=2", "data.train_max_samples=8", "trainer.total_training_steps=2"]
SMALL += ["trainer.logger=jsonl", "trainer.device=cpu"]
SMALL_RL = [*SMALL, "data.max_response_length=24", "data.val_max_samples=2", "actor_rollout_ref.rollout.n=2"]
SMALL_RL += ["actor_rollout_ref.actor.ppo_mini_batch_size=2", "trainer.test_freq=-1"]
KEEP_DRAWING = "algorithm.filter_groups.max_num_gen_batches=0"
LONGER = [*SMALL_RL, "actor_rollout_ref.rollout.n=8", "data.max_response_length=64"]


@pytest.fixture
def run_script(tmp_path, monkeypatch):
    """Run a script of examples/ with further keys; returns the metrics of the run it makes, by step."""
    monkeypatch.chdir(tmp_path)
    notes = tmp_path / "notes.jsonl"
    python = f'#!/bin/sh\nexec {sys.executable} "$@"\n'
    environment = on_path(tmp_path / "bin", {"burnish": noting("burnish", notes), "python3": python})

    def run(script: str, *overrides: str) -> list[dict[str, float]]:
        command = [str(EXAMPLES / script), *overrides]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        ((path, _, *argv),) = map(json.loads, notes.read_text().splitlines())
        for folder in reversed(path.split(os.pathsep)):
            monkeypatch.syspath_prepend(folder)
        assert main(argv) == 0
        (metrics,) = (tmp_path / "outputs").rglob("metrics.jsonl")
        return read_metrics(metrics)

    return run


def samples(*steps: int) -> list[dict]:
    paths = [path for step in steps for path in Path("outputs").rglob(f"rollouts/{step}.jsonl")]
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("script", "keys", "metric"),
    [
        ("grpo.sh", SMALL_RL, "actor/pg_loss"),
        ("lora.sh", SMALL_RL, "actor/kl_loss"),
        ("ppo.sh", SMALL_RL, "actor/reward_kl_penalty_coeff"),
        ("dapo.sh", [*LONGER, "data.gen_batch_size=8", KEEP_DRAWING], "filter_groups/dropped_groups"),
        ("named_rewards/run.sh", [*LONGER, "data.train_batch_size=8"], "actor/pg_loss"),
        ("custom_loss/run.sh", SMALL_RL, "actor/log_prob"),
        ("harder_sums/run.sh", LONGER, "augment/added"),
        ("sft.sh", SMALL, "train/loss"),
    ],
)
def test_scripts_train(run_script, script, keys, metric):
    lines = run_script(script, *keys)
    assert [line["step"] for line in lines] == ([1, 2] if script == "sft.sh" else [0, 1, 2]) and metric in lines[-1]
    assert metric not in ("train/loss", "augment/added") or lines[-1][metric] > 0


def test_the_curriculum_draws_sums_first(run_script):
    run_script("curriculum.sh", *SMALL_RL, "trainer.total_training_steps=4", "data.max_response_length=4")
    drawn = ["+" if "+" in sample["prompt"] else "-" for sample in samples(1, 2, 3, 4)]
    assert drawn == sorted(drawn) and set(drawn) == {"+", "-"}


def test_custom_reward(run_script):
    run_script("custom_reward/run.sh", *SMALL_RL)
    for sample in samples(1):
        info = sample["reward_info"]
        worked = info["lines"] > 0
        assert sample["score"] == pytest.approx(info["acc"] + 0.2 * worked - 0.01 * info["lines"], abs=1e-6)


def test_a_reward_that_looks_at_the_whole_batch(run_script):
    run_script("custom_reward/batch.sh", *LONGER, "data.val_files=null")
    right = 0
    for step in (samples(1), samples(2)):
        infos = [sample["reward_info"] for sample in step]
        lines = [info["lines"] for info in infos if info["acc"]]
        right += len(lines)
        average = sum(lines) / len(lines) if lines else 0.0
        assert {info["average"] for info in infos} == {average}, "all samples of the step were in one call"
        for sample, info in zip(step, infos, strict=True):
            assert sample["score"] == pytest.approx(info["acc"] * (1.1 if info["lines"] < average else 1.0))
    assert right, "some answers are right, so that there is something to compare"


def test_a_class_that_remembers(run_script):
    run_script("custom_reward/judge.sh", *LONGER, "data.val_files=null", "reward.num_workers=1")
    seen = [(sample["uid"], sample["response"]) for sample in samples(1, 2)]
    known = sum(sample["reward_info"]["known"] for sample in samples(1, 2))
    assert known == len(seen) - len(set(seen))
    for sample in samples(1, 2):
        worked = "\n" in sample["response"].removesuffix("<|end|>")
        assert sample["score"] == pytest.approx(sample["reward_info"]["acc"] + 0.2 * worked)


def test_custom_manager(run_script):
    run_script("custom_manager/run.sh", *LONGER)
    groups: dict[int, list[dict]] = {}
    for sample in samples(1, 2):
        groups.setdefault(sample["uid"], []).append(sample)
    for group in groups.values():
        right = sum(sample["reward_info"]["acc"] for sample in group)
        expected = [sample["reward_info"]["acc"] / max(right, 1) for sample in group]
        assert [sample["score"] for sample in group] == pytest.approx(expected)
    assert any(sample["score"] for group in groups.values() for sample in group)


def test_custom_estimator(run_script):
    run_script("custom_estimator/run.sh", *LONGER)
    given = [advantage for sample in samples(1, 2) for advantage in sample["advantages"]]
    assert min(given) == 0 < max(given)


def test_custom_agent(run_script):
    lines = run_script("custom_agent/run.sh", *SMALL_RL, "data.max_response_length=96")
    assert lines[-1]["training/num_turns/max"] == 4
    for sample in samples(1):
        question = sample["prompt"]  # one token per character, but `<|start|>` is one token too
        assert sample["response"].count(question) == 1
        assert sample["response_mask"].count(0) == len(question) - len("<|start|>") + 1
        assert sample["score"] in (0, 1)


def test_a_program_that_knows_nothing_of_training_is_trained(run_script):
    lines = run_script("openai_agent/run.sh", *SMALL_RL, "data.max_response_length=96")
    assert lines[-1]["openai/calls/mean"] > 1 and lines[-1]["openai/calls_not_trained/max"] == 0
    for sample in samples(1, 2):
        question, turns = sample["prompt"], sample["turns"] // 2
        assert sample["response"].count(question) == turns - 1, "asked again after each wrong answer"
        observed = (turns - 1) * (len(question) - len("<|start|>") + 1)  # one token per character, but for this one
        assert sample["response_mask"].count(0) == observed
        last = sample["response"].rpartition("\n")[2] if turns == 2 else sample["response"]
        right = last.removesuffix("<|end|>").rpartition("answer:")[2].strip() == sample["ground_truth"]
        assert sample["score"] == (1 / turns if right else 0)


def test_custom_data(run_script):
    run_script("custom_data/run.sh", *SMALL_RL, "data.train_max_samples=-1")
    sums = [sum(numbers(sample)) for sample in samples(1, 2)]
    assert sums == sorted(sums)


def numbers(sample: dict) -> list[int]:
    question = sample["prompt"].removeprefix("<|start|>").removesuffix("=?\n")
    return [int(number) for number in question.replace("-", "+").split("+")]


def carries(a: int, b: int) -> int:
    carry = count = 0
    for place in (1, 10, 100):
        carry = int(a // place % 10 + b // place % 10 + carry > 9)
        count += carry
    return count


def test_harder_sums_are_training_questions_until_all_columns_carry():
    code = runpy.run_path(str(EXAMPLES / "harder_sums" / "harder.py"))
    for a, op, b in arithmetic.questions("train", 400, seed=3):
        info = {"a": a, "op": op, "b": b, "num_turns": 2}
        wrong = code["compute_score"]("answer: 1", str(arithmetic.solve(a, op, b)), info)
        right = code["compute_score"](arithmetic.scratchpad(a, op, b), str(arithmetic.solve(a, op, b)), info)
        assert (wrong["score"], wrong["new_prompts"], right["score"]) == (0, [], 1)
        if op == "-" or carries(a, b) == 3:
            assert right["new_prompts"] == []
            continue
        (row,) = right["new_prompts"]
        x, y = row["extra_info"]["a"], row["extra_info"]["b"]
        assert carries(x, y) > carries(a, b) and arithmetic.split_of(x, "+", y) == "train"
        assert row["prompt"] == f"{x}+{y}=?" and row["reward_model"]["ground_truth"] == str(x + y)


def test_custom_trainer(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / "make_arithmetic.py"))["main"](tmp_path)
    train = runpy.run_path(str(EXAMPLES / "custom_trainer" / "train.py"))["main"]
    files = [f"data.train_files={tmp_path}/train.parquet", "data.max_prompt_length=32"]
    model = [f"actor_rollout_ref.model.path={EXAMPLES.parent}/burnish/models/nano"]
    metrics = train([*files, *model, *SMALL_RL, "actor_rollout_ref.actor.optim.lr=1e-3"])
    assert metrics["actor/moved"] > 0


def test_every_example_is_in_the_table_and_short():
    table = (EXAMPLES / "README.md").read_text()
    for path in EXAMPLES.rglob("*"):
        if path.suffix in (".sh", ".py") and "__pycache__" not in path.parts:
            assert f"]({path.relative_to(EXAMPLES)})" in table, f"{path} is not in examples/README.md"
            if not {"nano", "two_nodes.sh"} & set(path.parts):  # how a model and how a network are made
                assert len(path.read_text().splitlines()) <= 60
