"""What burnish's keys mean to SGLang, where it is refused, and what the host makes of its answers; without SGLang."""

import asyncio
from importlib import metadata
from types import SimpleNamespace

import pytest
import torch
from transformers import Qwen2Config

from burnish.config.rollout import RolloutConfig
from burnish.errors import ConfigError, NotAvailable
from burnish.rollout import make_engine
from burnish.rollout.hosted import spec
from burnish.rollout.hosted.process import HostedRequest
from burnish.rollout.hosted.spec import token_bytes
from burnish.rollout.sglang.engine import SGLangEngine, signed
from burnish.rollout.sglang.host import SGLangHost
from burnish.rollout.sglang.spec import KV_BYTES, SPEC, kv_tokens

MODEL = Qwen2Config(num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, hidden_size=64)


def arguments(tmp_path, **keys):
    engine = SimpleNamespace(context=100, dtype=torch.float32)
    return SGLangEngine._engine_arguments(engine, RolloutConfig(name="sglang", **keys), tmp_path, MODEL)


def test_keys_of_burnish_become_arguments(tmp_path, monkeypatch):
    keys = dict(max_num_seqs=7, max_num_batched_tokens=50, enable_chunked_prefill=False, enable_prefix_caching=False)
    given = arguments(tmp_path, **keys, engine_kwargs={"sglang": {"random_seed": 3}})
    wanted = {
        "max_running_requests": 7,
        "max_prefill_tokens": 50,
        "chunked_prefill_size": -1,
        "disable_radix_cache": True,
        "attention_backend": "torch_native",
        "random_seed": 3,
        "model_path": str(tmp_path),
        "load_format": "dummy",
    }
    assert wanted.items() <= given.items()
    assert arguments(tmp_path, max_num_batched_tokens=50)["chunked_prefill_size"] == 50
    monkeypatch.setenv("SGLANG_RETURN_ORIGINAL_LOGPROB", "1")  # log-probs are scaled whatever the user has set
    assert SGLangEngine._process_environment(None, tmp_path)["SGLANG_RETURN_ORIGINAL_LOGPROB"] == "0"


def test_room_for_keys_and_values_is_that_of_all_sequences_within_a_bound():
    each = 2 * 2 * 2 * 16 * 4  # keys and values, layers, heads, their size, bytes
    assert token_bytes(MODEL, 4) == each
    assert 100 * 3 < kv_tokens(each, 100, 3) < 200 * 3
    assert kv_tokens(each, 100, 10**9) == KV_BYTES // each
    assert kv_tokens(each, 10**9, 2) > 10**9, "one sequence always fits"


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1, 2**63, 2**64 - 1])
def test_seeds_keep_their_bits(seed):
    assert -(2**63) <= signed(seed) < 2**63
    assert signed(seed) % 2**64 == seed


def test_which_sglang_is_taken_and_where(tokenizer, monkeypatch):
    def unknown(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(spec, "find_spec", lambda name: name)
    monkeypatch.setattr(spec, "version", lambda name: "0.4.10.post2")
    with pytest.raises(ConfigError, match=r"needs SGLang 0\.5\.23 or newer, and 0\.4\.10\.post2 is.*name=native"):
        SPEC.check_installed("rollout.name=sglang", "rollout.name=")
    for version in (unknown, lambda name: "0.5.23"):
        monkeypatch.setattr(spec, "version", version)
        SPEC.check_installed("rollout.name=sglang", "rollout.name=")
    module = torch.nn.Linear(2, 2, device="meta")  # not on a CPU: before any process is started
    with pytest.raises(NotAvailable, match="on a GPU .*: SGLang was run with burnish on a CPU only"):
        make_engine("sglang", module, tokenizer, RolloutConfig(name="sglang"))


# What its host makes of answers


def answer(rows, count, end=None):
    """As it streams: new rows, and the number of all tokens so far."""
    told = {"output_token_logprobs": [(-float(i), i, None) for i in rows], "completion_tokens": count}
    return {"meta_info": told | {"finish_reason": end}}


ABORT = {"type": "abort", "message": "Abort in waiting queue"}


@pytest.mark.parametrize(
    ("answers", "tokens"),
    [
        ([answer([5], 1), answer([6, 7], 3), answer([8], 4, {"type": "length"})], [5, 6, 7, 8]),
        ([answer([5, 6], 2), answer([], 2, ABORT)], [5, 6]),
        ([answer([5, 6], 2), answer([5, 6], 2, ABORT)], [5, 6]),
        ([answer([5], 1), answer([6, 5, 6], 2, ABORT)], [5, 6]),
        ([answer([], 0, ABORT)], []),
    ],
    ids=["to its end", "ended while it ran", "while it waited", "two answers at once", "before it began"],
)
def test_every_token_is_reported_once(answers, tokens):
    """The last answer to a request that waits for memory has all its tokens; answers that come together are one."""

    async def stream():
        for each in answers:
            yield each

    async def async_generate(**asked):
        return stream()

    async def told():
        host = object.__new__(SGLangHost)
        host._engine = SimpleNamespace(async_generate=async_generate)
        return [piece async for piece in host.tokens("name", HostedRequest([3], {}, 0, 9, True), [])]

    pieces = asyncio.run(told())
    assert [i for ids, _, _ in pieces for i in ids] == tokens
    assert [-p for _, log_probs, _ in pieces for p in log_probs] == tokens
    assert pieces[-1][2] == answers[-1]["meta_info"]["finish_reason"]["type"]
