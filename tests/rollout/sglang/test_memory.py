"""SGLang with too little memory for all that runs: requests lose theirs and wait for it, with the tokens they have."""

import asyncio

import pytest

from burnish.rollout.base import Sampling
from tests.rollout.asking import start as begin

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(900)]
PROMPT = [58, 47, 26, 29, 6, 9]
POOL = 700  # tokens, of which each of four completions fills the larger part
SAMPLINGS = [Sampling(seed=seed, ignore_eos=True) for seed in range(4)]


@pytest.fixture(scope="module")
def engine(start):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SGLANG_INIT_NEW_TOKEN_RATIO", "0.01")  # all are let in at once, as if they would be short
        patch.setenv("SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION", "8")
        engine = start(engine_kwargs={"sglang": {"max_total_tokens": POOL}})
    yield engine
    engine.close()


@pytest.mark.parametrize("way", ["publish", "abort"])
def test_tokens_of_a_request_that_waits_are_reported_once(engine, module, buckets, teacher, way):
    """Where one has come so far, at most one other has memory; the two that wait have tokens."""
    engine.publish(buckets(module), 1)

    async def ask():
        far, counts = asyncio.Event(), [0] * len(SAMPLINGS)

        def note(number):
            counts[number] += 1
            if counts[number] == POOL // 2 + 10:
                far.set()

        calls = [
            begin(engine, str(i), PROMPT, sampling, on_token=lambda *token, i=i: note(i))
            for i, sampling in enumerate(SAMPLINGS)
        ]
        await far.wait()
        at_that_time = list(counts)
        if way == "publish":
            await asyncio.to_thread(engine.publish, buckets(module), 2)
        else:
            for i in range(len(SAMPLINGS)):
                engine.abort(str(i))
        return at_that_time, await asyncio.gather(*calls)

    counts, completions = asyncio.run(ask())
    assert all(counts) and sum(counts) > POOL, "else none has lost its memory, and this tests nothing"
    for completion in completions:
        assert completion.finish_reason == ("length" if way == "publish" else "abort")
        rows = teacher(module, [*PROMPT, *completion.token_ids])[len(PROMPT) - 1 :]
        wanted = [row[i].item() for row, i in zip(rows, completion.token_ids, strict=True)]
        assert completion.log_probs == pytest.approx(wanted, abs=5e-4), "were some told twice, the context would differ"
