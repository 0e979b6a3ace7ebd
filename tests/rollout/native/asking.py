"""Requests as tasks of a running event loop."""

import asyncio

import pytest

from burnish.rollout.base import Request, Sampling

LONG = Sampling(max_tokens=50, ignore_eos=True)
aheads = pytest.mark.parametrize("ahead", [0, 3])


async def until(condition, passes=20_000):
    """Let the loop turn until a condition holds."""
    for _ in range(passes):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("the condition never held")


def start(engine, name, prompt=(5, 6), sampling=LONG, order=(), on_token=None):
    return asyncio.create_task(engine.generate(Request(list(prompt), sampling, name, order), on_token))
