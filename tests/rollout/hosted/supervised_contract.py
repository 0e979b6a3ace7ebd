"""A program dies or stands still in the middle of requests: another one answers them, with the weights published last.

`class TestSupervised(SupervisedContract)` runs it, with `label`, the `shape` of a model, and its `own` arguments, all
that may be given; `supervised` has an engine without weights, and `computing(engine)` is the process of an engine that
computes.
"""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from burnish.config.rollout import RolloutConfig
from burnish.errors import EngineLost
from burnish.models.tiny import write_tiny_model
from burnish.rollout.base import Sampling
from tests.rollout.asking import log_is_whole, start

IDS = [(7 * i) % 250 + 3 for i in range(60)]
PROMPTS = [[5, 6, 7], [8, 9], [10, 11, 12, 13]]
# So long that they are not done before the program has died; the context ends them, where it is shorter.
LONG = [Sampling(max_tokens=3000, ignore_eos=True, seed=seed) for seed in range(3)]


async def all_of_them(engine, told=None):
    listeners = [told, None, None]
    calls = [start(engine, str(i), PROMPTS[i], LONG[i], on_token=listeners[i]) for i in range(3)]
    return await asyncio.gather(*calls)


def fails_when(engine, strike):
    """The error of a request that was under way when something happened."""

    async def ask():
        begun = asyncio.Event()
        call = start(engine, "struck", sampling=Sampling(ignore_eos=True), on_token=lambda *token: begun.set())
        await begun.wait()
        strike()
        with pytest.raises(EngineLost, match="request struck") as error:
            await asyncio.wait_for(call, 240)
        return str(error.value)

    return asyncio.run(ask())


class SupervisedContract:
    label: str
    shape: dict[str, int]
    own: dict[str, Any]

    def test_a_layer_that_is_tied_follows_the_embedding_and_nothing_is_left(
        self, engine_class, tmp_path, tokenizer, sharpen, teacher
    ):
        """Of what it was given besides, all is taken that may be given."""
        spec = engine_class.spec
        assert set(self.own) == spec.tried
        module = sharpen(AutoModelForCausalLM.from_pretrained(write_tiny_model(tmp_path / "tied", **self.shape)))
        assert module.lm_head.weight is module.model.embed_tokens.weight
        config = RolloutConfig(name=spec.name, max_num_seqs=8, engine_kwargs={spec.name: self.own})
        before = set(Path("/dev/shm").glob("sglang_loads_*"))
        engine = engine_class(module, tokenizer, config, tmp_path)
        try:
            for version in (1, 2):
                engine.publish([dict(module.named_parameters())], version)
                wanted = [row[i].item() for row, i in zip(teacher(module, IDS), IDS[1:], strict=True)]
                assert engine.log_probs_of(IDS) == pytest.approx(wanted, abs=5e-4)
                with torch.no_grad():
                    module.model.embed_tokens.weight.mul_(1.5)
            fails_when(engine, lambda: os.kill(engine.process.pids[0], signal.SIGKILL))
        finally:
            engine.close()
        assert engine.process._used and not any(file.exists() for file in engine.process._used)
        assert set(Path("/dev/shm").glob("sglang_loads_*")) <= before

    @pytest.mark.parametrize("what", [signal.SIGKILL, signal.SIGSTOP])
    def test_requests_are_answered_after_a_failure(
        self, supervised, module, other, buckets, expected, computing, caplog, what
    ):
        supervised.publish(buckets(module), 1)
        supervised.publish(buckets(other), 2)
        undisturbed = asyncio.run(all_of_them(supervised))
        before, seen = supervised.stats(), []

        async def main():
            begun = asyncio.Event()

            def told(token_id, _):
                seen.append(token_id)
                begun.set()

            running = asyncio.create_task(all_of_them(supervised, told))
            await begun.wait()
            os.kill(computing(supervised.engine), what)
            return await running

        found = asyncio.run(main())
        counts = supervised.stats()
        assert counts["replica_restarts"] - before["replica_restarts"] == 1
        assert counts["requests_again"] - before["requests_again"] == len(PROMPTS)
        assert counts["requests"] - before["requests"] == 2 * len(PROMPTS)
        assert [c.token_ids for c in found] == [c.token_ids for c in undisturbed]
        assert seen == found[0].token_ids  # each once
        for prompt, completion in zip(PROMPTS, found, strict=True):
            assert set(completion.token_versions()) == {2}
            assert completion.log_probs == pytest.approx(expected(other, prompt, completion), abs=1e-3)
        log_is_whole(supervised)
        assert f"{self.label} is lost" in caplog.text and "has the weights" in caplog.text
