"""The engine's thread: every request ends with one last event, aborts are never lost, and `stop` leaves nothing."""

import asyncio
import threading

import pytest

from burnish.errors import RolloutError
from burnish.openai_wire.answers import Token
from burnish.rollout.base import Completion, Sampling
from burnish.serving.engine_thread import EngineThread

LONG = Sampling(max_tokens=100_000, ignore_eos=True)


def in_loop(model, talk):
    """Run `talk(engine thread)` in an event loop, then stop the thread."""

    async def main():
        thread = EngineThread(model.engine)
        try:
            return await asyncio.wait_for(talk(thread), 60)
        finally:
            await thread.stop()
            assert not thread.alive and "rollout-engine" not in {t.name for t in threading.enumerate()}

    return asyncio.run(main())


def submit(thread, name, sampling=LONG, prompt=(5, 6)):
    events = asyncio.Queue()
    thread.submit(name, prompt, sampling, events.put_nowait)
    return events


async def last_of(events):
    tokens = []
    while isinstance(event := await events.get(), Token):
        tokens.append(event)
    return tokens, event


def test_tokens_come_one_by_one_and_what_goes_wrong_reaches_its_own_request_only(talkative):
    async def talk(thread):
        sampling = Sampling(max_tokens=5, ignore_eos=True, seed=3)
        wrong, right = submit(thread, "a", prompt=(99_999,)), submit(thread, "b", sampling)
        found = (await last_of(wrong))[1], *await last_of(right)
        assert thread.in_flight == 0
        return found

    wrong, tokens, last = in_loop(talkative, talk)
    assert isinstance(wrong, RolloutError) and "99999" in str(wrong)
    assert isinstance(last, Completion) and len(tokens) == 5
    assert [t.id for t in tokens] == last.token_ids and [t.log_prob for t in tokens] == last.log_probs


def test_an_abort_right_after_the_request_is_not_lost(talkative):
    async def talk(thread):
        events = submit(thread, "a")
        thread.abort(["a", "never there"])
        return await last_of(events)

    tokens, last = in_loop(talkative, talk)
    assert last.finish_reason == "abort" and len(tokens) < LONG.max_tokens


def test_a_newcomer_does_not_wait_for_a_long_request_and_stop_ends_that(talkative):
    async def talk(thread):
        long = submit(thread, "long")
        await long.get()
        await last_of(submit(thread, "short", Sampling(max_tokens=3)))
        assert thread.in_flight == 1
        await thread.stop()
        with pytest.raises(RolloutError, match="has stopped"):
            submit(thread, "late")
        return await last_of(long)

    assert in_loop(talkative, talk)[1].finish_reason == "abort"
