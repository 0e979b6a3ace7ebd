"""The asynchronous interface: aborts, cancelled callers, event loops, back-pressure, errors and steps that hang."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from burnish.errors import ConfigError, EngineLost, NotAvailable, RolloutError
from burnish.rollout.base import Request, Sampling
from burnish.rollout.native.flight import DeviceFlight
from burnish.waits import longest
from tests.rollout.native.asking import LONG, aheads, start, until
from tests.rollout.native.exact import check_exact, random_prompts, random_requests
from tests.rollout.native.models import CONTEXT, family


@aheads
def test_abort_of_a_running_request_returns_what_there_is(native, module, ahead):
    engine = native(module, ahead=ahead)
    whole = engine.run([([5, 6], LONG)])[0]

    async def main():
        seen = []
        running = start(engine, "a", on_token=lambda token, _: seen.append(token))
        other = start(engine, "b", sampling=replace(LONG, seed=1))
        await until(lambda: len(seen) >= 5)
        engine.abort("a")
        count = len(seen)
        aborted = await running
        assert len(seen) == count  # nothing comes after the end
        return aborted, seen, await other

    aborted, seen, other = asyncio.run(main())
    assert aborted.finish_reason == "abort" and aborted.stop is None
    assert aborted.token_ids == seen == whole.token_ids[: len(seen)] and 5 <= len(seen) < 50
    assert aborted.log_probs == pytest.approx(whole.log_probs[: len(seen)], abs=1e-4)
    assert (other.finish_reason, len(other.token_ids)) == ("length", 50)
    assert engine.stats()["aborted"] == 1


@aheads
def test_abort_of_a_request_without_a_token_callback(native, module, ahead):
    engine = native(module, ahead=ahead)
    whole = engine.run([([5, 6], LONG)])[0]

    async def main():
        before = engine.stats()["generated_tokens"]
        running = start(engine, "a")
        await until(lambda: engine.stats()["generated_tokens"] > before + 4)
        engine.abort("a")
        return await running

    aborted = asyncio.run(main())
    assert aborted.token_ids == whole.token_ids[: len(aborted.token_ids)] and len(aborted.token_ids) < 50
    assert len(aborted.token_ids) == len(aborted.log_probs) >= 4


def test_abort_before_the_first_step_is_empty(native, module):
    engine = native(module)

    async def main():
        task = start(engine, "a")
        await asyncio.sleep(0)
        engine.abort("a")
        return await task

    completion = asyncio.run(main())
    assert (completion.token_ids, completion.finish_reason) == ([], "abort")
    assert engine.stats()["steps"] == 0


def test_abort_of_a_waiting_request(native, module):
    engine = native(module, max_num_seqs=1)

    async def main():
        first, second, third = (start(engine, name) for name in "abc")
        await until(lambda: engine.stats()["generated_tokens"] > 3)
        assert (engine.stats()["running"], engine.stats()["waiting"]) == (1, 2)
        engine.abort("b")
        completion = await second
        assert not first.done()
        return completion, await first, await third

    aborted, *others = asyncio.run(main())
    assert (aborted.token_ids, aborted.finish_reason) == ([], "abort")
    assert [len(c.token_ids) for c in others] == [50, 50]


def test_abort_of_what_is_not_there_does_nothing(native, module):
    engine = native(module)
    engine.abort("nobody")

    async def main():
        completion = await start(engine, "a", sampling=Sampling(max_tokens=2))
        engine.abort("a")
        return completion

    assert asyncio.run(main()).finish_reason in ("length", "stop")
    assert engine.stats()["aborted"] == 0


@aheads
@pytest.mark.parametrize("count", [50, 3], ids=["on its way", "at its last token"])
def test_a_callback_may_abort_its_own_request(native, module, count, ahead):
    engine = native(module, ahead=ahead)
    seen = []

    def on_token(token, _):
        seen.append(token)
        if len(seen) == 3:
            engine.abort("a")

    async def main():
        return await start(engine, "a", sampling=replace(LONG, max_tokens=count), on_token=on_token)

    completion = asyncio.run(main())
    assert completion.finish_reason == "abort" or count == 3
    assert (completion.token_ids, len(seen)) == (seen, 3)


@aheads
def test_a_cancelled_caller_frees_its_blocks_and_disturbs_nobody(native, module, ahead):
    engine = native(module, ahead=ahead)
    expected = engine.run([([7, 8], LONG)])[0]

    async def main():
        before = engine.stats()["generated_tokens"]
        given_up, kept = start(engine, "a"), start(engine, "b", prompt=(7, 8))
        await until(lambda: engine.stats()["generated_tokens"] > before + 30)  # they have all blocks they need
        used = engine.stats()["kv_blocks_used"]
        given_up.cancel()
        await until(lambda: engine.stats()["kv_blocks_used"] < used)
        assert engine.stats()["running"] == 1
        again = start(engine, "a")  # its id is free
        return await kept, await again

    kept, again = asyncio.run(main())
    assert kept.token_ids == expected.token_ids and len(again.token_ids) == 50


def test_a_cancelled_caller_that_waits(native, module):
    engine = native(module, max_num_seqs=1)

    async def main():
        first, second = start(engine, "a"), start(engine, "b")
        await until(lambda: engine.stats()["generated_tokens"] > 3)
        second.cancel()
        await until(second.done)
        await until(lambda: engine.stats()["waiting"] == 0, passes=200)
        return await first

    assert len(asyncio.run(main()).token_ids) == 50


def test_equal_request_ids_are_refused_while_one_runs(native, module):
    engine = native(module)

    async def main():
        first = start(engine, "same")
        await asyncio.sleep(0)
        with pytest.raises(RolloutError, match="request same is already running"):
            await start(engine, "same")
        completion = await first
        return completion, await start(engine, "same")

    one, other = asyncio.run(main())
    assert one.token_ids == other.token_ids


def test_several_event_loops_one_after_another(native, module, generate_all):
    engine = native(module)
    requests = random_requests(6, seed=3)
    expected = [c.token_ids for c in generate_all(engine, requests)]
    assert [c.token_ids for c in generate_all(engine, requests)] == expected
    assert [c.token_ids for c in engine.run(requests)] == expected


def test_a_loop_that_died_leaves_nothing_behind(native, module, generate_all):
    engine = native(module, ahead=2)
    expected = engine.run([([5, 6], LONG)])[0].token_ids

    async def dies():
        start(engine, "0")
        start(engine, "1", prompt=(7, 8, 9))
        await until(lambda: engine.stats()["running"] == 2)
        raise KeyError("the loop fails")

    for _ in range(3):
        with pytest.raises(KeyError):
            asyncio.run(dies())
    assert generate_all(engine, [([5, 6], LONG)])[0].token_ids == expected
    engine.publish(None, 1)
    assert engine.stats()["kv_blocks_cached"] == 0


def test_the_loop_turns_while_the_engine_works(native, module):
    """Agents' other work goes on between steps: nobody is starved by a long generation."""
    engine = native(module)
    turns = 0

    async def main():
        nonlocal turns
        task = start(engine, "a")
        while not task.done():
            await asyncio.sleep(0)
            turns += 1

    asyncio.run(main())
    assert turns >= 25


