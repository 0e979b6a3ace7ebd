"""`native` and `hf` whose steps hang are replaced, each in the caller's event loop and in a thread of its own."""

import asyncio
import logging
import threading
import time

import pytest
import torch

from burnish.errors import EngineLost, RolloutError
from burnish.rollout.base import Request, Sampling
from burnish.rollout.engine_loop import EngineLoop
from burnish.rollout.hf.engine import HFEngine
from burnish.rollout.native.engine import NativeEngine
from burnish.rollout.supervised import Supervised
from tests.rollout.renewing import LOOK_S, PATIENT_S, all_have_asked, in_time, log_is_whole, until

ENGINES = ["native", "hf"]
PLACES = ["here", "thread"]
engines = pytest.mark.parametrize("name", ENGINES)
places = pytest.mark.parametrize("place", PLACES)


def make(name, module, tokenizer, deadline_s=600.0):
    if name == "hf":
        return HFEngine(module, tokenizer, max_num_seqs=16, step_deadline_s=deadline_s)
    return NativeEngine(
        module, tokenizer, max_num_seqs=16, blocks=160, block_size=8, prefix_caching=False, step_deadline_s=deadline_s
    )


class Hang:
    """The module's, or the decoder's, n-th call from now on does not end before the test does."""

    def __init__(self, monkeypatch, engine, calls):
        self.began, self.release = threading.Event(), threading.Event()
        self._left = calls
        if isinstance(engine, NativeEngine):
            monkeypatch.setattr(engine.runner, "decoder", self._around(engine.runner.decoder))
        else:
            monkeypatch.setattr(engine.module, "forward", self._around(engine.module.forward))

    def _around(self, function):
        def call(*args, **kwargs):
            self._left -= 1
            if self._left == 0:
                self.began.set()
                while not self.release.wait(0.01):  # Python code now and then, which can be ended
                    pass
            return function(*args, **kwargs)

        return call

    def age(self, supervised, count):
        """Once it hangs, and has so many requests, it has done so for too long. From another thread."""
        assert self.began.wait(PATIENT_S)
        engine = supervised.engine
        while not all_have_asked(supervised, engine, count):
            time.sleep(0.001)
        if isinstance(engine, EngineLoop):
            engine._sign = float("-inf")
        else:
            engine._watch._step.deadline = float("-inf")


@pytest.fixture
def supervise(monkeypatch):
    """`supervise(engine, place)`, and `supervise.hang(supervised, calls, count)` to have a step hang, of `count`
    requests."""
    made, hangs = [], []

    def around(engine, place):
        looped = EngineLoop(engine) if place == "thread" else engine
        made.append(Supervised(looped, look_s=LOOK_S))
        return made[-1]

    def hang(supervised, calls, count):
        engine = supervised.engine
        inner = engine._engine if isinstance(engine, EngineLoop) else engine
        hangs.append(Hang(monkeypatch, inner, calls))
        threading.Thread(target=hangs[-1].age, args=(supervised, count), daemon=True).start()
        return hangs[-1]

    around.hang = hang
    yield around
    for each in hangs:
        each.release.set()
    for engine in made:
        engine.close()


def requests(count=6):
    return [([5, 6 + i, 7], Sampling(max_tokens=6 + i, seed=i, ignore_eos=True)) for i in range(count)]


