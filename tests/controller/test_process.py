"""What a worker process does for itself, and what is said about one that is late or gone."""

import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import torch

from burnish.child.process import TAIL_LENGTH, TAIL_LINES
from burnish.controller.process import (
    Address,
    Surroundings,
    Warnings,
    gpu_among,
    interface_of,
    kill_soon,
    say_again,
    share_cores,
    start_time,
    tail,
)
from burnish.controller.worker_status import NO_CALL, SHOWN_WHOLE, LateProcess, WorkerStatus, late, no_room, reason

PROGRAM = """
import asyncio, logging, os, sys
from burnish.controller.process import Surroundings, enter

class Theirs(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self):
        sys.exit("an event loop of another kind, as Ray chooses it where uvloop is installed")

asyncio.set_event_loop_policy(Theirs())
address = enter(Surroundings(sys.argv[1], cwd=sys.argv[2], path=("/somewhere", *sys.path), level=logging.INFO), "pool-1", "127.0.0.1", "n")
print(os.getcwd(), sys.path[0], os.environ["GLOO_SOCKET_IFNAME"], address)
asyncio.run(asyncio.sleep(0))
os.system("echo from a child")
logging.getLogger("burnish.x").info("said")
logging.getLogger("burnish.x").debug("not said")
os.kill(os.getpid(), 11)
"""  # noqa: E501


