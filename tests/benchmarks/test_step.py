"""benchmarks/step.py: its models have the sizes their names promise, and a run tells where all of its time went."""

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from burnish.models.folder import stored_tensors
from tests.benchmarks.conftest import run


@pytest.mark.parametrize("shape, millions", [("qwen2.5-0.5b", 494.0), ("qwen2.5-1.5b", 1543.7), ("qwen2.5-7b", 7615.6)])
def test_shapes_have_the_parameters_of_the_models_they_are_named_after(script, shape, millions, tmp_path, monkeypatch):
    written = {}
    monkeypatch.setattr(script, "write_tiny_model", lambda folder, **settings: written.update(settings))
    script.write_model(tmp_path, shape, 4160, "cpu")
    renamed = {"layers": "num_hidden_layers", "heads": "num_attention_heads", "context": "max_position_embeddings"}
    config = AutoConfig.for_model("qwen2", **{renamed.get(name, name): value for name, value in written.items()})
    with torch.device("meta"):
        module = AutoModelForCausalLM.from_config(config)
    assert sum(p.numel() for p in module.parameters()) / 1e6 == pytest.approx(millions, abs=0.1)
    assert config.max_position_embeddings == 4160


def test_models_are_written_in_bf16(script, tmp_path):
    script.write_model(tmp_path, "nano", 80, "cpu")
    tensors = stored_tensors(list(tmp_path.glob("*.safetensors")))
    assert tensors and {tensor.dtype for tensor in tensors.values()} == {"BF16"}


def test_a_table_of_two_runs_has_their_ratios(script, capsys):
    ours = {
        "shape": "nano", "prompts": 2, "n": 2, "tokens": 8, "device": "CPU", "phases": {"gen": 1.0, "elsewhere": 0.0},
        "step": 2.0, "peak memory": 4.0,
    }  # fmt: skip
    simple = {**ours, "phases": {"gen": 1.5, "elsewhere": 0.1}, "step": 5.0, "matrix peak": 790.0}
    script.print_table(ours, simple)
    *table, line = capsys.readouterr().out.splitlines()
    cells = {row.split(",")[0].strip(): row.split()[-1] for row in table[2:]}
    assert cells == {"gen": "1.50", "elsewhere": "0.100", "step": "2.50", "peak memory": "1.00"}
    assert json.loads(line) == {"ours": ours, "simple": simple}


@pytest.mark.slow
def test_phases_and_what_they_leave_make_up_the_step(script):
    done = run("step", *"--kl --prompts 2 --n 2 --tokens 8 --steps 2 --lora 2 --device cpu".split())
    results = json.loads(done.stdout.splitlines()[-1])
    phases = results["phases"]
    assert {"gen", "engine", "reward", "ref", "adv", "describe", "update_actor", "elsewhere"} <= phases.keys()
    outer = [seconds for name, seconds in phases.items() if name not in script.INSIDE]
    assert sum(outer) == pytest.approx(results["step"]) and min(outer) >= 0
    assert results["command to first step"] > results["first step"] > 0
    assert results["update"] > 0 and results["peak memory"] > 0
    assert "step 2 of 2" in done.stderr and "ready to fit" in done.stderr


@pytest.mark.long
def test_the_quickstart_next_to_the_simple_way():
    done = run("step", "trainer.seed=3", "--quickstart", "--baseline", "--steps", "2")
    both = json.loads(done.stdout.splitlines()[-1])
    assert both["ours"]["overrides"] == ["trainer.seed=3"]
    assert both["simple"]["overrides"][1:] == [
        "actor_rollout_ref.model.use_remove_padding=False", "actor_rollout_ref.model.use_fused_kernels=False"
    ]  # fmt: skip
    assert all(run["phases"]["update_actor"] > 0 for run in both.values())
    [row] = [row for row in done.stdout.splitlines() if row.strip().startswith("update_actor")]
    ours, simple = (both[name]["phases"]["update_actor"] for name in ("ours", "simple"))
    assert float(row.split()[-1]) == pytest.approx(simple / ours, abs=0.01)
