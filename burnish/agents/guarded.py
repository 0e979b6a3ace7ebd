"""The boundary to user code: tools, interactions and agent programs, which may raise, hang, block or return nonsense.

`within` awaits a call for some seconds and returns its result, or raises a `ToolFailure` for whatever goes wrong in it.
`in_thread` calls what may block. What does not end when it is cancelled, such as a thread, is left behind; what blocks
the event loop cannot be stopped from here.
"""

import asyncio
import inspect
import numbers
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from burnish.errors import ToolFailure, text_of
from burnish.waits import waiting

TIMEOUT_KEY = "actor_rollout_ref.rollout.multi_turn.tool_timeout"
ENDING_S = 1.0  # for a call that was cancelled
CLOSING_S = 5.0  # for what closes a trajectory that was cancelled, and so has had its time


def finite(value: Any) -> float | None:
    """A number, also a scalar of numpy or torch; None for NaN, infinity, True, False and all else."""
    number: Any = value.tolist() if hasattr(value, "tolist") else value
    is_number = isinstance(number, numbers.Real) and not isinstance(number, bool)
    return float(number) if is_number and abs(number) <= sys.float_info.max else None


async def within(
    seconds: float | None,
    about: str,
    call: Coroutine[Any, Any, Any],
    observed: tuple[type[Exception], ...] = (),
    hint: str = f"; make it quicker, or raise {TIMEOUT_KEY}",
) -> Any:
    """What `call` returns, or a ToolFailure that begins with `about` if it raises (unless that is one of `observed`) or
    is late (`hint` is what to do then). When this returns, the call is over, or had its time to end after it was
    cancelled."""
    task = asyncio.ensure_future(call)
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # one left behind is not reported
    with waiting("tool", "", about, seconds) as wait:
        try:
            await asyncio.wait({task}, timeout=seconds)
            if not task.done():
                wait.overdue()  # while it still is where it hangs
        finally:
            late = task.cancel()
            if late:
                await asyncio.wait({task}, timeout=ENDING_S)
    if late:
        raise ToolFailure(f"{about} did not end in {seconds:g} s{hint}")
    error = asyncio.CancelledError() if task.cancelled() else task.exception()
    if error is None:
        return task.result()
    if isinstance(error, observed):
        raise error
    if isinstance(error, ToolFailure):
        raise ToolFailure(f"{about}: {text_of(error)}") from error
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    raised = "".join(traceback.format_exception_only(error)).strip()  # also of one that cannot be made text
    raise ToolFailure(f"{about} raised {raised}{place}") from error


async def awaited(function: Callable[..., Any], /, *arguments: Any, **kwargs: Any) -> Any:
    """What a method that should be a coroutine function returns, for `within`."""
    try:
        returned = function(*arguments, **kwargs)
        if not inspect.isawaitable(returned):
            raise TypeError("it is not a coroutine: write async def")
        return await returned
    except SystemExit as error:  # which would end the event loop, and the run with it
        raise RuntimeError(f"SystemExit({text_of(error)})") from error


def closing_limit(seconds: float | None) -> float | None:
    """The limit of each call that closes the current trajectory: short if it was cancelled, as by its deadline."""
    task = asyncio.current_task()
    if task is None or not task.cancelling():
        return seconds
    return CLOSING_S if seconds is None else min(seconds, CLOSING_S)


async def in_thread(function: Callable[[], Any], name: str) -> Any:
    """Call it in a new thread. Not in a pool: a pool has few threads, and the process waits for them when it ends."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def settle(outcome: tuple[Any, BaseException | None]) -> None:
        if not done.done():  # the call may have been given up
            done.set_result(outcome)

    def work() -> None:
        outcome: tuple[Any, BaseException | None]
        try:
            outcome = (function(), None)
        except BaseException as error:  # noqa: BLE001  raised below, in the caller's thread
            outcome = (None, error)
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(settle, outcome)

    threading.Thread(target=work, name=name, daemon=True).start()
    result, error = await done
    if error is not None:
        raise error
    return result
