"""What tests of engines that are replaced do alike."""

import asyncio

PATIENT_S = 60.0


def in_time(work):
    async def bounded():
        return await asyncio.wait_for(work, PATIENT_S)

    return asyncio.run(bounded())


async def until(condition):
    while not condition():
        await asyncio.sleep(0.001)


def log_is_whole(replacing):
    """The thread that makes a new engine writes its last line when requests have continued already."""
    replacing._maker.join(PATIENT_S)
    assert not replacing._maker.is_alive()
