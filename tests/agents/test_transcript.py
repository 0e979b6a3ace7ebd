"""One trajectory's tokens: what is asked of the engine, what is kept, and where it is full."""

import asyncio

import pytest

from burnish.agents.transcript import Transcript
from burnish.rollout.base import Completion


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


def test_turns_and_observations_follow_each_other():
    server = Server([5, 6], [7])
    transcript = Transcript(server, [1, 2], 10)
    assert sample(transcript, {"temperature": 0.5, "stop": ("a",)}, stop=("b",)).token_ids == [5, 6]
    assert transcript.observe([8, 9]) and transcript.room == 6
    sample(transcript)
    assert server.asked == [
        ([1, 2], {"temperature": 0.5, "stop": ("b",), "max_tokens": 10}),
        ([1, 2, 5, 6, 8, 9], {"max_tokens": 6}),
    ]
    output = transcript.output(num_turns=4, metrics={"a": 1}, extra_fields={"retrieved": ["x"]})
    assert (output.prompt_ids, output.response_ids) == ([1, 2], [5, 6, 8, 9, 7])
    assert (output.response_mask, output.response_logprobs) == ([1, 1, 0, 0, 1], [-5.0, -6.0, 0.0, 0.0, -7.0])
    assert (output.num_turns, output.metrics, output.extra_fields) == (4, {"a": 1}, {"retrieved": ["x"]})
    assert len(transcript.turns) == 2 and not transcript.is_truncated


@pytest.mark.parametrize(("asked", "room", "allowed"), [(None, 10, 10), (4, 10, 4), (40, 10, 10), (4, 3, 3)])
def test_a_turn_has_the_room_that_is_left_and_no_more_than_was_asked(asked, room, allowed):
    server = Server([1] * 50)
    sample(Transcript(server, [1], room), {} if asked is None else {"max_tokens": asked})
    assert server.asked[0][1]["max_tokens"] == allowed


@pytest.mark.parametrize(("length", "fits"), [(7, True), (8, False), (9, False)])
def test_an_observation_leaves_room_for_the_policy_to_continue(length, fits):
    transcript = Transcript(Server([5, 6]), [1], 10)
    sample(transcript)
    assert transcript.observe([3] * length) is fits
    assert (transcript.is_full, transcript.is_truncated) == (not fits, not fits)
    output = transcript.output()
    assert output.response_ids == ([5, 6] + [3] * length if fits else [5, 6])
    assert output.extra_fields == ({} if fits else {"finish_reason": "length"})


def test_a_turn_that_ran_out_of_room_is_truncated():
    transcript = Transcript(Server([5] * 20), [1], 10)
    sample(transcript)
    assert transcript.is_truncated and not transcript.is_full and transcript.room == 0
    assert transcript.output().extra_fields == {}, "the runner tells it from the last completion"


def test_before_the_first_turn_nothing_is_truncated():
    assert not Transcript(Server(), [1], 10).is_truncated


def test_the_output_does_not_change_what_it_was_given():
    transcript, extra = Transcript(Server([5]), [1], 2), {"retrieved": []}
    sample(transcript)
    transcript.observe([1, 2, 3])
    assert transcript.output(extra_fields=extra).extra_fields["finish_reason"] == "length" and extra == {
        "retrieved": []
    }
