"""`burnish doctor`: this machine, as text and JSON, with its problems; and a run as JSON."""

import json
import subprocess

import pytest

from burnish.cli import machine
from burnish.cli.main import main

GPU = {"name": "H200", "total": 140 * 2**30, "free": 10 * 2**30, "bfloat16": True}
FOUND = {"version": "2.13.0", "cuda": "13.0", "nccl": "2.28.3", "threads": 1, "gpus": [GPU]}


@pytest.fixture
def child(monkeypatch):
    """What the child process that imports torch prints."""

    def answers(stdout="", stderr="", code=0):
        monkeypatch.setattr(subprocess, "run", lambda *a, **k: subprocess.CompletedProcess(a, code, stdout, stderr))

    return answers


def test_this_machine_is_described_with_remedies(child, capsys):
    child(f"a library prints first\n{json.dumps(FOUND)}\n")
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "torch              2.13.0, CUDA 13.0, NCCL 2.28.3\n" in text
    assert "- GPU 0              H200, 10.0 GiB free of 140.0 GiB\n" in text and "CUDA_VISIBLE_DEVICES" in text
    for name in ("Python", "memory", "shared memory", "disk", "threads", "versions", "optional packages", "sandbox"):
        assert f"  {name} " in text or f"- {name} " in text, name
    assert text.endswith("0 problems (!)\n")
    assert main(["doctor", "--json"]) == 0
    facts = {fact["name"]: fact for fact in json.loads(capsys.readouterr().out)}
    assert facts["GPU 0"]["state"] == "note" and facts["torch"]["state"] == "ok"


def test_torch_that_cannot_be_imported_is_a_problem(child, capsys):
    child(stderr="Traceback\nOSError: libcudart.so.13: cannot open", code=1)
    assert main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert "! torch " in text and "cannot be used: OSError: libcudart.so.13" in text and "1 problem (!)" in text


def test_other_versions_than_the_tested_ones_are_named(child, monkeypatch, capsys):
    child(json.dumps(FOUND))
    monkeypatch.setattr(machine, "_tested", lambda: {"rich": "0.0.1", "numpy": machine._version("numpy")})
    main(["doctor"])
    text = capsys.readouterr().out
    assert "- versions " in text and f"rich {machine._version('rich')} (tested: 0.0.1)\n" in text


def test_a_run_as_json(tmp_path, capsys):
    rows = [{"step": step, "critic/score/mean": 0.0, "groups/useful_ratio": 0.0} for step in range(1, 30)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    main(["doctor", str(tmp_path), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] and all({"rule", "worst", "first_step"} <= set(one) for one in found["findings"])
