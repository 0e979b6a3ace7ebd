"""Reward functions as files, and a check that no child process is left behind."""

import os
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from burnish.rewards.contract import FunctionSpec, ScoreRequest
from burnish.rewards.pool import ScorePool


def cases(table: str) -> list[str]:
    """Texts of a table: one a line, or several with ;; between them."""
    return [case.strip() for line in table.split("\n") for case in line.split(" ;; ") if case.strip()]


@contextmanager
def quick(about: str = "") -> Iterator[None]:
    """What is done in it takes little processor time."""
    began = time.process_time()
    yield
    assert time.process_time() - began < 5.0, about[:40]


@pytest.fixture
def reward_file(tmp_path: Path) -> Callable[..., str]:
    """Writes Python source to a file and gives its path."""

    def write(source: str, name: str = "my_reward.py") -> str:
        path = tmp_path / name
        path.write_text(textwrap.dedent(source))
        return str(path)

    return write


@pytest.fixture
def make_pool(reward_file: Callable[..., str]) -> Iterator[Callable[..., ScorePool]]:
    """Makes pools over a function's source; they are closed afterwards and must leave no process."""
    pools: list[ScorePool] = []

    def make(
        source: str,
        *,
        num_workers: int = 1,
        timeout: float = 60.0,
        retries: int = 0,
        at_once: int | None = None,
        **spec,
    ) -> ScorePool:
        function = FunctionSpec(reward_file(source), **spec)
        pools.append(ScorePool(function, num_workers, timeout, retries, at_once=at_once))
        return pools[-1]

    before = children()
    yield make
    for pool in pools:
        pool.close()
    assert children() <= before


@pytest.fixture
def request_of() -> Callable[..., ScoreRequest]:
    def make(text: str = "4", ground_truth: object = "4", **extra_info) -> ScoreRequest:
        return ScoreRequest("test/source", text, ground_truth, extra_info)

    return make


def children() -> set[int]:
    """Processes whose parent is this one, ended but not reaped ones included."""
    return {int(path.parent.name) for path in Path("/proc").glob("[0-9]*/stat") if _parent(path) == os.getpid()}


def _parent(stat: Path) -> int:
    try:
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):  # it ended in the meantime
        return -1


@pytest.fixture(scope="module")
def no_algebra_process_left():
    """The helper process of the mathematics scorers ends with the tests of a file."""
    from burnish.rewards.equivalence import algebra

    yield
    algebra.stop()
