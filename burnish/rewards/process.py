"""The child process that runs a scoring function: `python -m burnish.rewards.process`, started by child.py.

Consumes frames on what was its standard input: first the FunctionSpec, then calls, each with its ScoreRequests (one, or
for a function in the batch form any number); a frame without a payload cancels the call of its number, where the
function is async. Hands on one JSON frame per call on what was its standard output: an answer per request, or the error
of the whole call. Both descriptors are moved to private ones before user code runs: a function that prints writes to
standard error, one that reads gets an empty file, and neither can disturb the protocol.

The function is loaded once and called many times, so its state (module-level, or of an object of a user's class) lives
as long as the process, belongs to this process alone, and is lost when a time-out replaces it. A plain function runs in
the main thread, one call at a time. An async function runs on one event loop, several calls at once, each under its own
time limit.

The process waits only for the next frame. When the parent goes away the frames end, and a thread that does nothing
but read them ends this process and everything it started, even in the middle of a call. No torch is imported here.
"""

import asyncio
import contextlib
import inspect
import json
import os
import pickle
import queue
import signal
import struct
import sys
import threading
from collections.abc import Awaitable
from typing import IO, Any, NoReturn

from burnish.errors import ConfigError
from burnish.rewards.contract import FunctionSpec, ScoreRequest
from burnish.rewards.function import ScoreFunction, answers, bind, failure_text, load_function
from burnish.rewards.routing import default_compute_score

#: Payload length and the number of the call. Payloads are pickles towards the child (rows hold arbitrary Python values,
#: and the parent is trusted), JSON towards the parent (which must not trust a process that runs user code).
HEADER = struct.Struct(">IQ")
Waiting = queue.SimpleQueue[tuple[int, bytes]]  # (number of the call, payload)
HELLO = 0  # the number of the first frame and of its answer; calls count from 1
CANCEL = b""  # the payload that ends the call of its number


def frame(number: int, payload: bytes) -> bytes:
    return HEADER.pack(len(payload), number) + payload


def encoded(content: dict[str, Any]) -> bytes:
    return json.dumps(content).encode()


def unpack(payload: bytes) -> Any:
    return pickle.loads(payload)  # noqa: S301  from the parent, through a private pipe


def main() -> None:
    frames = os.fdopen(os.dup(0), "rb")
    parent = Parent(os.fdopen(os.dup(1), "wb"))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    waiting: Waiting = queue.SimpleQueue()
    threading.Thread(target=read_frames, args=(frames, waiting), daemon=True).start()
    spec: FunctionSpec
    spec, python_path = unpack(waiting.get()[1])
    restore_python_path(python_path)
    try:
        found = load_function(spec.path, spec.name) if spec.path else default_compute_score
        function = bind(found, spec.key, spec.reward_kwargs)
    except ConfigError as error:
        parent.send(HELLO, encoded({"error": str(error)}))
        return
    facts = {"concurrent": function.concurrent, "required": function.required, "batch": function.batch}
    parent.send(HELLO, encoded(facts))
    serve = serve_concurrently if function.concurrent else serve_one_by_one
    serve(function, spec.label, waiting, parent)


def restore_python_path(value: str | None) -> None:
    """The parent set PYTHONPATH so that this process imports what it does; other programs shall not inherit it."""
    os.environ.pop("PYTHONPATH", None)
    if value is not None:
        os.environ["PYTHONPATH"] = value


class Parent:
    """The way back to the parent."""

    def __init__(self, stream: IO[bytes]):
        self._stream = stream

    def send(self, number: int, payload: bytes) -> None:
        self._stream.write(frame(number, payload))
        self._stream.flush()


def read_frames(stream: IO[bytes], waiting: Waiting) -> NoReturn:
    """Queue every frame; where they end, end the process."""
    while True:
        header = stream.read(HEADER.size)
        if len(header) < HEADER.size:
            leave()
        length, number = HEADER.unpack(header)
        waiting.put((number, stream.read(length)))


def leave() -> NoReturn:
    """End this process and what the function may have started, at once: whoever would read the answers is gone."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def serve_one_by_one(function: ScoreFunction, label: str, waiting: Waiting, parent: Parent) -> NoReturn:
    with asyncio.Runner() as runner:
        while True:
            number, payload = waiting.get()
            parent.send(number, score_one(runner, function, label, payload))


def score_one(runner: asyncio.Runner, function: ScoreFunction, label: str, payload: bytes) -> bytes:
    """The answer to one call. A plain function may still return an awaitable (functools.partial, a lambda)."""
    try:
        requests: list[ScoreRequest]
        requests, _ = unpack(payload)
        value = function(*requests)
        if inspect.isawaitable(value):
            value = runner.run(_wait(value))
        return encoded({"answers": answers(function, value, len(requests), label)})
    except BaseException:  # noqa: BLE001  also SystemExit: whatever the function raises is this call's failure
        return encoded({"error": failure_text()})


def serve_concurrently(function: ScoreFunction, label: str, waiting: Waiting, parent: Parent) -> NoReturn:
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        running: dict[int, asyncio.Task[None]] = {}

        async def answer_one(number: int, payload: bytes) -> None:
            parent.send(number, await score_async(function, label, payload))

        def take(number: int, payload: bytes) -> None:
            if payload != CANCEL:
                running[number] = loop.create_task(answer_one(number, payload))
                running[number].add_done_callback(lambda _: running.pop(number))
            elif number in running:
                running[number].cancel()

        def hand_over() -> NoReturn:
            while True:
                loop.call_soon_threadsafe(take, *waiting.get())

        threading.Thread(target=hand_over, daemon=True).start()
        while True:  # `read_frames` ends the process
            # asyncio lets these two out of the loop as well as into whoever awaits the task that raised them. The
            # latter is enough: the loop goes on, for the other calls' sake.
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                loop.run_forever()


async def score_async(function: ScoreFunction, label: str, payload: bytes) -> bytes:
    """The answer to one call, within its time limit. Cancelled, it cancels the function."""
    try:
        requests: list[ScoreRequest]
        requests, timeout = unpack(payload)
    except Exception:  # noqa: BLE001  as above
        return encoded({"error": failure_text()})
    call = asyncio.ensure_future(call_async(function, label, requests))
    try:
        done, _ = await asyncio.wait([call], timeout=timeout)
    finally:
        call.cancel()
    return call.result() if done else encoded({"timed_out": True})


async def call_async(function: ScoreFunction, label: str, requests: list[ScoreRequest]) -> bytes:
    """Raises nothing: an exception that is no Exception would end more than its own task."""
    try:
        return encoded({"answers": answers(function, await function(*requests), len(requests), label)})
    except BaseException:  # noqa: BLE001  as above
        return encoded({"error": failure_text()})


async def _wait(value: Awaitable[Any]) -> Any:
    return await value


if __name__ == "__main__":
    main()
