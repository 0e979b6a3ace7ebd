"""Cancelling, dying, forking: a program never outlives whoever waits for it."""

import asyncio
import gc
import os
import signal
import subprocess
import sys

import pytest

from burnish.sandbox import Limits, Outcome, Program
from burnish.sandbox.local import LocalSandbox
from tests.processes import is_running, until
from tests.sandbox.conftest import MARK, children, marked_processes, supervisor_pid

#: It starts something whose command line holds the mark, and waits for it.
SLEEPER = f"""
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(999)", {MARK!r}], start_new_session=True).wait()
"""
LONG = Limits(seconds=60.0)


def test_cancelling_ends_the_program_with_what_it_started(sandbox):
    async def begin_and_cancel() -> None:
        task = asyncio.create_task(sandbox.run(Program(SLEEPER), LONG))
        while not marked_processes():
            assert not task.done(), task.result()
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(TimeoutError):  # a time limit around it does the same
            await asyncio.wait_for(sandbox.run(Program(SLEEPER), LONG), 0.5)

    asyncio.run(begin_and_cancel())
    assert until(lambda: not marked_processes() and not children(supervisor_pid(sandbox)))


OWNER = """
import asyncio, os, sys, time
from burnish.sandbox import Limits, Program
from burnish.sandbox.local import LocalSandbox

sandbox = LocalSandbox()
async def main():
    running = asyncio.create_task(sandbox.run(Program(sys.stdin.read()), Limits(seconds=60.0)))
    while True not in sandbox._supervisors.children:
        await asyncio.sleep(0.01)
    if sys.argv[1] == "forked" and not os.fork():
        time.sleep(60)
    print(sandbox._supervisors.children[True].pid, flush=True)
    print(await running)
asyncio.run(main())
"""


@pytest.mark.parametrize(("how", "killed"), [("alone", "parent"), ("forked", "parent"), ("alone", "supervisor")])
def test_killing_leaves_nothing(how, killed, sandbox):
    """The parent, also while a forked copy of it holds its sockets open, or the supervisor itself."""
    command = [sys.executable, "-c", OWNER, how]
    owner = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert owner.stdin is not None and owner.stdout is not None
    with owner.stdout:
        owner.stdin.write(SLEEPER)
        owner.stdin.close()
        supervisor = int(owner.stdout.readline())
        assert until(lambda: bool(marked_processes()))
        os.kill(supervisor if killed == "supervisor" else owner.pid, signal.SIGKILL)
        assert until(lambda: not marked_processes() and not is_running(supervisor))
        if killed == "supervisor":
            assert "the sandbox's supervisor died" in owner.stdout.readline()
    os.killpg(owner.pid, signal.SIGKILL)
    owner.wait()


@pytest.mark.usefixtures("sandbox")
def test_a_sandbox_works_after_its_supervisor_died():
    sandbox = LocalSandbox()  # the others' goes on undisturbed
    assert asyncio.run(sandbox.run(Program("print(1)"), LONG)).stdout == "1\n"
    first, before = supervisor_pid(sandbox), len(os.listdir("/proc/self/fd"))
    os.kill(first, signal.SIGKILL)
    assert until(lambda: not is_running(first))
    assert asyncio.run(sandbox.run(Program("print(2)"), LONG)).stdout == "2\n"
    assert len(os.listdir("/proc/self/fd")) == before
    second = supervisor_pid(sandbox)
    del sandbox
    gc.collect()
    assert not os.path.exists(f"/proc/{second}"), "it ends with the sandbox that nobody uses any more"


def test_programs_that_cannot_be_set_up_disturb_no_other(sandbox):
    """Their first process may be gone before what it said is read."""

    async def run_all() -> list[Outcome]:
        limits = [Limits(disk_mb=2**57), Limits()] * 12
        return await asyncio.gather(*(sandbox.run(Program("print(1)"), each) for each in limits))

    outcomes = asyncio.run(run_all())
    assert {(outcome.status, outcome.refused) for outcome in outcomes[::2]} == {("failed", True)}
    assert all("mount /sandbox" in outcome.reason for outcome in outcomes[::2])
    assert {outcome.stdout for outcome in outcomes[1::2]} == {"1\n"}


def test_few_open_files_are_enough_for_one_program_at_a_time():
    source = "from burnish.sandbox import run_python; print(run_python('print(1)').stdout)"
    command = ["/bin/sh", "-c", 'ulimit -n 64; exec "$@"', "sh", sys.executable, "-c", source]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60).stdout == "1\n\n"


def test_a_forked_copy_of_the_parent_has_its_own_supervisor(sandbox):
    assert asyncio.run(sandbox.run(Program("print(1)"), LONG)).succeeded
    before = supervisor_pid(sandbox)
    copy = os.fork()
    if copy == 0:
        outcome = asyncio.run(sandbox.run(Program("print(1)"), LONG))
        other = supervisor_pid(sandbox) != before
        sandbox.close()
        os._exit(0 if outcome.succeeded and other else 1)
    assert os.waitpid(copy, 0)[1] == 0
    assert asyncio.run(sandbox.run(Program("print(1)"), LONG)).succeeded and supervisor_pid(sandbox) == before