def test_a_finished_callers_next_turn_joins_those_that_run(native, module):
    engine = native(module)

    async def agent(name, turns):
        prompt, ends = [5, 6, len(name)], []
        for turn in range(turns):
            completion = await engine.generate(
                Request(prompt, Sampling(max_tokens=4, ignore_eos=True), request_id=f"{name}-{turn}")
            )
            prompt = [*prompt, *completion.token_ids, 9]
            ends.append(completion)
        return ends

    async def main():
        long = start(engine, "long")
        turns = await agent("agent", 6)
        assert not long.done()  # six turns were had while it ran
        return turns, await long

    turns, long = asyncio.run(main())
    assert [len(c.token_ids) for c in turns] == [4] * 6 and len(long.token_ids) == 50


def test_admits_in_order_not_in_order_of_arrival(native, module):
    engine = native(module, max_num_seqs=1)
    finished = []

    async def one(order):
        await engine.generate(Request([5], Sampling(max_tokens=1), request_id=str(order), order=order))
        finished.append(order)

    async def main():
        await asyncio.gather(*[one(order) for order in [(2, 0, 0), (0, 1, 0), (10, 0, 0), (0, 0, 3)]])

    asyncio.run(main())
    assert finished == [(0, 0, 3), (0, 1, 0), (2, 0, 0), (10, 0, 0)]


@pytest.mark.parametrize("rows", [1, 3, 7])
def test_no_more_run_at_once_than_may(native, module, rows):
    engine = native(module, max_num_seqs=rows, ahead=2)
    most = 0

    def look(*_):
        nonlocal most
        most = max(most, engine.stats()["running"])

    async def main():
        requests = random_requests(20, seed=6)
        calls = [start(engine, str(i), *request, on_token=look) for i, request in enumerate(requests)]
        return requests, await asyncio.gather(*calls)

    check_exact(module, *asyncio.run(main()), context=CONTEXT)
    assert most == rows


def test_stats(native, module):
    engine = native(module)
    engine.run([([5, 6, 7], Sampling(max_tokens=4, ignore_eos=True, seed=seed)) for seed in range(3)])
    stats = engine.stats()
    expected = {
        "requests": 3,
        "aborted": 0,
        "prompt_tokens": 9,
        "generated_tokens": 12,
        "prefill_tokens": 3,
        "shared_tokens": 6,
        "prefix_hit_tokens": 0,
        "preemptions": 0,
        "running": 0,
        "waiting": 0,
        "kv_blocks_used": 0,
    }
    assert {name: stats[name] for name in expected} == expected
    assert stats["steps"] >= 3 and stats["tokens_per_s"] > 0
    assert 0 < stats["kv_blocks"] <= 160
    assert all(isinstance(value, int | float) for value in stats.values())


