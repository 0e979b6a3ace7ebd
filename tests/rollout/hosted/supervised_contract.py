"""A program dies or stands still in the middle of requests: another one answers them, with the weights published last.

`class TestSupervised(SupervisedContract)` runs it, with `label`; `supervised` has an engine without weights, and
`computing(engine)` is the process of an engine that computes.
"""

import asyncio
import os
import signal

import pytest

from burnish.rollout.base import Request, Sampling
from tests.rollout.renewing import log_is_whole

PROMPTS = [[5, 6, 7], [8, 9], [10, 11, 12, 13]]
# So long that they are not done before the program has died; the context ends them, where it is shorter.
LONG = [Sampling(max_tokens=3000, ignore_eos=True, seed=seed) for seed in range(3)]


async def all_of_them(engine, told=None):
    calls = [
        engine.generate(Request(prompt, sampling, request_id=str(i)), on_token=told if i == 0 else None)
        for i, (prompt, sampling) in enumerate(zip(PROMPTS, LONG, strict=True))
    ]
    return await asyncio.gather(*calls)


class SupervisedContract:
    label: str

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

    def test_weights_that_were_written_when_it_died_are_published(
        self, supervised, module, buckets, expected, computing
    ):
        def dying():
            yield from buckets(module)
            os.kill(computing(supervised.engine), signal.SIGKILL)

        before = supervised.stats()["replica_restarts"]
        supervised.publish(dying(), 3)
        assert supervised.stats()["replica_restarts"] == before + 1
        for prompt, completion in zip(PROMPTS, asyncio.run(all_of_them(supervised)), strict=True):
            assert completion.policy_version == 3
            assert completion.log_probs == pytest.approx(expected(module, prompt, completion), abs=1e-3)
