"""What an honest program can rely on; and that no program outlives whoever waits for it."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from burnish.sandbox import Limits, Outcome, Program, run_python
from burnish.sandbox.local import LocalSandbox, python_folders
from tests.processes import is_running, until
from tests.sandbox.conftest import MARK, children, marked_processes, supervisor_pid


def test_a_program_reads_and_writes(run):
    outcome = run("name = input()\nprint(f'hello {name}')", "wörld ☃\n")
    assert (outcome.status, outcome.exit_code, outcome.stdout, outcome.stderr) == ("finished", 0, "hello wörld ☃\n", "")
    assert outcome.succeeded and 0 < outcome.seconds < 60
    no_text = run("import sys; sys.stdout.buffer.write(b'a\\xffb\\n\\xe2\\x98')")
    assert no_text.stdout == "a\ufffdb\n\ufffd"
    fails = run("def f():\n    return 1 / 0\nf()")
    assert 'main.py", line 2, in f' in fails.stderr and "ZeroDivisionError" in fails.stderr


@pytest.mark.parametrize(
    ("source", "exit_code"),
    [
        ("exit(3)", 3),
        ("raise SystemExit('no')", 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -15),
        ("import os; os.abort()", -6),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9),
        ("import ctypes; ctypes.string_at(0)", -11),
        ("import os; os.execv('/bin/sh', ['sh', '-c', 'exit 7'])", 7),
        ("x = 1\x00", 1),
        ("x = '\ud800'", 1),
    ],
)
def test_the_exit_code_is_the_programs_own(run, source, exit_code):
    outcome = run(source)
    assert (outcome.status, outcome.exit_code) == ("finished", exit_code)
    assert not outcome.succeeded


def test_large_input_and_output_arrive_whole_up_to_the_limit(run):
    text = "0123456789abcde\n" * 2**16
    outcome = run("import sys; data = sys.stdin.read(); sys.stdout.write(data); sys.stderr.write(data)", text)
    assert outcome.stdout == text and outcome.stderr == text
    assert run("print('x' * 99, end='')", output_bytes=99).stdout == "x" * 99
    outcome = run("print('x' * 100, end='')", output_bytes=99)
    assert (outcome.status, outcome.stdout) == ("output", "x" * 99)


def test_what_programs_commonly_use_is_there_in_the_same_python(run):
    source = """
import asyncio, getpass, multiprocessing, multiprocessing.shared_memory, os, pathlib, subprocess, sys, tempfile
import threading, zoneinfo
assert getpass.getuser() == "sandbox" and os.path.expanduser("~") == os.getcwd() == tempfile.gettempdir()
with tempfile.NamedTemporaryFile() as file:
    file.write(b"x")
assert subprocess.run([sys.executable, "-c", "print(6 * 7)"], capture_output=True).stdout == b"42\\n"
with multiprocessing.Pool(2) as pool:
    assert pool.map(abs, [-1, 2]) == [1, 2]
shared = multiprocessing.shared_memory.SharedMemory(create=True, size=2**20)
shared.buf[:5] = b"shown"
numbers = multiprocessing.RawArray("i", 4)
def check(): numbers[0] = bytes(shared.buf[:5]) == b"shown"
child = multiprocessing.get_context("fork").Process(target=check)
child.start(), child.join(), shared.close(), shared.unlink()
assert numbers[0] == 1
async def talk():
    async def answer(reader, writer):
        writer.write(await reader.readline())
        writer.close()
    async with await asyncio.start_unix_server(answer, "socket"):
        reader, writer = await asyncio.open_unix_connection("socket")
        writer.write(b"hello\\n")
        return await reader.readline()
