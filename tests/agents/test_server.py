"""One trajectory: its requests are waits with an owner and a deadline; its tokens, and where it is full."""

import asyncio
import time
from types import SimpleNamespace

import pytest

from burnish.agents.server import ServerManager, Transcript
from burnish.rollout.base import Completion, Sampling
from burnish.waits import longest, waiting


def test_every_request_is_a_wait_of_its_turn_with_the_deadline_of_its_trajectory():
    """Past it the runner cancels the trajectory; where something blocks the loop, the watchdog ends the process."""
    waits = []

    async def generate(request, on_token=None):
        waits.extend((wait.kind, wait.owner, wait.subject, wait.seconds) for wait in longest())
        return Completion([1], [0.0], "stop")

    async def asked(**limits):
        engine = SimpleNamespace(generate=generate)
        server = ServerManager(engine, Sampling(), namespace="train", seed=0, uid=3, sample=1, **limits)
        for _ in range(2):
            await server.generate(prompt_ids=[5])
        with waiting("tool", "", "what its tools wait for", 5.0) as wait:
            return wait.owner

    assert asyncio.run(asked()) == "uid 3, sample 1"
    assert waits == [("engine", f"uid 3, sample 1, turn {n}", f"request train/3.1.{n}", None) for n in (0, 1)]
    asyncio.run(asked(deadline=time.monotonic() + 600.0))
    assert [seconds for *_, seconds in waits[2:]] == pytest.approx([600, 600], abs=60)


class Server:
    """Samples `ids` in each turn, cut to `max_tokens`."""

    def __init__(self, *turns):
        self.turns, self.asked = list(turns), []

    async def generate(self, *, prompt_ids, sampling_params):
        self.asked.append((list(prompt_ids), sampling_params))
        ids, reason = self.turns.pop(0), "stop"
        if len(ids) > sampling_params["max_tokens"]:
            ids, reason = ids[: sampling_params["max_tokens"]], "length"
        return Completion(ids, [-float(i) for i in ids], reason, ids[-1] if reason == "stop" else None, 0)


def sample(transcript, params=None, **changes):
    return asyncio.run(transcript.sample(params or {}, **changes))


@pytest.mark.parametrize(("asked", "room", "allowed"), [(None, 10, 10), (4, 10, 4), (40, 10, 10), (4, 3, 3)])
def test_a_turn_has_the_room_that_is_left_and_no_more_than_was_asked(asked, room, allowed):
    server = Server([1] * 50)
    transcript = Transcript(server, [1], room)
    sample(transcript, {} if asked is None else {"max_tokens": asked})
    assert server.asked[0][1]["max_tokens"] == allowed
    if allowed == room:  # the turn ran out of it
        assert not transcript.is_full and transcript.room == 0
        assert transcript.output().extra_fields == {}, "the runner tells it from the last completion"


@pytest.mark.parametrize(("length", "fits"), [(7, True), (8, False), (9, False)])
def test_an_observation_leaves_room_for_the_policy_to_continue(length, fits):
    transcript, extra = Transcript(Server([5, 6]), [1], 10), {}
    sample(transcript)
    assert transcript.observe([3] * length) is fits
    assert transcript.is_full is not fits
    output = transcript.output(extra_fields=extra)
    assert extra == {}, "what was given stays as it was"
    assert output.response_ids == ([5, 6] + [3] * length if fits else [5, 6])
    assert output.extra_fields == ({} if fits else {"finish_reason": "length"})
