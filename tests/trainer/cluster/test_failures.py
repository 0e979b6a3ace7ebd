"""Workers that die, hang or fail: a run goes on from its last checkpoint as if nothing had happened, or ends in time
with an error that names the worker, its node and its last lines. Nothing of it is left running.
"""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import pytest

from burnish.errors import DeadlineError, RolloutError, WorkerDied, WorkerError
from burnish.tracking.run_status import read_status
from burnish.trainer.checkpoint import CheckpointStore
from tests.trainer.cluster.conftest import LONG, WORKER, differences, lines_of, wait_for_end, wait_until
from tests.trainer.cluster.struck import STRUCK, seconds_since_strike, strike
from tests.trainer.conftest import GRPO, events

RUN = [*GRPO, "trainer.save_freq=1", "trainer.total_training_steps=3"]
ASYNC = "actor_rollout_ref.actor.checkpoint.async_save=true"
ONCE, NEVER = "trainer.max_restarts=1", "trainer.max_restarts=0"
HANG_S = 20.0  # trainer.worker_timeout where something hangs: loading a model on a busy machine takes seconds, too
REPORTED_S = 40.0  # where all processes must have a status by then
SOON_S = 30.0  # for whatever comes after a failure: other outcomes are waited for, stacks asked, processes ended


@pytest.fixture(scope="module")
def known():
    return []


@pytest.fixture
def expected(run, known):
    """The metrics of the run in one process, without any failure; made once."""
    if not known:
        run(0, *RUN, "trainer.default_local_dir=whole")
        known.extend(lines_of("whole"))
    return known


def check_told(text, doing, rank=1):
    """Which worker, where it was, what it did, and what it said last."""
    assert f"rank {rank} of 2 of pool 'global_pool' (actor_rollout_ref), pid " in text, text
    assert f"on {socket.gethostname()} (" in text and doing in text, text
    assert "last lines of " in text and f"logs/global_pool-{rank}.log" in text and "about to suffer" in text, text


def test_killed_in_an_update_it_resumes_from_the_last_checkpoint(struck, expected):
    strike("update", rank=1, step=3)
    struck(2, *RUN, ONCE)
    assert STRUCK.exists() and not differences(expected, lines_of("run"))
    assert [line.get("failures/restarts") for line in lines_of("run")] == [None, None, 1]
    (event,) = events("restart")
    assert (event["failed_step"], event["checkpoint"]) == (3, 2)
    check_told(event["error"], "died while it ran StruckWorker.update_actor")


def look(seen, over):
    folder = Path("run").absolute()
    while not over.wait(0.2):
        if folder.joinpath("status").exists():
            for process in read_status(folder).processes:
                seen.update((process.name, wait["kind"], wait["subject"]) for wait in process.waits)
                seen.add((process.name, "", ""))


@pytest.mark.parametrize("how", [pytest.param("stop", marks=LONG), "sleep"])
def test_a_hanging_worker_is_reported(struck, how):
    """`stop`: nothing of its process runs any more. `sleep`: its thread that computes hangs."""
    strike("update", rank=1, step=2, how=how)
    seen, over = set(), threading.Event()
    thread = threading.Thread(target=look, args=(seen, over))
    thread.start()
    try:
        with pytest.raises(DeadlineError, match=f"has not finished within {REPORTED_S:g} s"):
            struck(2, *RUN, NEVER, f"trainer.worker_timeout={REPORTED_S}")
    finally:
        over.set()
        thread.join()
    assert ("controller", "worker", "StruckWorker.update_actor on pool global_pool") in seen
    assert {("global_pool-0", "", ""), ("global_pool-1", "", ""), ("agents-0", "", "")} <= seen, "all have a status"
    (event,) = events("late_wait")
    assert event["wait"] == "worker" and event["subject"] == "StruckWorker.update_actor on pool global_pool"
    text = Path(event["stacks"]).read_text()
    hung = text.partition("\nworkers:\n")[2].partition("rank 1 of 2 of pool 'global_pool'")[2]
    assert ("does not answer" if how == "stop" else "time.sleep(1000)") in hung, text
    status = read_status("run")
    assert status.state == "failed" and status.stacks == event["stacks"]


