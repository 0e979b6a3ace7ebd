"""Timers of users' loops and workers."""

import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any


@contextmanager
def simple_timer(name: str, timing_raw: MutableMapping[str, float]) -> Iterator[None]:
    """Adds the seconds of the block to `timing_raw[name]`."""
    start = time.perf_counter()
    yield
    timing_raw[name] = timing_raw.get(name, 0.0) + time.perf_counter() - start


@contextmanager
def marked_timer(name: str, timing_raw: MutableMapping[str, float], *marks: Any, **more: Any) -> Iterator[None]:
    """`simple_timer`; colours and domains of a profiler are not read."""
    with simple_timer(name, timing_raw):
        yield
