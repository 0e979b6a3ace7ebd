"""Functions of the running program: scored in its threads, under the contract of scoring processes."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import closing

import pytest

from burnish.errors import ConfigError
from burnish.rewards import function, here
from burnish.rewards.contract import HERE, FunctionSpec, ScoreRequest
from burnish.rewards.pool import ScorePool

REQUEST = ScoreRequest("sums", "42", "42")


@pytest.fixture
def pool_of(monkeypatch):
    def make(score: Callable[..., object], **options):
        monkeypatch.setitem(function.objects, "score", score)
        return closing(ScorePool(FunctionSpec(HERE, "score"), **options))

    return make


def test_plain_and_async_functions_score(pool_of):
    async def later(solution_str, ground_truth):
        await asyncio.sleep(0)
        return {"score": solution_str == ground_truth, "by": threading.current_thread().name}

    for score in (later, lambda solution_str, ground_truth: later(solution_str, ground_truth)):
        with pool_of(score) as pool:
            result = pool.submit(REQUEST).result()
            assert result.score == 1.0 and result.info["by"] != "MainThread"
    assert "reward function" not in {thread.name for thread in threading.enumerate()}


def test_calls_of_an_async_function_overlap_and_those_of_a_plain_one_do_not(pool_of):
    both = threading.Barrier(2)

    async def meet(solution_str):
        await asyncio.to_thread(both.wait)
        return 1.0

    with pool_of(meet) as pool:
        assert [result.score for result in pool.submit_all([REQUEST] * 2).result()] == [1.0, 1.0]
    inside, most = [], []

    def alone(solution_str):
        inside.append(1)
        most.append(len(inside))
        inside.pop()
        return 1.0

    with pool_of(alone, num_workers=4) as pool:
        pool.submit_all([REQUEST] * 20).result()
    assert max(most) == 1


def test_late_call_fails_and_the_next_one_scores(pool_of, monkeypatch):
    monkeypatch.setattr(here, "GRACE_S", 0.2)
    release, first = threading.Event(), [True]

    def slow(solution_str):
        if first.pop() if first else False:
            release.wait()
        return 1.0

    async def blocked(solution_str):
        return slow(solution_str)

    async def waiting(solution_str):
        if first.pop() if first else False:
            await asyncio.Event().wait()
        return 1.0

    for score in (slow, blocked, waiting):
        first[:] = [True]
        with pool_of(score, timeout=0.2) as pool:
            late = pool.submit(REQUEST).result()
            assert late.error == "timed out: no score within reward.timeout=0.2 s"
            release.set()
            assert pool.submit(REQUEST).result().score == 1.0
        release.clear()


def test_failed_call_is_tried_again(pool_of):
    errors = [ValueError("once")]

    def score(solution_str):
        if errors:
            raise errors.pop()
        return 1.0

    with pool_of(score, retries=1) as pool:
        assert pool.submit(REQUEST).result().score == 1.0


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt()])
def test_function_that_raises_fails_its_sample(pool_of, error):
    def fail(solution_str):
        raise error

    with pool_of(fail) as pool:
        assert type(error).__name__ in pool.submit(REQUEST).result().error


def test_other_processes_say_that_they_do_not_have_it():
    with (
        closing(ScorePool(FunctionSpec(HERE, "gone"))) as pool,
        pytest.raises(ConfigError, match="gone was a function of"),
    ):
        pool.check()