class TestLong:
    pytestmark = LONG

    @pytest.mark.parametrize("rank", [0, 1])
    @pytest.mark.parametrize(
        ("where", "step", "keys"),
        [("update", 2, []), ("generation", 2, []), ("save", 2, []), ("publish", 3, []), ("save", 2, [ASYNC])],
        ids=["update", "generation", "save", "publish", "save-behind"],
    )
    def test_killed_anywhere_it_resumes_from_the_last_checkpoint(self, struck, expected, where, step, keys, rank):
        strike(where, rank=rank, step=step)
        struck(2, *RUN, ONCE, *keys)
        assert STRUCK.exists() and not differences(expected, lines_of("run"))
        (event,) = events("restart")
        assert event["failed_step"] in (step, step + len(keys)) and event["checkpoint"] == step - 1
        check_told(event["error"], "", rank)
        assert CheckpointStore("run").latest().name == "global_step_3"
        assert not list(Path("run").glob(".global_step_*.writing"))

    @pytest.mark.parametrize("where", ["update", "generation", "save"])
    def test_killed_again_and_again_it_gives_up(self, struck, where):
        strike(where, step=2, always=True)
        with pytest.raises(WorkerDied) as error:
            struck(2, *RUN, ONCE)
        assert seconds_since_strike() < SOON_S
        text = str(error.value)
        check_told(text, "")
        assert "Given up after trainer.max_restarts=1 restarts in a row" in text and "run/global_step_1" in text
        assert CheckpointStore("run").latest().name == "global_step_1"

    @pytest.mark.parametrize("where", ["generation", "save"])  # in an update: test_a_hanging_worker_is_reported
    @pytest.mark.parametrize("how", ["stop", "sleep"])
    def test_hanging_it_is_ended_when_its_time_is_over(self, struck, where, how):
        strike(where, step=2, how=how)
        with pytest.raises(DeadlineError) as error:
            struck(2, *RUN, NEVER, f"trainer.worker_timeout={HANG_S}")
        assert seconds_since_strike() < HANG_S + SOON_S
        text = str(error.value)
        assert f"has not finished within {HANG_S:g} s" in text, text
        asleep_on_the_loop = where == "generation"  # which then answers nobody
        check_told(text, "does not answer" if how == "stop" or asleep_on_the_loop else "time.sleep(1000)")
        check_ended()

    def test_a_hanging_run_resumes_from_the_last_checkpoint(self, struck, expected):
        strike("update", step=3, how="stop")
        struck(2, *RUN, ONCE, f"trainer.worker_timeout={HANG_S}")
        assert not differences(expected, lines_of("run")) and len(events("restart")) == 1

    def test_an_error_on_one_rank_ends_the_run_at_once(self, struck):
        """The other waits in a collective that nobody joins: it must not be waited for."""
        strike("update", step=2, how="raise")
        with pytest.raises(WorkerError, match=r"(?s)rank 1.*a bug on one rank") as error:
            struck(2, *RUN)
        assert seconds_since_strike() < SOON_S
        assert not isinstance(error.value, WorkerDied | DeadlineError), "which would be restarted"
        assert isinstance(error.value.__cause__, ZeroDivisionError)
        check_ended()

    def test_weights_that_did_not_arrive_are_reported(self, struck):
        strike("publish", rank=1, step=2, how="tamper")
        with pytest.raises(RolloutError) as error:
            struck(2, *RUN)
        lost = r"1 of \d+ weights of version 1 did not arrive in the replica of rank 1, such as model\.embed"
        assert re.search(lost, str(error.value))
        assert len(lines_of("run")) == 1, "nothing was generated with them"

    def test_an_agent_worker_that_dies(self, run, expected):
        """The reward function, called in the agent worker's process, or in one that it has started, ends it."""
        Path("reward.py").write_text(DEADLY_REWARD)
        run(2, *RUN, ONCE)
        assert not differences(expected, lines_of("run"))
        (event,) = events("restart")
        assert "rank 0 of 1 of pool 'agents' (agent_loop), pid " in event["error"], event["error"]
        assert "died while it ran AgentLoopWorker.finish_sequences" in event["error"]


