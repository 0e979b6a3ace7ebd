"""How a command's process ends: by signals at any time, and by itself where users' code would keep it."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
QUICK = "ending.SECOND_S = ending.LEAVE_S = 1.0; ending.REPORT_S = 0.1"


@pytest.fixture
def program():
    """A process that runs these lines after `from burnish.entry import ending`; its output is text."""
    started = []

    def start(source: str, **options) -> subprocess.Popen:
        source = f"import os, signal, sys, threading, time\nfrom burnish.entry import ending\n{textwrap.dedent(source)}"
        paths = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        environment = os.environ | {"PYTHONPATH": paths}
        started.append(subprocess.Popen([sys.executable, "-c", source], env=environment, **pipes, **options))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


LEFT = {
    "thread": "threading.Thread(target=rest, name='mine').start()",
    "pool": "from concurrent.futures import ThreadPoolExecutor; ThreadPoolExecutor(1, 'mine').submit(rest)",
    "exit function": "import atexit; atexit.register(rest)",
    "object": "class Bad:\n    def __del__(self, rest=rest): rest()\nsys.modules['bad'] = Bad()",
    "nothing": "",
}


@pytest.mark.hostile
@pytest.mark.parametrize("left", LEFT)
def test_command_that_is_done_ends_with_its_code_whatever_is_left(program, left):
    process = program(
        f"def rest():\n    while True: time.sleep(0.01)\n{QUICK}\n{LEFT[left]}\nprint('all')\nending.leave(5)"
    )
    output, error = process.communicate(timeout=120)
    assert (process.returncode, output) == (5, "all\n"), error
    if left in ("thread", "pool"):
        assert "still running: thread mine" in error and "line 4, in rest); given up 1 s after the end" in error
    else:
        assert error == ""


def test_a_signal_at_the_end_of_a_command_ends_it_at_once(program):
    process = program(
        "import atexit; atexit.register(lambda: (print('end', flush=True), time.sleep(1e6)))\nending.leave(0)"
    )
    assert process.stdout.readline() == "end\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == -signal.SIGTERM


SWALLOWS = """
    with ending.watched(), ending.terminated_as_interrupted():
        while True:
            try:
                print("ready", flush=True)
                while True: time.sleep(1e6)
            except BaseException: pass
"""


@pytest.mark.hostile
@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_second_signal_ends_what_swallows_the_first(program, first, second):
    process = program(f"{QUICK}\n{textwrap.dedent(SWALLOWS)}")
    for number in (first, second):
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
    assert process.wait(120) == 130
    assert process.stderr.read() == "burnish: ended 1 s after the second signal\n"


def test_third_signal_ends_the_command_at_once(program):
    process = program(f"ending.SECOND_S = 1e6\n{textwrap.dedent(SWALLOWS)}")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGTERM):
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
    assert process.wait(120) == 130 and process.stderr.read() == "burnish: ended by the third signal\n"


def test_second_signal_ends_only_what_was_watched(program):
    process = program(
        """
        ending.SECOND_S = 20.0
        with ending.watched():
            child = os.fork()  # which outlives what was watched
            if child == 0:
                time.sleep(1e6)
            for number in ending.STOPS:
                signal.signal(number, lambda *_: None)
                os.kill(os.getpid(), number)
            while len(ending.received) < 2: time.sleep(0.01)
        for thread in threading.enumerate():
            if thread is not threading.main_thread(): thread.join()
        os.kill(child, signal.SIGKILL)
        print("all")
        """
    )
    assert process.communicate(timeout=120) == ("all\n", "") and process.returncode == 0


def test_signals_of_a_fork_are_not_counted(program):
    process = program(
        """
        with ending.watched(), ending.terminated_as_interrupted():
            for number in 3 * [signal.SIGINT]:
                child = os.fork()
                if child == 0:
                    signal.signal(signal.SIGINT, lambda *_: os._exit(4))
                    os.kill(os.getpid(), signal.SIGINT)
                    time.sleep(1e6)
                print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), ending.received)
        """
    )
    assert process.communicate(timeout=120)[0] == 3 * "4 []\n"


JOB = """
    import asyncio
    async def work():
        try:
            print("ready", flush=True)
            await asyncio.sleep(1e6)
        finally:
            print("closed", flush=True)
    from burnish.entry.guard import guard
    from burnish.loop_thread import LoopThread
    def command(argv):
        with ending.watched(), ending.terminated_as_interrupted():
            loop = LoopThread("the job", threaded=False)
            try:
                loop.result(loop.run(work()))
            finally:
                loop.close()
    ending.leave(guard(command, []))
"""


@pytest.mark.parametrize("handler", [signal.SIG_DFL, signal.SIG_IGN], ids=["foreground", "background"])
def test_sigterm_ends_a_job_with_the_same_care_where_sigint_is_ignored(program, handler):
    process = program(JOB, preexec_fn=lambda: signal.signal(signal.SIGINT, handler))
    assert process.stdout.readline() == "ready\n"
    if handler == signal.SIG_IGN:
        process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 130
    assert (process.stdout.read(), process.stderr.read()) == ("closed\n", "burnish: stopped\n")


OTHERS = ("burnish.trainer.sft_trainer", "burnish.trainer.main_generation", "burnish.cli.main")
PROGRAMS = ["burnish.trainer.main_ppo", *(pytest.param(name, marks=pytest.mark.long) for name in OTHERS)]


@pytest.mark.hostile
@pytest.mark.parametrize("program_name", PROGRAMS)
def test_signal_while_a_command_imports_ends_it_without_a_traceback(program_name, tmp_path):
    """At moments of the import, which are found by the modules that are there."""
    stopper = """
        import os, signal, sys
        class Finder:
            def find_spec(self, name, path=None, target=None):
                if name == os.environ["STOP_AT"]:
                    os.kill(os.getpid(), signal.SIGINT)
        sys.meta_path.insert(0, Finder())
    """
    (tmp_path / "sitecustomize.py").write_text(textwrap.dedent(stopper))
    words = ["ppo"] if program_name == "burnish.cli.main" else []
    for module in ("burnish.config", "burnish.entry.keys", "omegaconf"):
        environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}", "STOP_AT": module}
        command = [sys.executable, "-m", program_name, *words, "data.train_files=none.parquet"]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr) == (130, "", "burnish: stopped\n"), module
