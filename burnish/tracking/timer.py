"""How long the parts of a step take: `with timed(metrics, "gen"):` adds its seconds to `metrics["timing_s/gen"]` and
is a span of the trace. An error that leaves such a block knows its name afterwards (`PHASE`), for error.json."""

import logging
import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager

from burnish.spans import span

log = logging.getLogger(__name__)

PHASE = "burnish_phase"  # attribute of an error: the innermost block
WHOLE = "step"  # the block around all others
STEP = "training/global_step"


@contextmanager
def timed(metrics: MutableMapping[str, float], name: str) -> Iterator[None]:
    """Time a block. A name used several times in a step adds up; a block that raises is counted too."""
    start = time.perf_counter()
    facts = {"step": metrics[STEP]} if name == WHOLE and STEP in metrics else {}
    try:
        with span(name, **facts):
            yield
    except BaseException as error:
        if name != WHOLE:
            vars(error).setdefault(PHASE, name)
        raise
    finally:
        key, seconds = f"timing_s/{name}", time.perf_counter() - start
        metrics[key] = metrics.get(key, 0.0) + seconds
        log.debug("%s: %.3f s", name, seconds)
