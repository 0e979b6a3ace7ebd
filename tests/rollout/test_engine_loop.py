"""An engine in a thread of its own: the same completions, cancelled and stopped from outside, changed between steps."""

import asyncio
import threading
import time

import pytest
import torch

from burnish.cli.quickstart import NANO
from burnish.config.model import ModelConfig
from burnish.errors import DeadlineError, EngineLost, RolloutError
from burnish.models.loading import load_causal_lm, load_tokenizer
from burnish.rollout import engine_loop
from burnish.rollout.base import Completion, Request, Sampling
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
    loop.close()
    assert not loop._thread.is_alive()


class Gate:
    """Lets the engine take no step but for `FEW` when its thread is handed something, until it is opened: what was
    begun is still under way, however late the test comes to it."""

    FEW = 20  # of 400: what it is handed is taken up some passes of its event loop later

    def __init__(self, monkeypatch, looped, native):
        self.is_open, self._steps = False, threading.Semaphore(0)
        decoder, hand_over = native.runner.decoder, looped._hand_over

        def step(*inputs):
            if threading.current_thread() is looped._thread:  # and not that of a publish, which computes too
                while not self.is_open and not self._steps.acquire(timeout=0.01):
                    pass
            return decoder(*inputs)

        def handed_over(function):
            is_there = hand_over(function)
            self.let_few()
            return is_there

        monkeypatch.setattr(native.runner, "decoder", step)
        monkeypatch.setattr(looped, "_hand_over", handed_over)

    def let_few(self):
        self._steps.release(self.FEW)


