"""An engine in its own thread: the same completions, cancelled and stopped from outside, changed between steps."""

import asyncio
import threading
import time

import pytest
import torch

from burnish.cli.quickstart import NANO
from burnish.config.model import ModelConfig
from burnish.errors import DeadlineError, RolloutError
from burnish.models.loading import load_causal_lm, load_tokenizer
from burnish.rollout import engine_loop
from burnish.rollout.base import Request, Sampling
from burnish.rollout.engine_loop import EngineLoop
from burnish.rollout.native.engine import NativeEngine
from tests.rollout.asking import from_threads, in_time, passes, polled
from tests.rollout.asking import start as begin

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


def start(engine, name):
    return begin(engine, name, sampling=LONG)


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


def requests(nano, count=12):
    ids = [nano[1](f"{17 * i}+{23 * i}=")["input_ids"] for i in range(count)]
    return [(prompt, Sampling(max_tokens=5 + i, seed=i, top_p=0.9)) for i, prompt in enumerate(ids)]


def test_requests_of_several_loops_get_the_same_as_alone(nano, native):
    asked = requests(nano)
    expected = native.run(asked)
    loop = EngineLoop(native)
    assert (loop.context, loop.vocabulary) == (native.context, native.vocabulary)
    found = from_threads(lambda i: begin(loop, str(i), *asked[i], order=(i,)), len(asked))
    for i, completion in enumerate(expected):
        assert (found[i].token_ids, found[i].finish_reason) == (completion.token_ids, completion.finish_reason)
        # in another batch sums are rounded otherwise
        assert found[i].log_probs == pytest.approx(completion.log_probs, abs=1e-4)
    assert loop.in_flight == 0 and loop.stats()["requests"] == 2 * len(asked)
    loop.close()


def test_on_token_and_changes_of_weights_and_memory_are_in_the_callers_thread(looped, nano):
    seen, threads, asked = [], set(), requests(nano, 3)

    async def main():
        def on_token(*token):
            seen.append((threading.current_thread(), *token))

        done = await begin(looped, "a", sampling=Sampling(max_tokens=4, ignore_eos=True), on_token=on_token)
        assert [token for _, token, _ in seen] == done.token_ids  # the last one too

    def buckets():
        threads.add(threading.current_thread())
        yield from ({name: tensor} for name, tensor in nano[0].state_dict().items())

    in_time(main())
    with pytest.raises(RolloutError, match="request a: token id 99999"):
        in_time(looped.generate(Request([99_999], LONG, request_id="a")))
    before = looped.run(asked)
    looped.sleep()
    with pytest.raises(RolloutError, match=r"wake\(\)"):
        looped.run(asked)
    looped.wake()
    looped.publish(buckets(), 4)
    after = looped.run(asked)
    assert {thread for thread, *_ in seen} == threads == {threading.current_thread()}
    assert [c.token_ids for c in after] == [c.token_ids for c in before] and after[0].policy_version == 4


@pytest.mark.parametrize("change", ["sleep", "publish"])
def test_engine_can_change_right_after_its_callers_were_cancelled(looped, gate, nano, change):

    async def main():
        gate.is_open = False
        tasks = [start(looped, str(i)) for i in range(5)]
        await polled(lambda: looped.stats()["running"])
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        looped.sleep() if change == "sleep" else looped.publish([nano[0].state_dict()], 1)

    for _ in range(5):
        in_time(main())
        gate.is_open = True
        looped.wake()
        assert looped.stats()["kv_blocks_used"] == looped.stats()["running"] == looped.in_flight == 0
        assert looped.stats()["generated_tokens"] < 5 * 400
        assert len(looped.run(requests(nano, 3))) == 3


@pytest.mark.parametrize("is_under_way", [False, True])
def test_abort_returns_the_tokens_so_far(looped, gate, is_under_way):
    async def main():
        task = start(looped, "a")
        await asyncio.sleep(0)  # handed over
        if is_under_way:
            await polled(lambda: looped.stats()["running"])
        looped.abort("never there")
        looped.abort("a")
        gate.is_open = True
        return await task

    done = in_time(main())
    assert done.finish_reason == "abort" and len(done.token_ids) < 400


def test_requests_continue_under_weights_published_while_they_run(looped, gate):
    async def main():
        task = start(looped, "a")
        await polled(lambda: looped.stats()["running"])
        await passes(100)  # the loop is responsive during a step
        assert not task.done()
        looped.publish(None, 1)
        with pytest.raises(RolloutError, match="while requests are running"):
            looped.sleep()
        with looped.standstill() as engine:  # no step while it is paused
            gate.is_open = True
            tokens = engine.stats()["generated_tokens"]
            time.sleep(0.05)
            assert engine.stats()["generated_tokens"] == tokens
        return await task

    done = in_time(main())
    assert len(done.token_ids) == 400 and done.token_versions()[-1] == 1 and looped.runs_on


def test_close_ends_running_requests_with_an_error(looped, gate):
    async def main():
        tasks = [start(looped, name) for name in "ab"]
        await asyncio.sleep(0)  # handed over
        gate.let_few()  # so that the second one is taken in
        await polled(lambda: looped.stats()["running"] == 2)
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


class Idle:
    """An engine that nobody asks for tokens."""

    context = vocabulary = 100
    own_weights, runs_on, step_deadline_s, error = True, False, 60.0, None

    def pause(self):
        pass

    def lost(self):
        return self.error

    def renewed(self):
        return Idle()


def test_caller_that_waits_for_another_times_out_and_loss_of_the_engine_is_passed_on(monkeypatch):
    engine = Idle()
    loop = EngineLoop(engine)
    with loop.standstill():
        monkeypatch.setattr(engine_loop, "GRACE_S", -59.4)  # it waits for a step and this
        with pytest.raises(DeadlineError, match=r"paused by another caller for more than 0\.6 s"):
            loop.sleep()
    assert loop.lost() is None and loop.own_weights and not loop.runs_on
    engine.error = "the process is gone"
    assert loop.lost() == "the process is gone"
    loop.renewed().close()
    loop._thread.join(30)
    assert not loop._thread.is_alive()


def test_a_sink_that_fails_harms_no_other(looped, nano):
    async def main():
        seen, trouble = [], []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: trouble.append(context["exception"]))

        def broken(token_id, log_prob):
            raise KeyError(token_id)

        sinks = [broken, lambda token_id, log_prob: seen.append(token_id)]
        (prompt, sampling), _ = requests(nano, count=2)
        answers = await asyncio.gather(
            *(looped.generate(Request(prompt, sampling, str(i)), sink) for i, sink in enumerate(sinks))
        )
        assert seen == answers[1].token_ids, "all of them, before the answer"
        assert [type(error) for error in trouble] == [KeyError] * len(answers[0].token_ids)

    asyncio.run(main())


def test_tokens_on_their_way_arrive_before_a_change_of_weights(looped, native, monkeypatch):
    order, publish = [], native.publish
    monkeypatch.setattr(native, "publish", lambda *args: (order.append("published"), publish(*args)))
    monkeypatch.setattr(native, "pause", lambda: looped._post(Reader, order.append, "token"))

    class Reader:
        call_soon_threadsafe = staticmethod(lambda function, *args: function(*args))
        call_soon = staticmethod(lambda function, *args: function(*args))

    looped.publish(None, 1)
    assert order == ["token", "published"]
