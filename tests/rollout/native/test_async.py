"""Requests of the native engine: turns that join, limits, callbacks that abort or raise, and steps that hang.

`tests/rollout/test_in_process.py` has what it shares with the hf engine.
"""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest

from burnish.errors import ConfigError, EngineLost, RolloutError
from burnish.rollout.base import Sampling
from burnish.rollout.native.runner import Flight
from burnish.waits import longest
from tests.rollout.asking import LONG, outcomes, start, until
from tests.rollout.native.exact import check_exact, random_requests
from tests.rollout.native.models import CONTEXT

aheads = pytest.mark.parametrize("ahead", [0, 3])


def test_stats(native, module):
    engine = native(module, block_size=8)
    engine.run([([5, 6, 7], Sampling(max_tokens=4, ignore_eos=True, seed=seed)) for seed in range(3)])
    stats = engine.stats()
    counts = dict(requests=3, prompt_tokens=9, generated_tokens=12, prefill_tokens=3, shared_tokens=6)
    zero = ("aborted", "prefix_hit_tokens", "preemptions", "running", "waiting", "kv_blocks_used")
    assert stats.items() >= (counts | dict.fromkeys(zero, 0)).items()
    assert stats["steps"] >= 3 and stats["tokens_per_s"] > 0 and 0 < stats["kv_blocks"] <= 160
    assert all(isinstance(value, int | float) for value in stats.values())

    async def main():
        task = start(engine, "a", prompt=range(3, 33), sampling=replace(LONG, max_tokens=20))
        await until(lambda: engine.stats()["generated_tokens"] >= 12 + 2)
        assert 4 <= engine.stats()["kv_blocks_used"] <= 7  # 31 tokens at least, and at most all that it can get
        await task

    asyncio.run(main())


@aheads
@pytest.mark.parametrize("aborter,victim,count", [("a", "b", 50), ("b", "a", 50), ("a", "a", 50), ("a", "a", 4)])
def test_a_callback_aborts_another_request_or_its_own(native, module, ahead, aborter, victim, count):
    """Of the same step, the other's token may have been told already or not: both are whole. The last case is a request
    at its last token."""
    engine, sampling = native(module, ahead=ahead), replace(LONG, max_tokens=count)
    prompts, seen = {"a": [5, 6], "b": [7, 8, 9]}, {"a": [], "b": []}
    whole = dict(zip("ab", engine.run([(prompt, sampling) for prompt in prompts.values()]), strict=True))

    def told(name):
        def on_token(token, log_prob):
            seen[name].append(token)
            if name == aborter and len(seen[name]) == 4:
                engine.abort(victim)

        return on_token

    async def main():
        tasks = [start(engine, name, prompts[name], sampling, on_token=told(name)) for name in "ab"]
        return dict(zip("ab", await asyncio.gather(*tasks), strict=True))

    completions = asyncio.run(main())
    for name, completion in completions.items():
        assert completion.token_ids == seen[name] == whole[name].token_ids[: len(seen[name])], name
        assert len(completion.log_probs) == len(seen[name])
        assert completion.finish_reason == ("abort" if name == victim and count == 50 else "length")
    assert 3 <= len(seen[victim]) <= (5 if aborter != victim else 4)
    assert engine.stats()["aborted"] == (count == 50)


@aheads
def test_a_callback_that_raises_fails_its_own_request_alone(native, module, ahead):
    engine = native(module, ahead=ahead)
    requests = random_requests(8, seed=9)
    seen = []

    def broken(token, log_prob):
        seen.append(token)
        if len(seen) == 3:
            raise KeyError("the callback fails")

    async def main():
        others = [start(engine, str(i), *request) for i, request in enumerate(requests)]
        with pytest.raises(RolloutError, match="request broken: KeyError: 'the callback fails'") as raised:
            await start(engine, "broken", on_token=broken)
        return raised.value, await asyncio.gather(*others)

    error, completions = asyncio.run(main())
    assert isinstance(error.__cause__, KeyError)
    assert len(seen) == 3
    check_exact(module, requests, completions, context=CONTEXT)


def test_a_finished_callers_next_turn_joins_those_that_run(native, module):
    engine = native(module)

    async def main():
        long, prompt = start(engine, "long"), [5, 6, 7]
        for turn in range(6):
            completion = await start(engine, f"turn {turn}", prompt, replace(LONG, max_tokens=4))
            assert len(completion.token_ids) == 4 and not long.done()
            prompt = [*prompt, *completion.token_ids, 9]
        return await long

    assert len(asyncio.run(main()).token_ids) == 50


def test_a_request_that_can_never_fit_is_refused_at_once(native, module):
    """A pool that holds less than the model's context is the context."""
    engine = native(module, block_size=8, blocks=1 + 4)  # 32 tokens, but for block 0
    assert engine.context == 32

    async def main():
        good = start(engine, "good", [5] * 20, Sampling(max_tokens=12, ignore_eos=True))
        with pytest.raises(RolloutError, match="request bad: the prompt has 32 tokens and the context holds 32"):
            await start(engine, "bad", [5] * 32, Sampling(max_tokens=1))
        ends = start(engine, "ends", [5] * 31, Sampling(ignore_eos=True))
        return await good, await ends

    assert [len(c.token_ids) for c in asyncio.run(main())] == [12, 1]
    with pytest.raises(ConfigError, match="KV pool"):
        native(module, block_size=8, blocks=1 + 4, max_model_len=64)  # asked for, so it must be there


@pytest.mark.parametrize("calls_before,named", [(0, "3 prompts"), (6, "3 sequences")], ids=["reading", "decoding"])
def test_a_step_is_a_registered_wait_and_one_whose_kernels_hang_is_not_awaited(
    native, module, swap_decoder, calls_before, named
):
    engine, hanging, calls, seen = native(module), object.__new__(Flight), 0, []
    engine.step_deadline_s = 600
    hanging._event = SimpleNamespace(query=lambda: False)

    def look():
        nonlocal calls
        calls += 1
        if calls > calls_before:
            seen.extend((wait.kind, wait.owner, wait.subject, wait.seconds) for wait in longest())
            hanging.wait(0.05, f"a step of {named}")

    swap_decoder(engine, lambda decoder: lambda *args, **kwargs: look() or decoder(*args, **kwargs))

    for error in outcomes(engine, {name: (5, 6 + i) for i, name in enumerate("abc")}):
        assert isinstance(error, EngineLost), error
        assert f"stuck: the kernels of a step of {named} have not ended within 0.05 s" in str(error)
    for _ in range(2):  # refused for what is wrong, again and again
        with pytest.raises(RolloutError, match="was stuck"):
            engine.run([([5], LONG)])
    for order in (lambda: engine.publish(None, 1), engine.sleep, engine.wake):
        with pytest.raises(RolloutError, match="was stuck and cannot be used any more; make a new one"):
            order()
    assert (engine.version, engine.stats()["kv_blocks_used"]) == (0, 0)
    ((kind, owner, subject, seconds),) = seen
    assert (kind, owner, seconds) == ("engine", "the rollout engine", 600) and named in subject
    assert not longest()