DEADLY_REWARD = """
import os, signal
from pathlib import Path

def compute_score(solution_str, ground_truth, extra_info):
    metrics = Path("run/metrics.jsonl")
    if metrics.exists() and len(metrics.read_text().splitlines()) == 1 and not Path("struck").exists():
        Path("struck").touch()
        pid = os.getpid()
        while not any(name in Path(f"/proc/{pid}/cmdline").read_bytes() for name in (b"RayHost", b"fork_server")):
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(pid, signal.SIGKILL)
    return float(len(set(solution_str)) % 3)
"""


def check_ended():
    def workers():
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if WORKER.search((process / "cmdline").read_bytes()) and os.readlink(process / "cwd") == os.getcwd():
                    yield int(process.name)

    wait_for_end(lambda: list(workers()), SOON_S)


MARK = "BURNISH_TEST_RUN"  # a variable that all processes of a run inherit


class Command:
    """`burnish ppo` in a process of its own, with all that it starts."""

    def __init__(self, words, code="from burnish.cli.main import main; import sys; sys.exit(main(sys.argv[1:]))"):
        self.mark = uuid.uuid4().hex
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, "ppo", *words], env=os.environ | {MARK: self.mark},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip

    def all(self) -> dict[int, str]:
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"{MARK}={self.mark}".encode() in (process / "environ").read_bytes():
                    found[int(process.name)] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:120]
        return found

    def clean(self) -> None:
        for pid in self.all():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(30)
        self.process.stdout.close()


@pytest.fixture
def command(job, reward):
    started = []

    def start(*words, **options):
        started.append(Command([*job, "data.val_files=null", *words], **options))
        return started[-1]

    yield start
    for one in started:
        one.clean()


RAYS_OWN = re.compile("DashboardAgent|RuntimeEnvAgent")  # of a Ray that nobody stopped: they look around for a minute
TWO = ["trainer.n_gpus_per_node=2", "actor_rollout_ref.rollout.agent.num_workers=1"]
LONG_RUN = [*GRPO, *TWO, "trainer.total_training_steps=500"]


class TestController:
    pytestmark = LONG

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
    @pytest.mark.parametrize("executor", ["processes", pytest.param("ray", marks=pytest.mark.ray)])
    def test_ended_by_a_signal_it_leaves_no_process_behind(self, command, number, executor):
        running = command(*LONG_RUN, f"trainer.executor={executor}")
        wait_until(lambda: Path("run/rollouts/2.jsonl").exists(), 120, "the second step")
        there = running.all()
        workers = {"ray": "RayHost", "processes": "fork_server"}[executor]
        assert sum(workers in line for line in there.values()) == 3 + (executor == "processes"), there
        os.kill(running.process.pid, number)
        wait_for_end(lambda: {pid: line for pid, line in running.all().items() if not RAYS_OWN.search(line)}, SOON_S)
        wait_for_end(running.all, 90 if number == signal.SIGKILL else SOON_S)
        assert running.process.wait(30) == (-number if number == signal.SIGKILL else 130)
        if number != signal.SIGKILL:
            said = running.process.stdout.read()
            assert "stopped in step" in said and "the newest checkpoint is" in said, said

    @pytest.mark.ray
    def test_a_full_object_store_ends_the_run_with_a_message(self, command):
        """Answers that carry more than Ray has room for, on a Ray that may not put anything on a disk."""
        Path("reward.py").write_text(
            "import os\n"
            "def compute_score(solution_str, ground_truth, extra_info):\n"
            "    return {'score': 1.0, 'more': os.urandom(4_000_000).hex()}\n"
        )
        small = (
            "import ray, sys\n"
            "full = {'automatic_object_spilling_enabled': False, 'local_fs_capacity_threshold': 0.0001}\n"
            "ray.init(object_store_memory=80_000_000, num_cpus=2, include_dashboard=False, _system_config=full)\n"
            "from burnish.cli.main import main\n"
            "sys.exit(main(sys.argv[1:]))\n"
        )
        running = command(
            *LONG_RUN, "trainer.executor=ray", "trainer.worker_timeout=60", "trainer.rollout_dump_freq=-1", code=small
        )
        said, _ = running.process.communicate(timeout=150)
        assert running.process.returncode == 1, said
        assert "does not fit into Ray's object store: " in said and "--object-store-memory" in said, said
        assert "Traceback" not in said
        wait_for_end(running.all, SOON_S)
