"""Reward functions as files, programs in the real sandbox, and a check that no child process is left behind."""

import asyncio
import os
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from burnish.rewards.contract import FunctionSpec, ScoreRequest
from burnish.rewards.pool import ScorePool
from burnish.rewards.scores.code import compute_score
from burnish.sandbox.local import LocalSandbox


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


SANDBOX = {"timeout": 2.0, "memory_limit_mb": 256, "max_concurrent": 6}


def need_sandbox() -> None:
    """Skip, with the reason, where this machine permits no isolation."""
    sandbox = LocalSandbox()
    reason = asyncio.run(sandbox.unavailable_reason())
    sandbox.close()
    if reason is not None:
        pytest.skip(reason)


def score_all(solutions: Mapping[str, str], ground_truth: Any, **options: Any) -> dict[str, dict[str, Any]]:
    settings = {"sandbox": SANDBOX, **options}

    async def run() -> list[dict[str, Any]]:
        texts = [f"Here it is.\n```python\n{source}\n```" for source in solutions.values()]
        return await asyncio.gather(*(compute_score(text, ground_truth, {}, **settings) for text in texts))

    return dict(zip(solutions, asyncio.run(run()), strict=True))


def score(solution: str, ground_truth: Any, **options: Any) -> dict[str, Any]:
    return score_all({"it": solution}, ground_truth, **options)["it"]
