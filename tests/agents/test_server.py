"""A trajectory's requests are waits with an owner, and with the deadline of the trajectory where it has one."""

import asyncio
import time
from pathlib import Path

import pytest

from burnish.agents.server import ServerManager
from burnish.errors import DeadlineError
from burnish.rollout.base import Completion, Sampling
from burnish.tracking import watchdog
from burnish.tracking.watchdog import Watchdog
from burnish.waits import longest, ran, waiting


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


def be_late():
    """The request has come this far, however long that took; now its time is over."""
    (wait,) = [wait for wait in longest() if wait.subject == "request train/3.1.0"]
    assert wait.seconds == pytest.approx(600, abs=60)
    wait.deadline = ran()


async def never():
    be_late()
    await asyncio.Event().wait()


async def blocking():
    be_late()
    time.sleep(1000)


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


@pytest.mark.parametrize("hang", [never, blocking])
def test_a_completion_that_never_comes_is_ended_at_the_deadline(tmp_path, monkeypatch, hang):
    monkeypatch.setattr(watchdog, "LOOK_S", 0.02)
    monkeypatch.setattr(watchdog, "GRACE_S", 0.5)
    monkeypatch.setattr(watchdog, "TRIES", 1000)  # or else it ends this process, should that stand still for some time
    monkeypatch.setattr(watchdog, "WRITING_S", 60.0)
    dog = Watchdog(tmp_path, "controller")
    dog.start()
    try:
        with pytest.raises(DeadlineError, match=r"request train/3\.1\.0 \(uid 3, sample 1, turn 0\) has not ended"):
            asked(Engine(hang), deadline=time.monotonic() + 600.0)
    finally:
        dog.stop()
    (file,) = Path(tmp_path, "stacks").iterdir()
    assert f"in {hang.__name__}" in file.read_text()