def test_a_process_of_the_run(tmp_path):
    log = tmp_path / "logs" / "pool-1.log"
    log.parent.mkdir()
    log.write_text("of an earlier run\n")
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_IFNAME")}
    words = [sys.executable, "-c", PROGRAM, str(log.parent), str(tmp_path)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (-11, "", "")
    lines = log.read_text().splitlines()
    assert lines[0] == "of an earlier run"
    assert lines[1].startswith(f"{tmp_path} /somewhere lo pid ") and lines[1].endswith("(127.0.0.1)")
    assert lines[2] == "from a child"
    assert lines[3].endswith("INFO burnish.x: said")
    assert "Segmentation fault" in lines[4]


def test_the_last_lines_of_a_log(tmp_path):
    log = tmp_path / "a.log"
    log.write_text("old\n")
    address = Address(1, "", "", "", str(log), log.stat().st_size)
    assert tail(address) == ""
    with log.open("a") as file:
        file.write("new\n" + "x" * 1000 + "\n")
    assert tail(address).splitlines() == ["new", "x" * TAIL_LENGTH + "…"]
    log.write_text("old\n" + "".join(f"line {n}\n" for n in range(10_000)))
    assert tail(address).splitlines() == [f"line {n}" for n in range(10_000 - TAIL_LINES, 10_000)]
    assert tail(Address(1, "", "", "", str(tmp_path / "absent"), 0)) is None


def test_cores_are_shared_unless_the_user_says_how_many(tmp_path):
    before = torch.get_num_threads()
    try:
        share_cores(Surroundings(str(tmp_path), threads="3"), 100)
        assert torch.get_num_threads() == 3
        share_cores(Surroundings(str(tmp_path), threads=None), 10_000)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_a_process_that_is_stopped_is_killed():
    process = subprocess.Popen(["sleep", "600"])
    process.send_signal(signal.SIGSTOP)
    start = time.monotonic()
    address = Address(process.pid, "", "", "", "", 0, start_time(process.pid))
    kill_soon([replace(address, started=address.started - 1), replace(address, started=0)])
    assert process.poll() is None, "that number was another process's"
    kill_soon([address])
    assert process.wait(30) == -signal.SIGKILL
    assert time.monotonic() - start < 30
    kill_soon([address])  # nothing to do


def test_the_interface_of_an_address_and_the_gpu_among_those_a_process_sees():
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("203.0.113.9") is None
    assert gpu_among([], "") is None
    assert gpu_among(["3"], "3") == 0  # Ray hides the others
    assert gpu_among(["3"], "") == 3  # RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES
    assert gpu_among(["5"], "4,5") == 1
    assert gpu_among(["GPU-1f"], "GPU-0a,GPU-1f") == 1 and gpu_among(["GPU-1f"], "") is None


def test_warnings_are_said_again_by_the_controller(caplog):
    kept, source = Warnings(), logging.Logger("burnish.there")
    source.addHandler(kept)
    source.info("not this")
    source.warning("%d samples", 3)
    try:
        {}["k"]
    except KeyError:
        source.exception("failed")
    records = kept.take()
    assert not kept.take()
    say_again(records)
    assert [(r.name, r.levelname, r.getMessage().splitlines()[0]) for r in caplog.records] == [
        ("burnish.there", "WARNING", "3 samples"),
        ("burnish.there", "ERROR", "failed"),
    ]
    assert "KeyError: 'k'" in caplog.records[1].getMessage()
    caplog.clear()
    logging.getLogger("burnish").setLevel(logging.ERROR)
    say_again(records)
    assert [record.levelname for record in caplog.records] == ["ERROR"]


GONE = (
    "The actor died unexpectedly before finishing this task.\n\tclass_name: RayHost\n\tpid: 7\nThe actor is dead "
    "because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: "
)


def test_the_reason_is_found_in_what_ray_says():
    eof = "Worker unexpectedly exits with a connection error code 2. End of file. Some common causes include: (1) ..."
    assert reason(GONE + eof) == "its process ended without a word: killed, crashed, or out of memory"
    assert reason(GONE + "Task was killed due to the node running low on memory.") == (
        "Task was killed due to the node running low on memory."
    )
    assert reason("The actor is dead because its node has died.\n\tNode Id: 5") == "its node has died. Node Id: 5"
    assert reason("The actor is temporarily unavailable: RpcError: Socket closed.") == (
        "its process or its node cannot be reached any more"
    )
    assert reason("died in its creation task, " + "at a line " * 200 + "ImportError: no burnish").endswith("no burnish")


def test_those_that_do_not_answer_come_first_and_only_some_are_shown_in_full():
    there = WorkerStatus("Actor.update", "in all_reduce", "step 3")
    processes = [LateProcess(f"rank {rank}", f"{rank}.log", there) for rank in range(8)]
    processes[5] = LateProcess("rank 5", "5.log", None, "loading")
    lines = late("Actor.update is late", 9, processes).splitlines()
    assert lines[0] == "Actor.update is late; of 9 workers, these are late:"
    assert lines[1:4] == ["- rank 5: does not answer: stopped, or stuck", "last lines of 5.log:", "    loading"]
    assert lines[4:7] == ["- rank 0: is in Actor.update", "where:", "    in all_reduce"]
    assert sum(line.startswith("- rank") for line in lines) == 8
    assert lines.count("where:") == SHOWN_WHOLE - 1


def test_processes_that_run_calls_of_others_come_behind_with_the_longest_first():
    waits = [LateProcess("agent", "a.log", WorkerStatus("Agent.generate", "in wait", ""))]
    runs = [
        LateProcess(
            name, f"{name}.log", WorkerStatus(doing, "in step", "", tuple(("Actor.generate", s) for s in seconds))
        )
        for name, doing, seconds in (("one", "Actor.save", (3.2,)), ("two", NO_CALL, (12.0, 11.0, 1.0)))
    ]
    lines = late("Agent.generate is late", 1, waits, runs).splitlines()
    assert [line for line in lines if line.startswith(("- ", "they"))] == [
        "- agent: is in Agent.generate",
        "they may wait for these, which run calls of others, or do not answer:",
        "- two: runs Actor.generate for others since 12 s (and 2 more such calls)",
        "- one: is in Actor.save and runs Actor.generate for others since 3 s",
    ]
    assert "object store: full; lower data.train_batch_size" in no_room("full")
