"""An engine in a thread of its own: the same completions, cancelled and stopped from outside, changed between steps."""

import asyncio
import threading
import time

import pytest
import torch

from burnish.cli.quickstart import NANO
from burnish.config.model import ModelConfig
from burnish.errors import DeadlineError, RolloutError
from burnish.models.loading import load_causal_lm, load_tokenizer
from burnish.rollout.base import Completion, Sampling
from burnish.rollout.engine_loop import EngineLoop
from burnish.rollout.native.engine import NativeEngine

LONG = Sampling(max_tokens=400, ignore_eos=True)


@pytest.fixture(scope="module")
def nano():
    return load_causal_lm(str(NANO), ModelConfig(), torch.device("cpu"), "float32"), load_tokenizer(str(NANO), False)


@pytest.fixture
def native(nano):
    return NativeEngine(*nano, max_num_seqs=16, max_model_len=512, blocks=200)


@pytest.fixture
def looped(native):
    loop = EngineLoop(native)
    yield loop
    loop.stop()
    assert not loop._thread.is_alive()


def in_time(work):
    async def bounded():
        return await asyncio.wait_for(work, 60)

    return asyncio.run(bounded())


async def until(condition):
    while not condition():
        await asyncio.sleep(0.001)


def requests(nano, count=12):
    ids = [nano[1](f"{17 * i}+{23 * i}=")["input_ids"] for i in range(count)]
    return [(prompt, Sampling(max_tokens=5 + i, seed=i, top_p=0.9)) for i, prompt in enumerate(ids)]


def test_requests_of_several_loops_at_once_get_what_they_get_alone(nano, native):
    asked = requests(nano)
    expected = native.run(asked)
    loop, found = EngineLoop(native), {}
    assert (loop.context, loop.vocabulary) == (native.context, native.vocabulary)

    def client(own):
        async def all_of_mine():
            return await asyncio.gather(*[loop.generate(*asked[i], request_id=str(i), order=(i,)) for i in own])

        found.update(zip(own, asyncio.run(all_of_mine()), strict=True))

    clients = [threading.Thread(target=client, args=(range(part, len(asked), 3),)) for part in range(3)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join(60)
    for i, completion in enumerate(expected):
        assert (found[i].token_ids, found[i].finish_reason) == (completion.token_ids, completion.finish_reason)
        assert found[i].log_probs == pytest.approx(completion.log_probs, abs=1e-5)
    assert loop.in_flight == 0 and loop.stats()["requests"] == 2 * len(asked)
    loop.stop()


def test_tokens_come_in_the_loop_that_awaits(looped):
    seen = []

    async def main():
        def on_token(*token):
            seen.append((threading.current_thread(), *token))

        done = await looped.generate([5, 6], Sampling(max_tokens=4, ignore_eos=True), request_id="a", on_token=on_token)
        assert [token for _, token, _ in seen] == done.token_ids  # the last one too

    in_time(main())
    assert {thread for thread, *_ in seen} == {threading.current_thread()}


def test_a_caller_that_is_cancelled_takes_its_request_with_it(looped):
    async def main():
        task = asyncio.create_task(looped.generate([5, 6], LONG, request_id="a"))
        await until(lambda: looped.stats()["running"])
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: not looped.stats()["running"] and not looped.stats()["kv_blocks_used"])

    in_time(main())
    assert looped.stats()["generated_tokens"] < 400 and looped.in_flight == 0


@pytest.mark.parametrize("change", ["sleep", "publish"])
def test_right_after_its_callers_were_cancelled_the_engine_can_change(looped, nano, change):
    async def main():
        tasks = [asyncio.create_task(looped.generate([5, 6], LONG, request_id=str(i))) for i in range(5)]
        await until(lambda: looped.stats()["running"])
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        looped.sleep() if change == "sleep" else looped.publish([nano[0].state_dict()], 1)

    for _ in range(5):
        in_time(main())
        looped.wake()
        assert looped.stats()["kv_blocks_used"] == 0
        assert len(looped.run(requests(nano, 3))) == 3


