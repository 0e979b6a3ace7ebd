"""InteractionSession: the row's interaction is driven through a trajectory, and one that misbehaves ends it by name."""

import asyncio

import numpy as np
import pytest
import torch

from burnish.agents import guarded
from burnish.agents.interactions import BaseInteraction
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


def session_of(timeout=60.0, cls=Scripted, kwargs=None, **answers):
    interaction = cls(answers)
    return InteractionSession(interaction, {"name": "mine", **(kwargs or {})}, "t1", timeout), interaction


async def drive(session):
    try:
        await session.start()
        return await session.respond(MESSAGES), await session.score()
    finally:
        await session.close()


def test_a_trajectory_goes_through_all_methods_with_its_own_id():
    answers = {"start": "other id", "respond": (False, "go on", np.float32(0.25), {"doubts": 2})}
    session, interaction = session_of(kwargs={"ground_truth": "4"}, score=torch.tensor(1), **answers)
    turn, score = asyncio.run(drive(session))
    assert turn == InteractionTurn(False, "go on", 0.25, {"doubts": 2}) and score == 1.0
    assert type(turn.score) is type(score) is float
    assert interaction.calls == [
        ("start", "t1", {"name": "mine", "ground_truth": "4"}),
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

    asyncio.run(drive(session_of(timeout=None, cls=Meddling)[0]))
    assert MESSAGES[-1]["content"] == "a" and len(MESSAGES) == 2


@pytest.mark.parametrize(
    "answers, told",
    [
        ({"start": None}, "start_interaction returned None (NoneType); expected the instance id"),
        ({"respond": "done"}, "generate_response returned 'done' (str); expected (done, text, turn_score, data)"),
        ({"respond": (1, "x", 1.0, {})}, "done=1 (int); expected True or False"),
        ({"respond": (True, None, 1.0, {})}, "text=None (NoneType); expected a string"),
        ({"respond": (True, "x", float("nan"), {})}, "turn_score=nan (float); expected a finite number"),
        ({"respond": (True, "x", 1.0, None)}, "data=None (NoneType); expected a mapping"),
        ({"score": float("inf")}, "calculate_score returned score=inf (float)"),
    ],
)
def test_what_the_contract_does_not_allow_is_a_failure_that_is_reported(answers, told):
    session, interaction = session_of(**answers)
    with pytest.raises(ToolFailure) as failure:
        asyncio.run(drive(session))
    assert "interaction mine: " in str(failure.value) and told in str(failure.value)
    assert interaction.calls[-1][0] == "finalize"


METHODS = {"start": "start_interaction", "respond": "generate_response", "score": "calculate_score"}
METHODS["finalize"] = "finalize_interaction"


async def broken():
    raise KeyError("colour")


async def leaving():
    raise SystemExit(3)


@pytest.mark.parametrize("method, full_name", METHODS.items())
def test_what_an_interaction_raises_and_how_long_it_takes_end_the_trajectory_alone(method, full_name):
    late = "did not end in 0.05 s; make it quicker, or raise actor_rollout_ref.rollout.multi_turn.tool_timeout"
    plain = type("Plain", (Scripted,), {full_name: lambda *_, **__: "not awaited"})
    for cls, answers, told in (
        (Scripted, {method: broken}, "raised KeyError: 'colour'"),
        (Scripted, {method: leaving}, "raised RuntimeError: SystemExit(3)"),
        (Scripted, {method: asyncio.Event().wait}, late),
        (plain, {}, "raised TypeError: it is not a coroutine: write async def"),
    ):
        session, _ = session_of(timeout=0.05, cls=cls, **answers)
        with pytest.raises(ToolFailure) as failure:
            asyncio.run(drive(session))
        assert str(failure.value).startswith(f"interaction mine: {full_name} {told}")


def test_a_cancelled_trajectory_is_cancelled_and_closed_in_little_time(monkeypatch):
    monkeypatch.setattr(guarded, "CLOSING_S", 0.05)

    async def scenario():
        begun = asyncio.Event()

        async def respond():
            begun.set()
            await asyncio.Event().wait()

        session, interaction = session_of(timeout=600.0, respond=respond, finalize=asyncio.Event().wait)
        task = asyncio.create_task(drive(session))
        await begun.wait()
        task.cancel()
        await asyncio.wait({task}, timeout=60)
        assert task.done() and interaction.calls[-1] == ("finalize", "t1")

    asyncio.run(scenario())


def test_closing_finalizes_once_and_only_what_was_started_and_hides_no_failed_start():
    async def scenario():
        session, interaction = session_of()
        await session.close()
        assert interaction.calls == []
        await session.start()
        await session.close()
        await session.close()
        return interaction

    assert [call[0] for call in asyncio.run(scenario()).calls] == ["start", "finalize"]
    session, interaction = session_of(start=broken, finalize=broken)
    with pytest.raises(ToolFailure, match="start_interaction raised KeyError"):
        asyncio.run(drive(session))
    assert [call[0] for call in interaction.calls] == ["start", "finalize"]
