"""InteractionSession: the row's interaction is driven through a trajectory, and one that misbehaves ends it by name."""

import asyncio

import numpy as np
import pytest
import torch

from burnish.agents import guarded
from burnish.agents.interactions import BaseInteraction
from burnish.agents.interactions.load import load_interactions
from burnish.agents.interactions.session import InteractionSession, InteractionTurn
from burnish.errors import ToolFailure


class Scripted(BaseInteraction):
    """Returns what `config` says from each method, after running it where it is a function; keeps the calls."""

    def __init__(self, config):
        super().__init__(config)
        self.calls = []

    async def _answer(self, method, default, *arguments):
        self.calls.append((method, *arguments))
        answer = self.config.get(method, default)
        return await answer() if callable(answer) else answer

    async def start_interaction(self, instance_id=None, **kwargs):
        return await self._answer("start", instance_id, instance_id, kwargs)

    async def generate_response(self, instance_id, messages, **kwargs):
        return await self._answer("respond", (False, "go on", 0.25, {"doubts": 2}), instance_id, messages)

    async def calculate_score(self, instance_id, **kwargs):
        return await self._answer("score", 0.5, instance_id)

    async def finalize_interaction(self, instance_id, **kwargs):
        await self._answer("finalize", None, instance_id)


MESSAGES = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]


def session_of(timeout=60.0, **answers):
    interaction = Scripted(answers)
    return InteractionSession({"mine": interaction}, "t1", timeout), interaction


async def drive(session, kwargs=None):
    try:
        await session.start({"name": "mine", **(kwargs or {})})
        return await session.respond(MESSAGES), await session.score()
    finally:
        await session.close()


def test_a_trajectory_goes_through_all_methods_with_its_own_id():
    session, interaction = session_of(start="other id")
    turn, score = asyncio.run(drive(session, {"ground_truth": "4", "method": "strict"}))
    assert turn == InteractionTurn(False, "go on", 0.25, {"doubts": 2}) and score == 0.5
    assert interaction.calls == [
        ("start", "t1", {"name": "mine", "ground_truth": "4", "method": "strict"}),
        ("respond", "other id", MESSAGES),
        ("score", "other id"),
        ("finalize", "other id"),
    ]


def test_messages_of_the_trajectory_are_the_interactions_to_read_only():
    class Meddling(Scripted):
        async def generate_response(self, instance_id, messages, **kwargs):
            messages[-1]["content"] = "changed"
            messages.clear()
            return True, "", 0.0, {}

    session = InteractionSession({"mine": Meddling({})}, "t1", None)
    asyncio.run(drive(session))
    assert MESSAGES[-1]["content"] == "a" and len(MESSAGES) == 2


def test_scalars_of_arrays_count_as_numbers():
    session, _ = session_of(respond=(True, "", np.float32(0.5), {}), score=torch.tensor(1))
    turn, score = asyncio.run(drive(session))
    assert turn.score == 0.5 and score == 1.0 and type(turn.score) is type(score) is float


@pytest.mark.parametrize(
    "answers, told",
    [
        ({"start": None}, "start_interaction returned None (NoneType); expected the instance id"),
        ({"respond": "done"}, "generate_response returned 'done' (str); expected (done, text, turn_score, data)"),
        ({"respond": (True, "x", 1.0)}, "expected (done, text, turn_score, data)"),
        ({"respond": (1, "x", 1.0, {})}, "done=1 (int); expected True or False"),
        ({"respond": (True, None, 1.0, {})}, "text=None (NoneType); expected a string"),
        ({"respond": (True, "x", float("nan"), {})}, "turn_score=nan (float); expected a finite number"),
        ({"respond": (True, "x", True, {})}, "turn_score=True (bool); expected a finite number"),
        ({"respond": (True, "x", np.zeros(3), {})}, "turn_score=array([0., 0., 0.]) (ndarray)"),
        ({"respond": (True, "x", 10**400, {})}, "expected a finite number"),
        ({"respond": (True, "x", 1.0, None)}, "data=None (NoneType); expected a mapping"),
        ({"score": float("inf")}, "calculate_score returned score=inf (float)"),
        ({"score": "1"}, "calculate_score returned score='1' (str)"),
    ],
)
def test_what_the_contract_does_not_allow_is_a_failure_that_is_reported(answers, told):
    session, interaction = session_of(**answers)
    with pytest.raises(ToolFailure) as failure:
        asyncio.run(drive(session))
    assert "interaction mine: " in str(failure.value) and told in str(failure.value)
    assert interaction.calls[-1][0] == "finalize"


