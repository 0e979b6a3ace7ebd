"""Training the embedded model through vLLM: in one process, ahead of training, over several processes, and although an
engine dies on the way. Each publish is proven by log-probs of a fixed sequence, here and in every run."""

import os
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest

from burnish.cli.quickstart import NANO
from burnish.rollout.hosted.engine import HostedEngine
from tests.trainer.conftest import events, jsonl

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(find_spec("vllm") is None, reason="needs vLLM"),
]
VLLM = [
    "actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.rollout.enforce_eager=true",
    f"actor_rollout_ref.model.path={NANO}", "data.max_response_length=48", "data.val_files=null",
    "algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=4", "trainer.total_training_steps=3",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4", "actor_rollout_ref.actor.optim.lr=3e-3",
    "custom_reward_function.path=null",
]  # fmt: skip
RAY = ["trainer.executor=ray", "trainer.n_gpus_per_node=2"]


def lines(run="run"):
    return jsonl(run, "metrics.jsonl")


def check_gap(steps):
    """vLLM samples with the weights that are trained, from the first step to the last, in which they have moved."""
    assert len(steps) == 3
    for step in steps:
        assert abs(step["rollout_corr/k3_kl"]) < 1e-4 and step["training/rollout_probs_diff_max"] < 1e-2
    assert max(step["actor/grad_norm"] for step in steps) > 0


@pytest.mark.parametrize("keys", [[], ["actor_rollout_ref.rollout.tensor_model_parallel_size=2"]], ids=["", "two"])
def test_in_one_process(train, keys):
    train(*VLLM, *keys)
    check_gap(lines())
    logs = list(Path("run/logs").glob("vllm-*.log"))
    assert logs and "EngineCore" in logs[0].read_text()


def test_in_another_type_than_is_trained(train):
    """Log-probs differ by rounding, which is not taken for other weights."""
    train(*VLLM, "actor_rollout_ref.rollout.dtype=bfloat16", "actor_rollout_ref.model.dtype=float32")
    assert all(1e-4 < step["training/rollout_probs_diff_mean"] < 5e-2 for step in lines())


def test_ahead_of_training(train):
    train(*VLLM, "trainer.async_rollout.enable=true", "trainer.async_rollout.staleness=1")
    steps = lines()
    assert [step["training/off_policy/age_max"] for step in steps] == [0, 1, 1]
    assert steps[1]["training/off_policy/kl_1"] > 1e-4, "its tokens are of the weights before"
    assert all(abs(step.get("training/off_policy/kl_0", 0.0)) < 1e-4 for step in steps)


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
@pytest.mark.parametrize("span", [1, 2], ids=["an engine in each", "one engine over both"])
def test_over_two_processes(train, span):
    train(*VLLM, *RAY, f"actor_rollout_ref.rollout.tensor_model_parallel_size={span}")
    check_gap(lines())
    assert len(list(Path("run/logs").glob("vllm-*.log"))) == 2 // span
