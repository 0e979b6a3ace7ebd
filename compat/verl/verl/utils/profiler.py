"""Timers of users' loops."""

import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager


@contextmanager
def simple_timer(name: str, timing_raw: MutableMapping[str, float]) -> Iterator[None]:
    """Adds the seconds of the block to `timing_raw[name]`."""
    start = time.perf_counter()
    yield
    timing_raw[name] = timing_raw.get(name, 0.0) + time.perf_counter() - start
