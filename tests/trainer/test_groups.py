"""Worker groups of a run, asked all at once."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest

from burnish.errors import WorkerError
from burnish.trainer.groups import write_captured


@dataclass
class Peer:
    passes: int  # of the event loop, before it has written
    problem: Exception | None = None
    has_ended: bool = False

    async def call(self, method, folder):
        assert method == "write_captured"
        for _ in range(self.passes):
            await asyncio.sleep(0)
        self.has_ended = True
        if self.problem is not None:
            raise self.problem


@dataclass
class Group:
    of: list[Peer]

    def peers(self):
        return self.of


def test_a_failure_is_reported_after_the_last_write():
    peers = [Peer(9), Peer(0, WorkerError("no space on rank 1")), Peer(5, OSError("rank 2")), Peer(20)]
    with pytest.raises(WorkerError, match="no space on rank 1"):
        write_captured(Group(peers), Path("run"))
    assert all(peer.has_ended for peer in peers)


def test_all_write():
    peers = [Peer(3), Peer(1)]
    write_captured(Group(peers), Path("run"))
    assert all(peer.has_ended for peer in peers)
