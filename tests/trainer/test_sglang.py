"""Training through SGLang: the same steps as with the engine that runs the trained module itself."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(find_spec("sglang") is None, reason="needs SGLang"),
]
STEPS = ["algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=3", "trainer.total_training_steps=3"]
SAME = ("critic/score/mean", "response_length/mean", "actor/pg_loss", "actor/grad_norm")


def test_steps_are_those_of_the_hf_engine(train):
    """Tokens are the same for the same seeds, so rewards, losses and new weights are; were old ones used, the later
    steps would differ."""
    lines = {}
    for name in ("hf", "sglang"):
        train(*STEPS, f"actor_rollout_ref.rollout.name={name}", f"trainer.default_local_dir={name}")
        lines[name] = [json.loads(line) for line in Path(name, "metrics.jsonl").read_text().splitlines()]
    assert len(lines["sglang"]) == len(lines["hf"]) >= 3
    for found, wanted in zip(lines["sglang"], lines["hf"], strict=True):
        for key in SAME:
            if key in wanted:
                assert found[key] == pytest.approx(wanted[key], rel=1e-3, abs=1e-5), key
    trained = [line for line in lines["hf"] if "actor/pg_loss" in line]
    assert len(trained) == 3 and any(line["actor/grad_norm"] > 0 for line in trained), "else this tests nothing"
