"""Runs untrusted code: a Program goes in with its Limits, its Outcome comes out. No torch.

local.py runs programs on this machine, isolated by the kernel (jail/ is how), fusion.py on a SandboxFusion server;
harness/ is a program that runs tests of a solution, which can neither read nor forge them. `open_sandbox` makes the
sandbox that a configuration asks for; `run_python` is for custom reward functions.
"""

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:  # the supervisor imports this package too, and starts faster without
    from burnish.config.reward import SandboxConfig
    from burnish.sandbox.local import LocalSandbox

#: finished   it ended on its own; `exit_code` says how (a signal is its number, negative)
#: timeout    it ran out of seconds, of computing or of waiting
#: memory     it, with everything it started, took more memory than it may
#: output     it wrote more than it may
#: failed     the sandbox could not run it: not the program's fault, and never a score
Status = Literal["finished", "timeout", "memory", "output", "failed"]


@dataclass(frozen=True)
class Limits:
    """What one program may use, with everything it starts."""

    seconds: float = 10.0  # of computing, and of the clock; waiting for a busy core is not counted
    memory_mb: int = 1024
    processes: int = 32  # and threads
    output_bytes: int = 2**20  # of standard output and standard error, each
    disk_mb: int = 64  # in its private folder

    def __post_init__(self) -> None:
        if not 0 < self.seconds < float("inf"):
            raise ValueError(f"seconds={self.seconds}: a program needs a number of seconds above 0")
        for name in ("memory_mb", "processes", "disk_mb"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: a program needs at least 1")
        if self.output_bytes < 0:
            raise ValueError(f"output_bytes={self.output_bytes}: it cannot be negative")


@dataclass(frozen=True)
class Program:
    """Python source and what it reads on standard input."""

    source: str
    stdin: str = ""


@dataclass(frozen=True)
class Outcome:
    """What became of a program. Output that is not UTF-8 has its bad bytes replaced."""

    status: Status
    exit_code: int | None = None
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0  # of its limit that it used
    reason: str = ""  # of `failed`: what went wrong, for people
    refused: bool = False  # of `failed`: this machine permits no isolation

    @property
    def succeeded(self) -> bool:
        return self.status == "finished" and self.exit_code == 0


class Sandbox(Protocol):
    """Something that runs programs without letting them do harm."""

    async def run(self, program: Program, limits: Limits) -> Outcome:
        """Never raises for what a program does. Cancelling it ends the program with everything it started."""
        ...

    async def unavailable_reason(self) -> str | None:
        """Why programs cannot be run, with the fix, or None; asked before a run starts."""
        ...


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