@pytest.mark.parametrize("is_under_way", [False, True])
def test_abort_gives_what_there_is(looped, is_under_way):
    async def main():
        task = asyncio.create_task(looped.generate([5, 6], LONG, request_id="a"))
        await asyncio.sleep(0)  # handed over
        if is_under_way:
            await until(lambda: looped.stats()["running"])
        looped.abort("never there")
        looped.abort("a")
        return await task

    done = in_time(main())
    assert done.finish_reason == "abort" and len(done.token_ids) < 400


def test_what_is_wrong_with_a_request_is_told(looped):
    with pytest.raises(RolloutError, match="request a: token id 99999"):
        in_time(looped.generate([99_999], LONG, request_id="a"))


def test_weights_and_memory_change_between_two_steps_in_the_callers_thread(looped, native, nano):
    asked = requests(nano, 3)
    before = looped.run(asked)
    threads = set()

    def buckets():
        threads.add(threading.current_thread())
        yield from ({name: tensor} for name, tensor in nano[0].state_dict().items())

    looped.sleep()
    with pytest.raises(RolloutError, match=r"wake\(\)"):
        looped.run(asked)
    looped.wake()
    looped.publish(buckets(), 4)
    after = looped.run(asked)
    assert threads == {threading.current_thread()}
    assert [c.token_ids for c in after] == [c.token_ids for c in before] and after[0].policy_version == 4


def test_publish_while_requests_run_is_refused_and_they_go_on(looped):
    async def main():
        task = asyncio.create_task(looped.generate([5, 6], LONG, request_id="a"))
        await until(lambda: looped.stats()["running"])
        with pytest.raises(RolloutError, match="while requests are running"):
            looped.publish(None, 1)
        return await task

    assert len(in_time(main()).token_ids) == 400


def test_nothing_is_stepped_while_it_stands_still(looped):
    async def main():
        task = asyncio.create_task(looped.generate([5, 6], LONG, request_id="a"))
        await until(lambda: looped.stats()["running"])
        with looped.standstill() as engine:
            tokens = engine.stats()["generated_tokens"]
            time.sleep(0.05)
            assert engine.stats()["generated_tokens"] == tokens
        return await task

    assert len(in_time(main()).token_ids) == 400


def test_a_loop_that_awaits_stays_responsive(looped):
    async def main():
        task = asyncio.create_task(looped.generate([5, 6], LONG, request_id="a"))
        await until(lambda: looped.stats()["running"])
        passes = 0
        while not task.done():
            await asyncio.sleep(0)
            passes += 1
        return passes

    assert in_time(main()) > 100


def test_stop_ends_what_runs_with_an_error(looped):
    async def main():
        tasks = [asyncio.create_task(looped.generate([5, 6], LONG, request_id=name)) for name in "ab"]
        await until(lambda: looped.stats()["running"] == 2)
        await asyncio.to_thread(looped.stop)
        return await asyncio.gather(*tasks, return_exceptions=True)

    assert [str(error) for error in in_time(main())] == [f"request {n}: the rollout engine has stopped" for n in "ab"]
    looped.stop()  # again, to no effect
    looped.abort("a")
    with pytest.raises(RolloutError, match="request c: the rollout engine has stopped"):
        in_time(looped.generate([5], LONG, request_id="c"))
    with pytest.raises(RolloutError, match="has stopped"):
        looped.sleep()
    assert looped.in_flight == 0


class Blocking:
    """An engine with one endless step."""

    context = vocabulary = 100

    def __init__(self):
        self.go_on = threading.Event()

    async def generate(self, prompt_ids, sampling, **_):
        self.go_on.wait()
        return Completion([1], [0.0], "stop")


def test_a_step_that_does_not_end_is_told():
    engine = Blocking()
    loop = EngineLoop(engine, step_deadline_s=0.1)

    async def main():
        task = asyncio.create_task(loop.generate([5], LONG, request_id="a"))
        await asyncio.sleep(0.01)
        with pytest.raises(DeadlineError, match=r"did not end its step within 0\.1 s"):
            loop.sleep()
        engine.go_on.set()
        return await task

    assert in_time(main()).token_ids == [1]
    loop.stop()
