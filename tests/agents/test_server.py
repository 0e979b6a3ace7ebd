"""A trajectory's requests are waits with an owner, and with the deadline of the trajectory where it has one."""

import asyncio
import time

import pytest

from burnish.agents.server import ServerManager
from burnish.rollout.base import Completion, Sampling
from burnish.waits import longest, waiting


class Engine:
    """Answers as the test says; keeps what was waited for meanwhile."""

    def __init__(self, answer):
        self.answer, self.waits = answer, []

    async def generate(self, request, on_token=None):
        self.waits += [(wait.kind, wait.owner, wait.subject, wait.seconds) for wait in longest()]
        await self.answer()
        return Completion([1], [0.0], "stop")


async def at_once():
    pass


def asked(engine, **limits):
    async def run():
        server = ServerManager(engine, Sampling(), namespace="train", seed=0, uid=3, sample=1, **limits)
        for _ in range(2):
            await server.generate(prompt_ids=[5])
        with waiting("tool", "", "what its tools wait for", 5.0) as wait:
            return wait.owner

    return asyncio.run(run())


def test_every_request_is_a_wait_of_its_turn():
    engine = Engine(at_once)
    assert asked(engine) == "uid 3, sample 1"
    assert engine.waits == [
        ("engine", f"uid 3, sample 1, turn {turn}", f"request train/3.1.{turn}", None) for turn in (0, 1)
    ]


def test_a_request_has_the_deadline_of_its_trajectory():
    """Past it the runner cancels the trajectory; where something blocks the loop, the watchdog ends the process."""
    engine = Engine(at_once)
    asked(engine, deadline=time.monotonic() + 600.0)
    assert [seconds for *_, seconds in engine.waits] == pytest.approx([600, 600], abs=60)
