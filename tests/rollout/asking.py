"""Requests as tasks of a running event loop, and waits for what comes of them."""

import asyncio
import threading

from burnish.rollout.base import Request, Sampling

PATIENT_S = 60.0
LONG = Sampling(max_tokens=50, ignore_eos=True)


def in_time(work):
    """The result of a coroutine in a separate event loop."""

    async def bounded():
        return await asyncio.wait_for(work, PATIENT_S)

    return asyncio.run(bounded())


async def until(condition, seconds=0.0):
    """Let the loop turn until a condition holds."""
    while not condition():
        await asyncio.sleep(seconds)


async def polled(condition):
    """The same, where another thread brings it about."""
    await until(condition, 0.001)


async def passes(count):
    for _ in range(count):
        await asyncio.sleep(0)


def start(engine, name, prompt=(5, 6), sampling=LONG, order=(), on_token=None):
    return asyncio.create_task(engine.generate(Request(list(prompt), sampling, name, order), on_token))


def outcomes(engine, prompts):
    """Completions or errors of requests that come at once: name → prompt."""

    async def main():
        tasks = [start(engine, name, prompt) for name, prompt in prompts.items()]
        return await asyncio.gather(*tasks, return_exceptions=True)

    return asyncio.run(main())


def log_is_whole(replacing):
    """The thread that makes a new engine writes its last line when requests have continued already."""
    replacing._maker.join(PATIENT_S)
    assert not replacing._maker.is_alive()


def from_threads(ask, count):
    """What `ask(i)` gives for each `i`, awaited in the event loops of three threads."""
    found = {}

    def client(own):
        async def mine():
            return await asyncio.wait_for(asyncio.gather(*map(ask, own)), PATIENT_S)

        found.update(zip(own, asyncio.run(mine()), strict=True))

    clients = [threading.Thread(target=client, args=(range(part, count, 3),), daemon=True) for part in range(3)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join(PATIENT_S)
    return [found[i] for i in range(count)]
