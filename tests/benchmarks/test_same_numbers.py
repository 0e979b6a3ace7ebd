"""benchmarks/same_numbers.py: one bit that differs is found, a time that differs is none."""

import json

import torch
from safetensors.torch import save_file


def test_differences_are_found_in_metrics_rollouts_and_weights_but_not_in_times(script, tmp_path):
    def run(name, seconds, loss="0.1", text="1", weight=1.0):
        folder = tmp_path / name
        (folder / "rollouts").mkdir(parents=True)
        (folder / "metrics.jsonl").write_text(f'{{"timing_s/step": {seconds}, "actor/loss": {loss}}}\n')
        (folder / "rollouts" / "1.jsonl").write_text(json.dumps({"response": text}) + "\n")
        (folder / f"global_step_{script.STEPS}" / "actor").mkdir(parents=True)
        save_file({"w": torch.tensor([weight])}, folder / f"global_step_{script.STEPS}" / "actor" / "model.safetensors")
        return script.contents(folder)

    first = run("first", 1.0)
    assert script.differences(first, run("slower", 2.0)) == []
    other = run("other", 1.0, "0.10000000000000002", "2", 1.0000001)
    assert script.differences(first, other) == [
        "actor/loss (line 0)",
        "rollouts/1.jsonl",
        f"global_step_{script.STEPS}/actor/model.safetensors w",
    ]
