"""Runs untrusted code: a program goes in with its limits, its outcome comes out. No torch.

    program.py    what crosses the boundary: Program, Limits, Outcome, and the Sandbox protocol
    local.py      programs on this machine, isolated by the kernel; child.py is its supervisor as the parent sees it
    jail/         how: the supervisor process behind local.py
    refusal.py    messages for machines that permit no isolation
    fusion.py     programs on a SandboxFusion server
    harness/      a program that runs tests of a solution, which can neither read nor forge them

`open_sandbox` makes the one that a configuration asks for; `run_python` is for custom reward functions.
"""

import functools
from typing import TYPE_CHECKING

from burnish.sandbox.program import Limits, Outcome, Program, Sandbox

if TYPE_CHECKING:  # the supervisor imports this package too, and starts faster without
    from burnish.config.reward import SandboxConfig
    from burnish.sandbox.local import LocalSandbox

__all__ = ["Limits", "Outcome", "Program", "Sandbox", "limits_of", "open_sandbox", "run_python"]

DEFAULT_LIMITS = Limits()


def open_sandbox(config: "SandboxConfig") -> Sandbox:
    """The sandbox that `reward_model.sandbox` asks for. Nothing is started before its first use."""
    from burnish.config.reward import FUSION

    if config.backend == FUSION:
        from burnish.sandbox.fusion import FusionSandbox

        return FusionSandbox(config.url)
    from burnish.sandbox.local import LocalSandbox

    return LocalSandbox(allow_unsafe=config.allow_unsafe)


def limits_of(config: "SandboxConfig") -> Limits:
    return Limits(seconds=config.timeout, memory_mb=config.memory_limit_mb)


def run_python(source: str, stdin: str = "", limits: Limits = DEFAULT_LIMITS, allow_unsafe: bool = False) -> Outcome:
    """Run one program here and wait for it: for reward functions that are not async. Never raises for what it does."""
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(_local(allow_unsafe).run(Program(source, stdin), limits))
    raise RuntimeError("run_python cannot wait inside async code: `await LocalSandbox().run(Program(…), Limits(…))`")


@functools.cache
def _local(allow_unsafe: bool) -> "LocalSandbox":
    """One for all calls, so that its supervisor stays warm."""
    from burnish.sandbox.local import LocalSandbox

    return LocalSandbox(allow_unsafe)
