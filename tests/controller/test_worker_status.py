"""What is said about processes that are late or gone."""

from burnish.controller.worker_status import NO_CALL, SHOWN_WHOLE, LateProcess, WorkerStatus, late, no_room, reason

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


def test_those_that_do_not_answer_come_first_and_only_some_are_told_in_full():
    there = WorkerStatus("Actor.update", "in all_reduce", "step 3")
    processes = [LateProcess(f"rank {rank}", f"{rank}.log", there) for rank in range(8)]
    processes[5] = LateProcess("rank 5", "5.log", None, "loading")
    lines = late("Actor.update is late", 9, processes).splitlines()
    assert lines[0] == "Actor.update is late; of 9 workers, these are late:"
    assert lines[1:4] == [
        "- rank 5: does not answer: stopped, or stuck",
        "last lines of 5.log:",
        "    loading",
    ]
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
    assert "node-3: full; lower data.train_batch_size" in no_room("node-3", "full")
