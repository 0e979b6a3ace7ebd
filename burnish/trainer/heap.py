"""Python's garbage collector during a run: it looks at what the run makes, not at what was there before.

A full collection looks at every container of the process, and the libraries bring some 400,000 of them, which stay.
That takes a third of a second, again and again in the midst of steps, while the device waits.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def older_objects_kept() -> Iterator[None]:
    """Objects that are there now are left out of collections until the end of the block."""
    gc.collect()  # what is garbage by now would be kept with them
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
