"""Training the embedded model through vLLM and SGLang: in one process, ahead of training, over several processes, and
although an engine dies on the way. Each publish is proven by log-probs of a fixed sequence, here and in every run."""

import os
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest

from burnish.cli.main import main
from burnish.cli.quickstart import NANO
from burnish.data.files import read_rows, write_parquet
from burnish.data.tasks import arithmetic
from burnish.rollout.hosted.engine import HostedEngine
from tests.trainer.conftest import events, jsonl

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
VLLM_ONLY, SGLANG_ONLY = pytest.mark.vllm, pytest.mark.sglang
VLLM = [
    "actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.rollout.enforce_eager=true",
    f"actor_rollout_ref.model.path={NANO}", "data.max_response_length=48", "data.val_files=null",
    "algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=4", "trainer.total_training_steps=3",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4", "actor_rollout_ref.actor.optim.lr=3e-3",
    "custom_reward_function.path=null",
]  # fmt: skip
STEPS = ["algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=3", "trainer.total_training_steps=3"]
SGLANG = [*STEPS, "actor_rollout_ref.rollout.name=sglang", "data.val_files=null"]
SPAN = "actor_rollout_ref.rollout.tensor_model_parallel_size"
SAME = ("critic/score/mean", "response_length/mean", "actor/pg_loss", "actor/grad_norm")


@pytest.fixture(autouse=True)
def _is_installed(request):
    for name in ("vllm", "sglang"):
        if request.node.get_closest_marker(name) and find_spec(name) is None:
            pytest.skip(f"needs {name}")


def lines(run="run"):
    return jsonl(run, "metrics.jsonl")


def check_gap(steps):
    """It samples with the weights that are trained, from the first step to the last, in which they have moved."""
    assert len(steps) == 3
    for step in steps:
        assert abs(step["rollout_corr/k3_kl"]) < 1e-4 and step["training/rollout_probs_diff_max"] < 1e-2
    assert max(step["actor/grad_norm"] for step in steps) > 0


@VLLM_ONLY
@pytest.mark.parametrize("keys", [[], [f"{SPAN}=2"]], ids=["", "two"])
def test_in_one_process(train, keys):
    train(*VLLM, *keys)
    check_gap(lines())
    logs = list(Path("run/logs").glob("vllm-*.log"))
    assert logs and "EngineCore" in logs[0].read_text()


@VLLM_ONLY
def test_in_another_type_than_is_trained(train):
    """Log-probs differ by rounding, which is not taken for other weights."""
    train(*VLLM, "actor_rollout_ref.rollout.dtype=bfloat16", "actor_rollout_ref.model.dtype=float32")
    assert all(1e-4 < step["training/rollout_probs_diff_mean"] < 5e-2 for step in lines())


@SGLANG_ONLY
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


@pytest.mark.parametrize("keys", [pytest.param(VLLM, marks=VLLM_ONLY), pytest.param(SGLANG, marks=SGLANG_ONLY)])
def test_ahead_of_training(train, keys):
    train(*keys, "trainer.async_rollout.enable=true", "trainer.async_rollout.staleness=1")
    steps = lines()
    assert [step["training/off_policy/age_max"] for step in steps] == [0, 1, 1]
    assert steps[1]["training/off_policy/kl_1"] > 1e-4, "its tokens are of the weights before"
    assert all(abs(step.get("training/off_policy/kl_0", 0.0)) < 1e-4 for step in steps)


@VLLM_ONLY
def test_a_process_of_vllm_that_is_killed(build_trainer, monkeypatch):
    trainer = build_trainer(*VLLM)
    engine = trainer.policy.worker.engine
    first, ask, asked = engine.engine, HostedEngine.generate, []

    async def deadly(self, request, on_token=None):
        asked.append(request.request_id)
        if len(asked) == 24:  # of 16 in each step
            os.kill(self.process.pids[0], signal.SIGKILL)
        return await ask(self, request, on_token)

    monkeypatch.setattr(HostedEngine, "generate", deadly)  # of one engine it would be that of the next one too
    trainer.fit()
    assert engine.engine is not first
    check_gap(lines())
    found = lines()[1]
    assert found["failures/replica_restarts"] == 1 and found["failures/requests_again"] >= 1
    assert len(events("replica_restart")) == 1


@pytest.mark.ray
@pytest.mark.parametrize(
    ("name", "keys", "engines"),
    [
        pytest.param("vllm", [*VLLM, f"{SPAN}=1"], 2, marks=VLLM_ONLY, id="vllm, an engine in each"),
        pytest.param("vllm", [*VLLM, f"{SPAN}=2"], 1, marks=VLLM_ONLY, id="vllm, one engine over both"),
        pytest.param("sglang", SGLANG, 2, marks=SGLANG_ONLY, id="sglang"),
    ],
)
def test_over_two_processes(train, name, keys, engines):
    train(*keys, "trainer.executor=ray", "trainer.n_gpus_per_node=2")
    check_gap(lines())
    assert len(list(Path("run/logs").glob(f"{name}-*.log"))) == engines


@SGLANG_ONLY
def test_generate_writes_what_the_hf_engine_does(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_parquet(arithmetic.rows("test", 4, seed=0), "test.parquet")
    keys = ["data.path=test.parquet", f"model.path={NANO}", "rollout.prompt_length=32", "rollout.response_length=48"]
    for name in ("hf", "sglang"):
        words = [*keys, f"rollout.name={name}", f"data.output_path={name}.parquet", "trainer.device=cpu"]
        assert main(["generate", *words]) == 0
    found, wanted = ([row["responses"] for row in read_rows(f"{name}.parquet")] for name in ("sglang", "hf"))
    assert found == wanted and len(wanted) == 4
