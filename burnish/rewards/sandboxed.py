"""The scorers that run programs: a pool of a few processes, each of which supervises many programs in the sandbox.

`SandboxPool` is made with every Scoring and costs nothing until the first response that needs it. `why_not` says, once
for all rows, whether this machine (or the server that `reward_model.sandbox` names) can run programs at all.
"""

import asyncio
import functools
import os
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from burnish.config.reward import SandboxConfig
from burnish.rewards.contract import FunctionSpec, ScoreRequest, ScoreResult
from burnish.rewards.pool import ScorePool
from burnish.rewards.routing import scorer_for

SCORER = scorer_for("mbpp")
#: A score runs all tests of its row and bounds itself below this; the limit is there for a scorer that does not.
SECONDS = 310.0


class SandboxPool:
    """Scores with `SCORER` and those of `options` that it names: `at_once` programs at a time in all, in `num_workers`
    processes or as many as there are cores."""

    def __init__(
        self,
        config: SandboxConfig,
        options: Mapping[str, Any],
        at_once: int,
        num_workers: int,
        timeout: float,
        retries: int,
    ):
        self.config, self.at_once = config, at_once
        self._num_workers = min(num_workers, os.cpu_count() or 1, at_once)
        share = {"max_concurrent": at_once // self._num_workers}  # of each process
        self._options = {**options, "sandbox": {**options.get("sandbox", {}), **share}}
        self._timeout, self._retries = max(timeout, SECONDS), retries
        self._pool: ScorePool | None = None

    def submit(self, request: ScoreRequest) -> Future[ScoreResult]:
        """Score one response; a failure comes back inside the result."""
        if self._pool is None:
            self._pool = ScorePool(
                FunctionSpec(SCORER.module, reward_kwargs=SCORER.named(self._options)),
                self._num_workers,
                self._timeout,
                self._retries,
                at_once=self.at_once,
                limit="{:g} s, all its tests together",
            )
        return self._pool.submit(request)

    @functools.cached_property
    def why_not(self) -> str | None:
        """Why programs cannot be run, with the fix, or None."""
        from burnish.sandbox import open_sandbox  # a run without programs needs none of it

        with ThreadPoolExecutor(max_workers=1) as thread:  # an event loop may run in this one, as in a notebook
            return thread.submit(lambda: asyncio.run(open_sandbox(self.config).why_not())).result()

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.close()
