"""The child process that runs a scoring function: `python -m burnish.rewards.process`, started by pool.py.

Consumes calls (burnish/child): first the FunctionSpec, then one for each attempt, with its ScoreRequests and time
limit. A plain function runs in the main thread, one call at a time; an async one on one event loop, several calls at
once, each under its own time limit and ended by a CANCEL. No torch, no configuration, no asyncio for plain functions.
"""

import contextlib
import os
import pickle
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, NoReturn

from burnish import user_code
from burnish.child.frames import CALL, PART, Parent
from burnish.errors import ConfigError
from burnish.rewards.contract import FunctionSpec
from burnish.rewards.function import ScoreFunction, WeightedSum, bound, failure_text


def main() -> None:
    parent = Parent()
    sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    with contextlib.suppress(OSError):  # where the machine runs out of memory, this process goes before training does
        Path("/proc/self/oom_score_adj").write_text("1000")
    number, _, payload = parent.receive()
    spec: FunctionSpec
    spec, python_path, user_code.import_s = unpack(payload)
    user_code.report = lambda text: parent.send(number, text, PART)
    user_code.give_up = lambda text: parent.send(number, {"error": text})
    os.environ.pop("PYTHONPATH", None)  # set so that this process imports what its parent does: not for others
    if python_path is not None:
        os.environ["PYTHONPATH"] = python_path
    try:
        function = bound(spec)
    except ConfigError as error:
        parent.send(number, {"error": str(error)})
        return
    facts = {"concurrent": function.concurrent, "required": function.required, "batch": function.batch}
    parent.send(number, facts)
    serve = serve_concurrently if function.concurrent else serve_one_by_one
    serve(function, spec.label, parent)


def unpack(payload: bytes) -> Any:
    return pickle.loads(payload)  # noqa: S301  from the parent, through a private pipe


def serve_one_by_one(function: ScoreFunction | WeightedSum, label: str, parent: Parent) -> NoReturn:
    """A plain function may still return an awaitable (functools.partial, a lambda)."""
    runner: Any = None  # one event loop for all calls: what the function keeps may belong to it

    while True:
        number, _, payload = parent.receive()
        try:
            requests, _ = unpack(payload)
            value = function(*requests)
            if issubclass(type(value), Awaitable):  # unlike inspect, it asks nothing of the value itself
                import asyncio

                runner = runner or asyncio.Runner()
                answer = runner.run(answer_of(function, value, len(requests), label))
            else:
                answer = {"answers": function.answers(value, len(requests), label)}
        except BaseException:  # noqa: BLE001  also SystemExit: whatever the function raises is this call's failure
            answer = {"error": failure_text()}
        parent.send(number, answer)


def serve_concurrently(function: ScoreFunction | WeightedSum, label: str, parent: Parent) -> NoReturn:
    import asyncio

    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        running: dict[int, asyncio.Task[None]] = {}

        async def answer_one(number: int, payload: bytes) -> None:
            parent.send(number, await score_async(function, label, payload))

        def take(number: int, kind: int, payload: bytes) -> None:
            if kind == CALL:
                running[number] = loop.create_task(answer_one(number, payload))
                running[number].add_done_callback(lambda _: running.pop(number))
            elif number in running:
                running[number].cancel()

        parent.deliver(loop, take)
        while True:  # the end of the pipe ends the process
            # asyncio lets these two out of the loop as well as into whoever awaits the task that raised them. The
            # latter is enough: the loop continues, for the other calls' sake.
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                loop.run_forever()


async def score_async(function: ScoreFunction | WeightedSum, label: str, payload: bytes) -> dict[str, Any]:
    """The answer to one call, within its time limit. Cancelled, it cancels the function."""
    import asyncio

    try:
        requests, timeout = unpack(payload)
        value = function(*requests)
    except Exception:  # noqa: BLE001  as above
        return {"error": failure_text()}
    running = asyncio.ensure_future(answer_of(function, value, len(requests), label))
    try:
        done, _ = await asyncio.wait([running], timeout=timeout)
    finally:
        running.cancel()
    return running.result() if done else {"timed_out": True}


async def answer_of(
    function: ScoreFunction | WeightedSum, value: Awaitable[Any], count: int, label: str
) -> dict[str, Any]:
    """Raises and returns nothing of the user's: an exception that is no Exception would end more than its own task, and
    asyncio shows what a task returns or raises, which may fail."""
    try:
        return {"answers": function.answers(await value, count, label)}
    except BaseException:  # noqa: BLE001  as above
        return {"error": failure_text()}


if __name__ == "__main__":
    main()