@pytest.mark.parametrize(
    "method, full_name",
    [
        ("start", "start_interaction"), ("respond", "generate_response"), ("score", "calculate_score"),
        ("finalize", "finalize_interaction"),
    ],
)  # fmt: skip
def test_what_an_interaction_raises_and_how_long_it_takes_end_the_trajectory_alone(method, full_name):
    async def broken():
        raise KeyError("colour")

    async def exits():
        raise SystemExit(3)

    async def hangs():
        await asyncio.sleep(60)

    async def clings():
        while True:
            try:
                await asyncio.sleep(0.3)
                return
            except asyncio.CancelledError:
                pass

    async def cancels_itself():
        raise asyncio.CancelledError

    async def own_timeout():
        raise TimeoutError("of its own")

    late = "did not end in 0.05 s; make it quicker, or raise actor_rollout_ref.rollout.multi_turn.tool_timeout"
    for answer, told in (
        (broken, "raised KeyError: 'colour'"),
        (exits, "raised RuntimeError: SystemExit(3)"),
        (own_timeout, "raised TimeoutError: of its own"),
        (cancels_itself, "raised asyncio.exceptions.CancelledError"),
        (hangs, late),
        (clings, late),
    ):
        session, _ = session_of(timeout=0.05, **{method: answer})
        with pytest.raises(ToolFailure) as failure:
            asyncio.run(drive(session))
        assert str(failure.value).startswith(f"interaction mine: {full_name} {told}")


def test_a_method_that_is_no_coroutine_is_a_failure_too():
    class Plain(BaseInteraction):
        def generate_response(self, instance_id, messages, **kwargs):
            return True, "", 0.0, {}

        def calculate_score(self):
            return 0.0

    async def both():
        session = InteractionSession({"mine": Plain({})}, "t1", 1.0)
        await session.start({"name": "mine"})
        for call in (session.respond(MESSAGES), session.score()):
            with pytest.raises(ToolFailure, match="raised TypeError"):
                await call

    asyncio.run(both())


def test_a_cancelled_trajectory_is_cancelled_and_not_a_failure():
    async def scenario():
        begun = asyncio.Event()

        async def respond():
            begun.set()
            await asyncio.Event().wait()

        session, interaction = session_of(respond=respond)
        task = asyncio.create_task(drive(session))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return interaction

    assert asyncio.run(scenario()).calls[-1] == ("finalize", "t1")


def test_closing_a_cancelled_trajectory_does_not_take_the_time_of_a_call(monkeypatch):
    monkeypatch.setattr(guarded, "CLOSING_S", 0.05)

    async def scenario():
        session, _ = session_of(timeout=600.0, respond=asyncio.Event().wait, finalize=asyncio.Event().wait)
        task = asyncio.create_task(drive(session))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait({task}, timeout=60)
        assert task.done()

    asyncio.run(scenario())


def test_what_follows_from_a_failed_start_does_not_hide_it():
    async def broken():
        raise KeyError("colour")

    session, interaction = session_of(start=broken, finalize=broken)
    with pytest.raises(ToolFailure, match="start_interaction raised KeyError"):
        asyncio.run(drive(session))
    assert [call[0] for call in interaction.calls] == ["start", "finalize"]


def test_closing_finalizes_once_and_only_what_was_started():
    async def scenario():
        session, interaction = session_of()
        await session.close()
        assert interaction.calls == []
        await session.start({"name": "mine"})
        await session.close()
        await session.close()
        return interaction

    assert [call[0] for call in asyncio.run(scenario()).calls] == ["start", "finalize"]


@pytest.mark.parametrize(
    "kwargs, told",
    [
        (
            {"name": "gsm8"},
            "interaction_kwargs.name=gsm8: there is no such interaction; did you mean gsm8k? (this run has gsm8k)",
        ),
        ({"query": "1+1"}, "interaction_kwargs.name=None: a row names one of its run's interactions: gsm8k"),
    ],
)
def test_an_unknown_interaction_is_reported_with_the_known_ones(kwargs, told):
    session = InteractionSession(load_interactions(None), "t1", 1.0)
    with pytest.raises(ToolFailure) as failure:
        asyncio.run(session.start(kwargs))
    assert told in str(failure.value)