assert asyncio.run(talk()) == b"hello\\n"
threads = [threading.Thread(target=print) for _ in range(8)]
[thread.start() for thread in threads], [thread.join() for thread in threads]
assert pathlib.Path(__file__).read_text().startswith("\\nimport asyncio") and __name__ == "__main__"
zoneinfo.ZoneInfo("Europe/Zurich")
"""
    outcome = run(source)
    assert outcome.succeeded, outcome.stderr
    same = run("import sys, numpy; print(sys.version, sys.prefix, int(numpy.eye(3).sum()), sep='|')")
    assert same.stdout == f"{sys.version}|{sys.prefix}|3\n", same


def test_programs_do_not_meet(run):
    assert run("open('note', 'w').write('x')").succeeded
    assert run("import os; print(os.listdir(), os.listdir('/dev/shm'))").stdout == "['main.py'] ['main.py']\n"
    lies_there = any(folder.startswith("/tmp/") for folder in python_folders())  # Python itself: else it is a link
    assert run("open('/tmp/note', 'w').write('x'); print(open('note').read())").succeeded == (not lies_there)
    order = "print({str(i) for i in range(99)})"
    assert run(order).stdout == run(order).stdout, "sets have the same order in every run"


def test_what_children_compute_counts(run):
    outcome = run(
        "import os\nif os.fork():\n    os.wait()\nelse:\n    import time\n    while time.process_time() < 0.5: pass"
    )
    assert outcome.succeeded and outcome.seconds > 0.45  # the kernel counts them in hundredths


def test_memory_that_children_share_does_not_count_twice(run):
    source = "import os, time\nx = b'x' * 2**26\nfor _ in range(7): os.fork() or (time.sleep(0.5), os._exit(0))\n"
    assert run(source + "for _ in range(7): os.wait()", memory_mb=256).succeeded
    # Until it becomes another program, a child of `subprocess` has its parent's memory.
    source = "import subprocess\nx = b'x' * (90 << 20)\nfor _ in range(60): subprocess.run(['/bin/true'])"
    assert run(source, memory_mb=128).status == "finished"


def test_an_alarm_rings_though_our_caller_has_blocked_it(run):
    source = "import signal, time\nsignal.alarm(1)\ntime.sleep(9)"
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    ignored = signal.signal(signal.SIGALRM, signal.SIG_IGN)
    fresh = LocalSandbox()
    outcome = asyncio.run(fresh.run(Program(source), Limits()))
    signal.signal(signal.SIGALRM, ignored)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    fresh.close()
    assert outcome.exit_code == -signal.SIGALRM


def test_programs_share_the_cores_with_their_supervisor_whatever_session_they_open(sandbox):
    """Where the kernel gives each session its share, many sessions would leave the supervisor none."""
    group = Path(f"/proc/{supervisor_pid(sandbox)}/autogroup")
    if not group.exists():
        pytest.skip("this kernel has no groups of sessions")
    child = f"[sys.executable, '-c', 'import time; time.sleep(60)', {MARK!r}]"
    source = f"import subprocess, sys\nsubprocess.run({child}, start_new_session=True)"

    async def groups() -> set[str]:
        task = asyncio.create_task(sandbox.run(Program(source), Limits()))
        while not (found := marked_processes()):
            assert not task.done(), task.result()
            await asyncio.sleep(0.01)
        seen = {(folder / "autogroup").read_text() for folder in found}
        task.cancel()
        return seen

    assert asyncio.run(groups()) == {group.read_text()}


def test_honest_children_do_not_time_out_in_a_crowd(sandbox):
    """What they wait for a core is not theirs, also where they are too short to be looked at often."""
    chain = """
import os, time
for _ in range(12):
    if not os.fork():
        while time.process_time() < 0.025: pass
        os._exit(0)
    os.wait()
"""

    async def run_all() -> list:
        honest = [sandbox.run(Program(chain), Limits(seconds=3.0)) for _ in range(3)]
        crowd = [sandbox.run(Program("while True: pass"), Limits(seconds=0.4)) for _ in range(16)]
        return await asyncio.gather(*honest, *crowd)

    outcomes = asyncio.run(run_all())
    assert [outcome.status for outcome in outcomes[:3]] == ["finished"] * 3, outcomes[:3]


def test_limits_that_are_none_are_refused():
    for limits in ({"seconds": 0}, {"seconds": float("nan")}, {"memory_mb": 0}, {"disk_mb": 0}, {"output_bytes": -1}):
        with pytest.raises(ValueError, match=f"{next(iter(limits))}="):
            Limits(**limits)


def test_64_at_a_time_stay_correct(sandbox):
    """Each adds up its own numbers, next to programs that never end, take all they can or fail."""
    right = "import sys, time\nn = int(input())\ntime.sleep(0.1)\nprint(sum(i * i for i in range(n * 1000)))"
    others = [
        ("while True: pass", "timeout"),
        ("import time; time.sleep(99)", "timeout"),
        ("x = []\nwhile True: x.append(b'x' * 2**20)", "memory"),
        ("1 / 0", "finished"),
    ]

    async def run_all() -> list:
        programs = [(Program(right, str(i)), Limits(seconds=3.0)) for i in range(48)]
        programs += [(Program(source), Limits(seconds=0.5, memory_mb=64)) for source, _ in others * 4]
        return await asyncio.gather(*(sandbox.run(*program) for program in programs))

    outcomes = asyncio.run(run_all())
    assert [(o.status, o.stdout) for o in outcomes[:48]] == [
        ("finished", f"{sum(i * i for i in range(n * 1000))}\n") for n in range(48)
    ]
    assert [o.status for o in outcomes[48:]] == [status for _, status in others * 4]


def test_a_reward_function_that_is_not_async(sandbox):
    assert run_python("print(input() * 2)", "ab").stdout == "abab\n"
    assert run_python("while True: pass", limits=Limits(seconds=0.2)).status == "timeout"

    async def call() -> None:
        run_python("print(1)")

    with pytest.raises(RuntimeError, match="await"):
        asyncio.run(call())


def test_threads_may_share_a_sandbox(sandbox):
    def work(i: int) -> str:
        return asyncio.run(sandbox.run(Program(f"print({i})"), Limits())).stdout

    with ThreadPoolExecutor(max_workers=8) as threads:
        assert list(threads.map(work, range(8))) == [f"{i}\n" for i in range(8)]


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
    sandbox = LocalSandbox()  # the other one is not disturbed
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
