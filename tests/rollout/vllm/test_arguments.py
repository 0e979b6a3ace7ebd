"""What keys mean to vLLM; without vLLM."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import Qwen2Config

from burnish.config.rollout import RolloutConfig
from burnish.errors import ConfigError, RolloutError
from burnish.rollout import make_engine
from burnish.rollout.admission import RequestState
from burnish.rollout.base import Sampling
from burnish.rollout.hosted import spec
from burnish.rollout.hosted.spec import token_bytes
from burnish.rollout.vllm.engine import VLLMEngine
from burnish.rollout.vllm.host import part_seed
from burnish.rollout.vllm.spec import SPEC, kv_gib


def mapped(**keys):
    engine = SimpleNamespace(context=2048, dtype=torch.bfloat16)
    return VLLMEngine._engine_arguments(engine, RolloutConfig(**keys), Path("/some/where"), Qwen2Config())


def asked(sampling):
    return VLLMEngine._request_arguments(None, RequestState("r", [3], sampling, 9, frozenset([9, 3]), None, None))


def test_keys_become_arguments():
    same = dict(max_num_seqs=7, max_num_batched_tokens=99, gpu_memory_utilization=0.3, enforce_eager=True)
    own = {"block_size": 32, "seed": 4}
    same["enable_prefix_caching"] = False
    arguments = mapped(**same, free_cache_engine=False, engine_kwargs={"vllm": own})
    assert arguments.items() >= {name: value for name, value in SPEC.fixed.items() if name != "model"}.items()
    wanted = same | own | dict(model="/some/where", dtype="bfloat16", max_model_len=2048, tensor_parallel_size=1)
    wanted |= dict(enable_sleep_mode=False, enable_chunked_prefill=True)
    assert arguments.items() >= wanted.items()
    arguments = mapped(tensor_model_parallel_size=2)  # several workers are processes of vLLM itself
    assert (arguments["tensor_parallel_size"], arguments["distributed_executor_backend"]) == (2, "mp")
    uncut = mapped(enable_chunked_prefill=False, max_num_batched_tokens=512)  # a prompt fits one pass
    assert uncut["max_num_batched_tokens"] == 2048


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tensor_parallel_size", r"kwargs\.vllm\.tensor_parallel_size: set rollout\.tensor_model_parallel_size"),
        ("load_format", r"engine_kwargs\.vllm\.load_format: burnish sets it itself"),
        ("kv_offloading_size", r"vllm\.kv_offloading_size: vLLM was never run with it here.*taken are block_"),
        ("blok_size", r"never run .*Did you mean block_size\?"),
    ],
)
def test_arguments_that_are_not_the_users_are_refused(name, words):
    with pytest.raises(ConfigError, match=words):
        mapped(engine_kwargs={"vllm": {name: "x"}})


@pytest.mark.parametrize(
    ("sampling", "wanted"),
    [
        (Sampling(temperature=0.5), dict(temperature=0.5, top_k=0, top_p=1.0, min_p=0.0)),
        (Sampling(top_k=-1, top_p=0.9), dict(top_k=0, top_p=0.9)),
        (Sampling(top_k=5, min_p=0.1), dict(top_k=5, min_p=0.1)),
        (Sampling(temperature=0, top_k=5, top_p=0.3), dict(temperature=0, top_k=0, top_p=1.0)),
    ],
)
def test_sampling_becomes_parameters(sampling, wanted):
    arguments = asked(sampling)
    assert arguments.items() >= wanted.items()
    assert (arguments["stop_token_ids"], arguments["ignore_eos"], arguments["detokenize"]) == ([3, 9], True, False)


@pytest.mark.parametrize("temperature", [0.005, 2.1])
def test_temperatures_that_vllm_changes_are_refused(temperature):
    with pytest.raises(RolloutError, match=f"request r: temperature {temperature:g}: vLLM takes 0"):
        asked(Sampling(temperature=temperature))


def test_seeds_are_of_63_bits_and_differ_by_part():
    seeds = {part_seed(seed, position) for seed in (0, 1, 2**64 - 1) for position in (0, 1, 2)}
    assert len(seeds) == 9 and all(0 <= seed < 2**63 for seed in seeds)
    assert part_seed(5, 0) == 5


def test_the_environment_is_the_users_and_their_own_settings_stay(monkeypatch, tmp_path):
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "auto")
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    before = dict(os.environ)
    found = VLLMEngine._process_environment(SimpleNamespace(_kv_gib=3), tmp_path)
    assert (found["VLLM_CPU_OMP_THREADS_BIND"], found["VLLM_CPU_KVCACHE_SPACE"]) == ("auto", "3")
    assert (found["PATH"], found["TMPDIR"]) == (os.environ["PATH"], str(tmp_path))
    assert dict(os.environ) == before


def test_memory_for_keys_and_values_is_what_is_needed_within_bounds():
    def gib(layers, sequences):
        text = SimpleNamespace(num_hidden_layers=layers, num_key_value_heads=8, head_dim=128)
        return kv_gib(token_bytes(SimpleNamespace(get_text_config=lambda: text), 2), 4096, sequences)

    assert gib(1, 1) == 1
    assert gib(32, 4) == 3  # 2 × 32 layers × 8 heads × 128 × 2 bytes × 4096 tokens × 4, and some to spare
    assert gib(32, 1024) == 4
    assert gib(320, 1024) == 6, "one sequence always fits"


def test_without_vllm_no_process_is_started(module, tokenizer, monkeypatch):
    monkeypatch.setattr(spec, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs the package vllm, .*rollout\.name=native"):
        make_engine("vllm", module, tokenizer, RolloutConfig(name="vllm"))
