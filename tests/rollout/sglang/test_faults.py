"""SGLang's processes die, hang or do not start: it is noticed, said, and made good."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from burnish.config.rollout import RolloutConfig
from burnish.errors import EngineLost
from burnish.models.tiny import write_tiny_model
from burnish.rollout.base import Request, Sampling
from burnish.rollout.hf.engine import HFEngine
from burnish.rollout.hosted.group import members
from burnish.rollout.sglang.engine import SGLangEngine
from burnish.rollout.sglang.spec import SPEC

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(900)]
PROMPT = [58, 47, 26]
IDS = [(7 * i) % 250 + 3 for i in range(60)]


async def lose(engine, worker_signal):
    """The error of a request that was under way when the process that computes got a signal."""
    begun = asyncio.Event()
    sampling = Sampling(ignore_eos=True, seed=1)
    endless = engine.generate(Request(PROMPT, sampling, request_id="lost"), on_token=lambda *token: begun.set())
    call = asyncio.ensure_future(endless)
    await begun.wait()
    os.kill(engine.process.pids[0], worker_signal)
    with pytest.raises(EngineLost) as error:
        await asyncio.wait_for(call, 240)
    return str(error.value)


def test_a_process_that_dies_or_hangs_is_found_and_replaced(start, module, tokenizer, buckets):
    engine = start(heartbeat_s=20.0)
    engine.publish(buckets(module), 7)
    sampling = Sampling(max_tokens=10, seed=3)
    (wanted,) = HFEngine(module, tokenizer).run([(PROMPT, sampling)])
    said = asyncio.run(lose(engine, signal.SIGKILL))
    assert said.startswith("request lost: SGLang is lost") and "The last lines of" in said
    assert engine.lost() is not None and not members(engine.process.pid)
    renewed = engine.renewed()
    try:
        assert renewed.lost() is None
        (completion,) = renewed.run([(PROMPT, sampling)])
        assert (completion.token_ids, completion.policy_version) == (wanted.token_ids, 7)
        said = asyncio.run(lose(renewed, signal.SIGSTOP))
        assert "gave no sign of life for 20 s" in said
        assert not members(renewed.process.pid), "also what stands still has been ended"
    finally:
        renewed.close()


def test_a_layer_that_is_tied_follows_the_embedding_and_nothing_is_left(tmp_path, tokenizer, sharpen, teacher):
    """Of what it was given besides, all is taken that may be given."""
    module = sharpen(AutoModelForCausalLM.from_pretrained(write_tiny_model(tmp_path / "tied", context=512)))
    assert module.lm_head.weight is module.model.embed_tokens.weight
    own = {"log_level": "info", "max_total_tokens": 4096, "random_seed": 7, "schedule_policy": "fcfs"}
    own |= {"watchdog_timeout": 500}
    assert set(own) == SPEC.tried
    config = RolloutConfig(name="sglang", max_num_seqs=8, engine_kwargs={"sglang": own})
    before = set(Path("/dev/shm").glob("sglang_loads_*"))
    engine = SGLangEngine(module, tokenizer, config, tmp_path)
    try:
        for version in (1, 2):
            engine.publish([dict(module.named_parameters())], version)
            wanted = [row[i].item() for row, i in zip(teacher(module, IDS), IDS[1:], strict=True)]
            assert engine.log_probs_of(IDS) == pytest.approx(wanted, abs=5e-4)
            with torch.no_grad():
                module.model.embed_tokens.weight.mul_(1.5)
        asyncio.run(lose(engine, signal.SIGKILL))
    finally:
        engine.close()
    assert engine.process._used and not any(file.exists() for file in engine.process._used)
    assert set(Path("/dev/shm").glob("sglang_loads_*")) <= before