def same(found, expected, bits):
    assert [c.token_ids for c in found] == [c.token_ids for c in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.log_probs == (other.log_probs if bits else pytest.approx(other.log_probs, abs=1e-4))


@engines
@places
@pytest.mark.parametrize("calls", [1, 5])
def test_a_step_that_hangs(supervise, module, tokenizer, caplog, name, place, calls):
    """Requests come from other loops at their own pace, so in a thread batches, and rounding, may be others."""
    expected = make(name, module, tokenizer).run(requests())
    supervised = supervise(make(name, module, tokenizer), place)
    supervise.hang(supervised, calls, 6)
    assert module.training is False
    same(supervised.run(requests()), expected, bits=place == "here")
    counts = supervised.stats()
    assert counts["replica_restarts"] == 1 and counts["requests_again"] == 6 and counts["requests"] == 12
    assert supervised.in_flight == 0 and "while not self.release.wait(0.01)" in caplog.text
    same(supervised.run(requests()), expected, bits=place == "here")
    assert supervised.stats()["replica_restarts"] == 1


@engines
def test_a_thread_that_dies(supervise, module, tokenizer, monkeypatch, name):
    expected = make(name, module, tokenizer).run(requests())
    inner = make(name, module, tokenizer)
    supervised = supervise(inner, "thread")
    calls = 0

    def around(function):
        def call(*args, **kwargs):
            nonlocal calls
            calls += 1
            if calls == 4:
                while not all_have_asked(supervised, supervised.engine, 6):
                    time.sleep(0.001)
                raise SystemExit("enough")
            return function(*args, **kwargs)

        return call

    if name == "native":
        monkeypatch.setattr(inner.runner, "decoder", around(inner.runner.decoder))
    else:
        monkeypatch.setattr(module, "forward", around(module.forward))
    same(supervised.run(requests()), expected, bits=False)
    assert supervised.stats()["replica_restarts"] == 1 and supervised.stats()["requests_again"] == 6


@engines
@places
def test_an_exception_in_a_step_is_the_callers(supervise, module, tokenizer, monkeypatch, name, place):
    inner = make(name, module, tokenizer)
    supervised = supervise(inner, place)

    def broken(*_, **__):
        raise MemoryError("no room")

    with monkeypatch.context() as patch:
        if name == "native":
            patch.setattr(inner.runner, "decoder", broken)
        else:
            patch.setattr(module, "forward", broken)
        with pytest.raises(RolloutError, match="MemoryError: no room") as raised:
            supervised.run(requests(1))
    assert not isinstance(raised.value, EngineLost)
    assert supervised.stats()["replica_restarts"] == 0 and len(supervised.run(requests())) == 6


@pytest.fixture
def changed(module):
    """The module with other weights, as long as the test runs."""
    weight = module.get_input_embeddings().weight
    before = weight.detach().clone()
    other = {"model.embed_tokens.weight": before.flip(0)}
    yield other
    with torch.no_grad():
        weight.copy_(before)


@engines
@places
def test_the_new_engine_has_the_weights_last_published(supervise, module, tokenizer, changed, name, place):
    old = make(name, module, tokenizer).run(requests())
    supervised = supervise(make(name, module, tokenizer), place)
    supervised.publish([changed], 3)
    supervise.hang(supervised, 3, 6)
    found = supervised.run(requests())
    assert supervised.stats()["replica_restarts"] == 1
    assert {completion.policy_version for completion in found} == {3}
    same(found, make(name, module, tokenizer).run(requests()), bits=place == "here")
    assert [c.token_ids for c in found] != [c.token_ids for c in old]


@engines
def test_a_publish_that_failed_half_way_stays_refused(module, tokenizer, changed, name):
    engine = make(name, module, tokenizer)
    engine.publish(None, 2)
    with pytest.raises(RolloutError, match="is not part of"):
        engine.publish([changed, {"other": torch.zeros(1)}], 3)
    new = engine.renewed()
    assert type(new) is type(engine) and new.version == 2 and new.max_num_seqs == 16
    with pytest.raises(RolloutError, match="the last publish failed"):
        new.run(requests(1))
    new.publish(None, 4)
    assert new.run(requests(1))[0].policy_version == 4


@engines
@places
def test_abort_and_cancel_while_the_engine_is_renewed(supervise, module, tokenizer, monkeypatch, name, place):
    supervised = supervise(make(name, module, tokenizer), place)
    making, opens = threading.Event(), threading.Event()
    renewed = type(supervised.engine).renewed

    def slowly(engine):
        making.set()
        assert opens.wait(PATIENT_S)
        return renewed(engine)

    monkeypatch.setattr(type(supervised.engine), "renewed", slowly)
    supervise.hang(supervised, 4, 3)

    async def main():
        asked = requests(3)
        tasks = [
            asyncio.create_task(supervised.generate(Request(*ask, request_id=str(i)))) for i, ask in enumerate(asked)
        ]
        await until(making.is_set)
        supervised.abort("0")
        tasks[1].cancel()
        aborted = await tasks[0]
        with pytest.raises(asyncio.CancelledError):
            await tasks[1]
        opens.set()
        return aborted, await tasks[2]

    aborted, done = in_time(main())
    assert aborted.finish_reason == "abort" and aborted.token_ids == []
    assert done.token_ids == make(name, module, tokenizer).run(requests(3))[2].token_ids
    assert supervised.stats()["requests_again"] == 1


@engines
@places
def test_tokens_one_by_one_are_told_once(supervise, module, tokenizer, name, place):
    supervised = supervise(make(name, module, tokenizer), place)
    supervise.hang(supervised, 5, 3)
    told = {i: [] for i in range(3)}

    async def main():
        calls = [
            supervised.generate(Request(*ask, request_id=str(i)), on_token=lambda token, _, i=i: told[i].append(token))
            for i, ask in enumerate(requests(3))
        ]
        return await asyncio.gather(*calls)

    done = in_time(main())
    assert [told[i] for i in range(3)] == [completion.token_ids for completion in done]
    assert supervised.stats()["replica_restarts"] == 1


@engines
def test_several_event_loops_lose_a_thread(supervise, module, tokenizer, name):
    asked = requests(9)
    expected = make(name, module, tokenizer).run(asked)
    supervised = supervise(make(name, module, tokenizer), "thread")
    supervise.hang(supervised, 3, 9)
    found = {}

    def client(own):
        async def mine():
            return await asyncio.gather(
                *[supervised.generate(Request(*asked[i], request_id=str(i), order=(i,))) for i in own]
            )

        found.update(zip(own, in_time(mine()), strict=True))

    clients = [threading.Thread(target=client, args=(range(part, 9, 3),)) for part in range(3)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join(PATIENT_S)
    same([found[i] for i in range(9)], expected, bits=False)
    assert supervised.stats()["replica_restarts"] == 1


def test_what_was_done_is_in_the_log(supervise, module, tokenizer, caplog):
    supervised = supervise(make("native", module, tokenizer), "here")
    supervise.hang(supervised, 2, 2)
    with caplog.at_level(logging.WARNING, "burnish.rollout.supervised"):
        supervised.run(requests(2))
        log_is_whole(supervised)
    said = [record.getMessage() for record in caplog.records if record.name == "burnish.rollout.supervised"]
    assert said[0].startswith("the rollout engine is lost (the rollout engine is stuck: a decode step of 2 sequences")
    assert said[1:] == ["a new rollout engine (restart 1) has the weights; requests asked again: 2"]
