"""The example that makes harder sums out of solved ones: what it proposes, and that a run trains on it."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

from burnish.cli.main import main
from burnish.data.tasks import arithmetic

EXAMPLE = Path(__file__).parents[2] / "examples" / "harder_sums"
SMALL = ["data.train_batch_size=8", "data.val_files=null", "trainer.total_training_steps=3", "trainer.logger=jsonl"]
SMALL += ["actor_rollout_ref.rollout.n=16", "data.max_response_length=48", "trainer.device=cpu"]


def carries(a: int, b: int) -> int:
    carry = count = 0
    for place in (1, 10, 100):
        carry = int(a // place % 10 + b // place % 10 + carry > 9)
        count += carry
    return count


def test_each_proposal_is_a_harder_training_question_until_all_columns_carry():
    code = runpy.run_path(str(EXAMPLE / "harder.py"))
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


def test_the_script_trains_on_what_it_proposed(tmp_path, monkeypatch):
    """`burnish` notes its arguments, which are then run in this process."""
    monkeypatch.chdir(tmp_path)
    programs = {"burnish": 'printf "%s\\n" "$@" > notes', "python3": f'exec {sys.executable} "$@"'}
    for name, line in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    environment["PYTHONPATH"] = str(EXAMPLE.parents[1])
    subprocess.run([str(EXAMPLE / "run.sh"), *SMALL], env=environment, check=True)
    assert main(Path("notes").read_text().splitlines()) == 0
    (run,) = Path("outputs").rglob("rollouts")
    samples = [json.loads(line) for step in (1, 2, 3) for line in (run / f"{step}.jsonl").read_text().splitlines()]
    prompts = {sample["uid"]: sample for sample in samples}
    proposed = {uid: sample["augmented"] for uid, sample in prompts.items() if "augmented" in sample}
    assert proposed and sorted(prompts) == list(range(24))
    for uid, origin in proposed.items():
        assert any(s["score"] == 1 for s in samples if s["uid"] == origin["from_uid"]), "its parent was solved"
        assert carries(*numbers(prompts[uid])) > carries(*numbers(prompts[origin["from_uid"]]))
    assert any(s["advantages"] and any(s["advantages"]) for s in samples if s["uid"] in proposed), (
        "none taught anything"
    )


def numbers(sample: dict) -> list[int]:
    return [int(number) for number in sample["prompt"].removeprefix("<|start|>").removesuffix("=?\n").split("+")]
