"""Training through SGLang: the same steps as with the engine that runs the trained module itself, ahead of training and
over two processes; and `burnish generate`."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from burnish.cli.main import main
from burnish.cli.quickstart import NANO
from burnish.data.files import read_rows, write_parquet
from burnish.data.tasks import arithmetic
from tests.trainer.conftest import jsonl

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(find_spec("sglang") is None, reason="needs SGLang"),
]
STEPS = ["algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=3", "trainer.total_training_steps=3"]
SGLANG = [*STEPS, "actor_rollout_ref.rollout.name=sglang", "data.val_files=null"]
SAME = ("critic/score/mean", "response_length/mean", "actor/pg_loss", "actor/grad_norm")


def lines(run="run"):
    return jsonl(run, "metrics.jsonl")


def test_steps_are_those_of_the_hf_engine(train):
    """Tokens are the same for the same seeds, so rewards, losses and new weights are; were old ones used, the later
    steps would differ."""
    steps = {}
    for name in ("hf", "sglang"):
        train(*STEPS, f"actor_rollout_ref.rollout.name={name}", f"trainer.default_local_dir={name}")
        steps[name] = lines(name)
    assert len(steps["sglang"]) == len(steps["hf"]) >= 3
    for found, wanted in zip(steps["sglang"], steps["hf"], strict=True):
        for key in SAME:
            if key in wanted:
                assert found[key] == pytest.approx(wanted[key], rel=1e-3, abs=1e-5), key
    trained = [line for line in steps["hf"] if "actor/pg_loss" in line]
    assert len(trained) == 3 and any(line["actor/grad_norm"] > 0 for line in trained), "else this tests nothing"


def test_ahead_of_training(train):
    train(*SGLANG, "trainer.async_rollout.enable=true", "trainer.async_rollout.staleness=1")
    steps = lines()
    assert [step["training/off_policy/age_max"] for step in steps] == [0, 1, 1]
    assert steps[1]["training/off_policy/kl_1"] > 1e-4, "its tokens are of the weights before"
    assert all(abs(step.get("training/off_policy/kl_0", 0.0)) < 1e-4 for step in steps)


@pytest.mark.ray
def test_over_two_processes(train):
    train(*SGLANG, "trainer.executor=ray", "trainer.n_gpus_per_node=2")
    steps = lines()
    assert len(steps) == 3 and max(step["actor/grad_norm"] for step in steps) > 0
    for step in steps:
        assert abs(step["rollout_corr/k3_kl"]) < 1e-4 and step["training/rollout_probs_diff_max"] < 1e-2
    assert len(list(Path("run/logs").glob("sglang-*.log"))) == 2


def test_generate_writes_what_the_hf_engine_does(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_parquet(arithmetic.rows("test", 4, seed=0), "test.parquet")
    keys = ["data.path=test.parquet", f"model.path={NANO}", "rollout.prompt_length=32", "rollout.response_length=48"]
    for name in ("hf", "sglang"):
        words = [*keys, f"rollout.name={name}", f"data.output_path={name}.parquet", "trainer.device=cpu"]
        assert main(["generate", *words]) == 0
    found, wanted = ([row["responses"] for row in read_rows(f"{name}.parquet")] for name in ("sglang", "hf"))
    assert found == wanted and len(wanted) == 4
