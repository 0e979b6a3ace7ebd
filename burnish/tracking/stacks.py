"""Where the threads and the tasks of this process are. `Places` are noted in memory alone, by whoever finds a wait
late; `as_text` reads the source lines, so it may hang with the disk, and is called by the thread that writes."""

import asyncio
import itertools
import sys
import threading
import traceback
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any

from burnish.waits import Wait

FRAMES = 40  # of a stack, the innermost
NAMES = 8  # tasks that are at the same place and are named

Stack = tuple[tuple[str, int | None, str], ...]  # file, line and function; the innermost last


@dataclass(frozen=True)
class Places:
    """The stack of every thread, with what is waited for in it; of every event loop that something waits in, the tasks
    by the place they are at."""

    threads: list[tuple[str, Stack]]
    loops: list[tuple[str, dict[Stack, list[str]]]]


def note(waits: Iterable[Wait]) -> Places:
    waits = list(waits)
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    inside: dict[int, list[Wait]] = defaultdict(list)
    for wait in waits:
        inside[wait.thread].append(wait)
    threads: list[tuple[str, Stack]] = []
    for ident, frame in sys._current_frames().items():
        own = inside[ident]
        mark = f", which waits for {own[0]}" if own else ""
        mark += f" and {len(own) - 1} more" if len(own) > 1 else ""
        frames = itertools.islice(traceback.walk_stack(frame), FRAMES)
        stack = tuple((inner.f_code.co_filename, line, inner.f_code.co_name) for inner, line in frames)
        threads.append((f"{names.get(ident, ident)}{mark}", stack[::-1]))
    loops = {wait.task.get_loop(): wait.thread for wait in waits if wait.task is not None}
    return Places(threads, [(str(names.get(thread, thread)), _tasks(loop)) for loop, thread in loops.items()])


def _tasks(loop: asyncio.AbstractEventLoop) -> dict[Stack, list[str]]:
    names: dict[Stack, list[str]] = defaultdict(list)
    for task in asyncio.all_tasks(loop):
        names[places_of(task.get_coro())[-FRAMES:]].append(task.get_name())
    return names


def places_of(awaited: Any) -> Stack:
    """Where a suspended coroutine is: its line, and those of the coroutines that it waits for."""
    places: list[tuple[str, int | None, str]] = []
    while (found := _inside(awaited)) is not None:
        frame, awaited = found
        places.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
    return tuple(places)


def as_text(places: Places) -> str:
    parts = [f"thread {name}:\n{lines_of(stack)}" for name, stack in places.threads]
    for name, tasks in places.loops:
        parts.append(f"tasks of the event loop in thread {name}:\n")
        for stack, those in sorted(tasks.items(), key=lambda item: -len(item[1])):
            more = f" and {len(those) - NAMES} more" if len(those) > NAMES else ""
            place = lines_of(stack) or "  (has not begun, or runs now)"
            parts.append(f"{'; '.join(sorted(those)[:NAMES])}{more}:\n{place}\n")
    return "\n".join(parts)


def lines_of(stack: Stack) -> str:
    return "".join(traceback.format_list([traceback.FrameSummary(*place) for place in stack]))


def _inside(awaited: Any) -> tuple[Any, Any] | None:
    """The frame of a suspended coroutine and what it awaits; None where there is none."""
    if isinstance(awaited, CoroutineType):
        frame, inner = awaited.cr_frame, awaited.cr_await
    elif isinstance(awaited, GeneratorType):
        frame, inner = awaited.gi_frame, awaited.gi_yieldfrom
    elif isinstance(awaited, AsyncGeneratorType):
        frame, inner = awaited.ag_frame, awaited.ag_await
    else:
        return None
    return None if frame is None else (frame, inner)