@pytest.fixture
def gate(monkeypatch, looped, native):
    gate = Gate(monkeypatch, looped, native)
    yield gate
    gate.is_open = True


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
            return await asyncio.gather(
                *[loop.generate(Request(*asked[i], request_id=str(i), order=(i,))) for i in own]
            )

        found.update(zip(own, asyncio.run(all_of_mine()), strict=True))

    clients = [threading.Thread(target=client, args=(range(part, len(asked), 3),)) for part in range(3)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join(60)
    for i, completion in enumerate(expected):
        assert (found[i].token_ids, found[i].finish_reason) == (completion.token_ids, completion.finish_reason)
        # in another batch sums are rounded otherwise
        assert found[i].log_probs == pytest.approx(completion.log_probs, abs=1e-4)
    assert loop.in_flight == 0 and loop.stats()["requests"] == 2 * len(asked)
    loop.close()


def test_tokens_come_in_the_loop_that_awaits(looped):
    seen = []

    async def main():
        def on_token(*token):
            seen.append((threading.current_thread(), *token))

        done = await looped.generate(
            Request([5, 6], Sampling(max_tokens=4, ignore_eos=True), request_id="a"), on_token=on_token
        )
        assert [token for _, token, _ in seen] == done.token_ids  # the last one too

    in_time(main())
    assert {thread for thread, *_ in seen} == {threading.current_thread()}


def test_a_caller_that_is_cancelled_takes_its_request_with_it(looped, gate):
    async def main():
        task = asyncio.create_task(looped.generate(Request([5, 6], LONG, request_id="a")))
        await until(lambda: looped.stats()["running"])
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.is_open = True
        await until(lambda: not looped.stats()["running"] and not looped.stats()["kv_blocks_used"])

    in_time(main())
    assert looped.stats()["generated_tokens"] < 400 and looped.in_flight == 0


@pytest.mark.parametrize("change", ["sleep", "publish"])
def test_right_after_its_callers_were_cancelled_the_engine_can_change(looped, gate, nano, change):
    async def main():
        gate.is_open = False
        tasks = [asyncio.create_task(looped.generate(Request([5, 6], LONG, request_id=str(i)))) for i in range(5)]
        await until(lambda: looped.stats()["running"])
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        looped.sleep() if change == "sleep" else looped.publish([nano[0].state_dict()], 1)

    for _ in range(5):
        in_time(main())
        gate.is_open = True
        looped.wake()
        assert looped.stats()["kv_blocks_used"] == 0
        assert len(looped.run(requests(nano, 3))) == 3


@pytest.mark.parametrize("is_under_way", [False, True])
def test_abort_gives_what_there_is(looped, gate, is_under_way):
    async def main():
        task = asyncio.create_task(looped.generate(Request([5, 6], LONG, request_id="a")))
        await asyncio.sleep(0)  # handed over
        if is_under_way:
            await until(lambda: looped.stats()["running"])
        looped.abort("never there")
        looped.abort("a")
        gate.is_open = True
        return await task

    done = in_time(main())
    assert done.finish_reason == "abort" and len(done.token_ids) < 400


def test_what_is_wrong_with_a_request_is_told(looped):
    with pytest.raises(RolloutError, match="request a: token id 99999"):
        in_time(looped.generate(Request([99_999], LONG, request_id="a")))


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


def test_requests_go_on_under_weights_that_are_published_while_they_run(looped, gate):
    async def main():
        task = asyncio.create_task(looped.generate(Request([5, 6], LONG, request_id="a")))
        await until(lambda: looped.stats()["running"])
        looped.publish(None, 1)
        with pytest.raises(RolloutError, match="while requests are running"):
            looped.sleep()
        gate.is_open = True
        return await task

    done = in_time(main())
    assert len(done.token_ids) == 400 and done.token_versions()[-1] == 1 and looped.runs_on


def test_nothing_is_stepped_while_it_stands_still(looped, gate):
    async def main():
        task = asyncio.create_task(looped.generate(Request([5, 6], LONG, request_id="a")))
        await until(lambda: looped.stats()["running"])
        with looped.standstill() as engine:
            gate.is_open = True
            tokens = engine.stats()["generated_tokens"]
            time.sleep(0.05)
            assert engine.stats()["generated_tokens"] == tokens
        return await task

    assert len(in_time(main()).token_ids) == 400


def test_a_loop_that_awaits_stays_responsive(looped, gate):
    async def main():
        task = asyncio.create_task(looped.generate(Request([5, 6], LONG, request_id="a")))
        await until(lambda: looped.stats()["running"])
        for _ in range(100):  # during one step
            await asyncio.sleep(0)
        assert not task.done()
        gate.is_open = True
        return await task

    assert len(in_time(main()).token_ids) == 400


def test_stop_ends_what_runs_with_an_error(looped, gate):
    async def main():
        tasks = [asyncio.create_task(looped.generate(Request([5, 6], LONG, request_id=name))) for name in "ab"]
        await asyncio.sleep(0)  # handed over
        gate.let_few()  # so that the second one is taken in
        await until(lambda: looped.stats()["running"] == 2)
        await asyncio.to_thread(looped.close)
        return await asyncio.gather(*tasks, return_exceptions=True)

    assert [str(error) for error in in_time(main())] == [f"request {n}: the rollout engine has stopped" for n in "ab"]
    looped.close()  # again, to no effect
    looped.abort("a")
    with pytest.raises(RolloutError, match="request c: the rollout engine has stopped"):
        in_time(looped.generate(Request([5], LONG, request_id="c")))
    with pytest.raises(RolloutError, match="has stopped"):
        looped.sleep()
    assert looped.in_flight == 0


class Blocking:
    """An engine with one step that ends when it is told to."""

    context = vocabulary = 100
    own_weights, runs_on = True, False

    def __init__(self):
        self.began, self.go_on = threading.Event(), threading.Event()
        self.error = None
        self.orders = []

    async def generate(self, request, on_token=None):
        self.began.set()
        self.go_on.wait()
        return Completion([1], [0.0], "stop")

    def publish(self, weights, version):
        self.orders.append(version)

    def sleep(self):
        self.orders.append("sleep")

    wake = sleep

    def pause(self):
        pass

    def lost(self):
        return self.error

    def renewed(self):
        return Blocking()


@pytest.fixture
def blocking():
    engine = Blocking()
    yield engine
    engine.go_on.set()


def hang(loop):
    """No sign of life of a thread that is in a step, for longer than it may take."""
    assert loop._engine.began.wait(30)
    loop._sign = float("-inf")


@pytest.mark.parametrize("who_looks", ["lost", "publish", "sleep"])
def test_a_thread_that_hangs_is_lost_with_what_it_has(blocking, caplog, who_looks):
    loop = EngineLoop(blocking)
    orders = {"lost": loop.lost, "publish": lambda: loop.publish(None, 1), "sleep": loop.sleep}

    async def main():
        task = asyncio.create_task(loop.generate(Request([5], LONG, request_id="a")))
        await asyncio.to_thread(hang, loop)
        if who_looks != "lost":
            with pytest.raises(EngineLost, match="no sign of life for 1810 s"):
                await asyncio.to_thread(orders[who_looks])
        assert loop.lost() == "its thread has shown no sign of life for 1810 s"
        return (await asyncio.gather(task, return_exceptions=True))[0]

    error = in_time(main())
    assert isinstance(error, EngineLost) and str(error).startswith("request a: the rollout engine is lost: its thread")
    assert loop.in_flight == 0 and blocking.orders == []
    assert "self.go_on.wait()" in caplog.text  # where it hangs
    for order in (loop.sleep, loop.wake, lambda: loop.publish(None, 1)):
        with pytest.raises(EngineLost, match="no sign of life"):
            order()
    with pytest.raises(EngineLost, match="request b: .*no sign of life"):
        in_time(loop.generate(Request([5], LONG, request_id="b")))
    loop.close()
    assert loop._thread.is_alive()  # nobody waits for it
    new = loop.renewed()
    new._engine.go_on.set()
    assert in_time(new.generate(Request([5], LONG, request_id="a"))).token_ids == [1]
    assert new.lost() is None and new._heartbeat_s == loop._heartbeat_s
    new.close()
    blocking.go_on.set()
    loop._thread.join(30)
    assert not loop._thread.is_alive()  # its step has ended after all


def test_a_step_within_its_time_is_no_hang(blocking):
    loop = EngineLoop(blocking)

    async def main():
        task = asyncio.create_task(loop.generate(Request([5], LONG, request_id="a")))
        assert await asyncio.to_thread(blocking.began.wait, 30)
        loop._sign -= 1000
        assert loop.lost() is None
        blocking.go_on.set()
        return await task

    assert in_time(main()).token_ids == [1]
    loop.close()
    assert loop.lost() is None  # it was closed


def test_an_idle_thread_gives_signs_of_life(looped):
    seen = looped._sign
    in_time(until(lambda: looped._sign > seen))
    assert looped.lost() is None


def test_a_thread_that_stands_still_for_a_caller_is_not_lost(looped):
    with looped.standstill():
        looped._sign = float("-inf")
        assert looped.lost() is None
    looped.sleep()  # the thread is back
    assert looped.lost() is None


def test_a_thread_that_ends_is_lost_with_what_it_has(nano, native, monkeypatch, caplog):
    def ends(*_, **__):
        raise SystemExit("enough")

    monkeypatch.setattr(native.runner, "decoder", ends)
    loop = EngineLoop(native)

    async def main():
        calls = [loop.generate(Request([5, 6 + i], LONG, request_id=str(i))) for i in range(3)]
        return await asyncio.gather(*calls, return_exceptions=True)

    errors = in_time(main())
    assert [type(error) for error in errors] == [EngineLost] * 3
    assert "request 2: the rollout engine is lost: its thread ended by SystemExit: enough" in str(errors[2])
    assert loop.lost() == "its thread ended by SystemExit: enough" and "thread ended" in caplog.text
    with pytest.raises(EngineLost, match="SystemExit"):
        loop.publish(None, 1)
    loop.close()


def test_an_engine_that_is_lost_is_lost_in_its_thread_too(blocking):
    loop = EngineLoop(blocking)
    assert loop.lost() is None and loop.own_weights and not loop.runs_on
    blocking.error = "the process is gone"
    assert loop.lost() == "the process is gone"
    loop.renewed().close()
    loop._thread.join(30)
    assert not loop._thread.is_alive()


def test_how_long_a_step_may_take_is_the_engines_own(looped, native, nano):
    assert native.step_deadline_s == 1800 and looped._heartbeat_s == 1810
    loop = EngineLoop(NativeEngine(*nano, max_num_seqs=16, max_model_len=512, blocks=200, step_deadline_s=20))
    assert loop._heartbeat_s == 30
    loop.close()


def test_who_waits_for_another_that_holds_the_engine_is_told(blocking, monkeypatch):
    loop = EngineLoop(blocking, heartbeat_s=60)
    with loop.standstill():
        monkeypatch.setattr(engine_loop, "GRACE_S", -59.4)  # it waits for heartbeat_s and this
        with pytest.raises(DeadlineError, match=r"stood still for another caller for more than 0\.6 s"):
            loop.sleep()
    loop.close()
