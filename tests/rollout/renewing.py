"""What tests of engines that are replaced do alike."""

import asyncio

PATIENT_S = 60.0
LOOK_S = 0.05


def in_time(work):
    async def bounded():
        return await asyncio.wait_for(work, PATIENT_S)

    return asyncio.run(bounded())


async def until(condition):
    while not condition():
        await asyncio.sleep(0.001)


def all_have_asked(supervised, what, count):
    """Whether so many requests wait for the engine, or for a renewal."""
    return [request._awaits for request in list(supervised._requests)] == [what] * count


def log_is_whole(supervised):
    """The thread that makes a new engine writes its last line when requests go on already."""
    supervised._maker.join(PATIENT_S)
    assert not supervised._maker.is_alive()