def test_blocks_in_use_while_it_runs(native, module):
    engine = native(module, block_size=8)

    async def main():
        task = start(engine, "a", prompt=range(3, 33), sampling=replace(LONG, max_tokens=20))
        await until(lambda: engine.stats()["generated_tokens"] >= 2)
        used = engine.stats()["kv_blocks_used"]
        assert 4 <= used <= 7  # 31 tokens at least, and at most all that it can get
        await task

    asyncio.run(main())


@pytest.mark.parametrize(
    "prompt,message",
    [
        ([], "request 0: the prompt is empty"),
        ([5] * CONTEXT, f"request 0: the prompt has {CONTEXT} tokens and the context holds {CONTEXT}"),
        ([5, 99_999], "request 0: token id 99999 is outside the model's vocabulary of"),
        ([5, -1], "request 0: token id -1 is outside"),
    ],
)
def test_bad_prompts(native, module, generate_all, prompt, message):
    with pytest.raises(RolloutError, match=message):
        generate_all(native(module), [(prompt, Sampling(max_tokens=4))])


def test_images_are_not_available(native, module):
    with pytest.raises(NotAvailable, match="images"):
        asyncio.run(native(module).generate(Request([5], Sampling(), request_id="a", images=["cat.png"])))


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


@aheads
def test_nan_logits_name_the_request(native, module, ahead):
    sick = family("qwen2")
    with torch.no_grad():
        sick.get_input_embeddings().weight[200] = float("nan")  # only sequences with this token meet it
    sampled = [(prompt, replace(LONG, seed=seed)) for seed, prompt in enumerate(random_prompts(12, 1, vocabulary=199))]
    expected = native(module).run(sampled)
    healthy = [i for i, completion in enumerate(expected) if 200 not in completion.token_ids]
    assert len(healthy) >= 3
    engine = native(sick, ahead=ahead, blocks=20)

    async def main():
        await start(engine, "sick", prompt=(5, 200, 7))

    for _ in range(2):
        with pytest.raises(RolloutError, match=r"request sick: the model's logits are NaN"):
            asyncio.run(main())
    # Its blocks are given out again, and nothing that is not a number comes with them.
    completions = engine.run([sampled[i] for i in healthy])
    assert [c.token_ids for c in completions] == [expected[i].token_ids for i in healthy]


def test_a_failing_step_reaches_every_caller_and_the_next_one_works(native, module, swap_decoder, generate_all):
    engine = native(module, ahead=1)
    expected = engine.run([([5, 6], LONG)])[0].token_ids
    broken = True

    def wrap(decoder):
        def call(*args, **kwargs):
            if broken:
                raise MemoryError("no room")
            return decoder(*args, **kwargs)

        return call

    swap_decoder(engine, wrap)

    async def main():
        calls = [start(engine, name) for name in "ab"]
        return await asyncio.gather(*calls, return_exceptions=True)

    for name, error in zip("ab", asyncio.run(main()), strict=True):
        assert isinstance(error, RolloutError) and f"request {name}: MemoryError: no room" in str(error)
    broken = False
    assert generate_all(engine, [([5, 6], LONG)])[0].token_ids == expected


@pytest.mark.parametrize("calls_before,named", [(0, "3 prompts"), (6, "3 sequences")], ids=["reading", "decoding"])
def test_a_step_is_a_registered_wait_and_one_whose_kernels_hang_is_not_awaited(
    native, module, swap_decoder, calls_before, named
):
    engine, hanging, calls, seen = native(module, step_deadline_s=600), object.__new__(DeviceFlight), 0, []
    hanging._event = SimpleNamespace(query=lambda: False)

    def wrap(decoder):
        def call(*args, **kwargs):
            nonlocal calls
            calls += 1
            if calls > calls_before:
                seen.extend((wait.kind, wait.owner, wait.subject, wait.seconds) for wait in longest())
                hanging.wait(0.05, f"a step of {named}")
            return decoder(*args, **kwargs)

        return call

    swap_decoder(engine, wrap)

    async def main():
        tasks = [start(engine, name, prompt=(5, 6 + i)) for i, name in enumerate("abc")]
        return await asyncio.gather(*tasks, return_exceptions=True)

    async def later():
        for _ in range(2):  # refused for what is wrong, again and again
            with pytest.raises(RolloutError, match="was stuck"):
                await engine.generate(Request([5], LONG, request_id="later"))

    for error in asyncio.run(main()):
        assert isinstance(error, EngineLost), error
        assert f"stuck: the kernels of a step of {named} have not ended within 0.05 s" in str(error)
    asyncio.run(later())
    ((kind, owner, subject, seconds),) = seen
    assert (kind, owner, seconds) == ("engine", "the rollout engine", 600) and named in subject
    assert not longest()


def test_a_deadline_that_is_kept_changes_nothing(native, module):
    assert native(module).step_deadline_s == 1800, "the default on a CPU"
    requests = random_requests(10, seed=2)
    completions = native(module, step_deadline_s=30).run(requests)
    check_exact(module, requests, completions, context=CONTEXT)
