"""The vllm engine next to the module that it generates for, and next to the engine that runs the module itself; its
processes killed and stopped, shared out over two workers, and inside a Ray actor."""

import os
import signal
import threading

import pytest
from transformers import AutoModelForCausalLM

from burnish.config.rollout import RolloutConfig
from burnish.errors import ConfigError
from burnish.models.tiny import write_tiny_model
from burnish.rollout.base import Sampling
from burnish.rollout.hf.engine import HFEngine
from burnish.rollout.vllm.engine import VLLMEngine
from tests.rollout.hosted.contract import PROMPT, HostedContract
from tests.rollout.hosted.supervised_contract import SupervisedContract, fails_when

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(1800)]
SHAPE = {"hidden_size": 64, "heads": 2}
OWN = {"block_size": 32, "log_level": "DEBUG", "num_gpu_blocks_override": 64, "seed": 7}
OWN |= {"prefix_caching_hash_algo": "sha256_cbor", "scheduling_policy": "priority"}


class TestContract(HostedContract):
    """What is asked of every hosted engine."""


def test_two_workers_share_a_model(start, module, tokenizer, other, buckets, expected):
    engine = start(tensor_model_parallel_size=2)
    try:
        engine.publish(buckets(module), 1)
        assert len(engine.process.pids) == 2
        engine.publish(buckets(other), 2)
        sampling = Sampling(temperature=0, max_tokens=30, ignore_eos=True)
        (completion,) = engine.run([(PROMPT, sampling)])
        assert completion.token_ids == HFEngine(other, tokenizer).run([(PROMPT, sampling)])[0].token_ids
        assert completion.log_probs == pytest.approx(expected(other, PROMPT, completion), abs=5e-4)
        error = fails_when(engine, lambda: os.kill(engine.process.pids[1], signal.SIGKILL))
        assert "vLLM is lost" in error
    finally:
        engine.close()
    assert engine.process._used and not any(file.exists() for file in engine.process._used)


def test_heads_that_vllm_has_no_kernels_for(tmp_path, tokenizer):
    """Told at the start, not when the first request kills it."""
    folder = write_tiny_model(tmp_path / "narrow", hidden_size=48, heads=2)
    module = AutoModelForCausalLM.from_pretrained(folder)
    with pytest.raises(ConfigError, match="heads have 24 numbers, and on a CPU vLLM has kernels for 32, 64"):
        VLLMEngine(module, tokenizer, RolloutConfig(name="vllm"))


@pytest.mark.ray
def test_inside_a_ray_actor(tiny_folder, module, tokenizer, sharpen):
    ray = pytest.importorskip("ray")
    sampling = Sampling(temperature=0, max_tokens=20, ignore_eos=True)
    wanted = HFEngine(module, tokenizer).run([(PROMPT, sampling)])[0].token_ids

    class Actor:
        def ask(self, folder):
            import torch
            from transformers import AutoModelForCausalLM, AutoTokenizer

            from burnish.config.rollout import RolloutConfig
            from burnish.rollout import make_engine

            model = sharpen(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32))
            engine = make_engine("vllm", model, AutoTokenizer.from_pretrained(folder), RolloutConfig(max_num_seqs=8))
            engine.publish([dict(model.named_parameters())], 1)
            try:
                return engine.run([(PROMPT, sampling)])[0].token_ids
            finally:
                engine.close()

    ray.init(num_cpus=1, include_dashboard=False, logging_level="error")
    try:
        assert ray.get(ray.remote(Actor).remote().ask.remote(str(tiny_folder)), timeout=900) == wanted
    finally:
        ray.shutdown()


def test_threads_end_with_the_engine(shared_engine):
    assert [thread.name for thread in threading.enumerate()].count("vLLM") == 1, "that of the shared engine"


@pytest.fixture(scope="module")
def computing(pid_of):
    return lambda engine: pid_of(engine, "EngineCore")


class TestSupervised(SupervisedContract):
    label, shape, own = "vLLM", SHAPE, OWN
