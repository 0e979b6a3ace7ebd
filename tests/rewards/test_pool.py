"""Scoring in worker processes: what comes back when a function behaves, and when it does not."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from burnish import waits
from burnish.errors import ConfigError, RewardError, WorkerError
from burnish.rewards.contract import FunctionSpec, ScoreRequest, ScoreResult
from burnish.rewards.failures import FailureWatch
from burnish.rewards.pool import ScorePool
from tests.processes import is_running, until

LIMIT_S = 5.0  # reward.timeout where one call hangs: what does not hang answers by then, on a busy machine
GOOD = "def compute_score(solution_str, ground_truth): return float(solution_str == ground_truth)"


async def scored(pool: ScorePool, request: ScoreRequest) -> ScoreResult:
    return await asyncio.wrap_future(pool.submit(request))


def score(pool: ScorePool, request: ScoreRequest) -> ScoreResult:
    return asyncio.run(scored(pool, request))


def score_all(pool: ScorePool, requests: list[ScoreRequest]) -> list[ScoreResult]:
    return [future.result() for future in [pool.submit(request) for request in requests]]


def test_scores(make_pool, request_of):
    pool = make_pool(GOOD, num_workers=2)
    results = score_all(pool, [request_of(str(i % 5)) for i in range(50)])
    assert [r.score for r in results] == [float(i % 5 == 4) for i in range(50)]
    assert {(r.error, r.data_source) for r in results} == {(None, "test/source")}
    assert all(0 < r.seconds < 60 for r in results)
    built_in = ScorePool(FunctionSpec())
    assert score(built_in, ScoreRequest("gsm8k", "#### 7", "7")).score == 1.0
    assert "has no built-in scorer" in score(built_in, request_of()).error
    built_in.close()


def test_slow_calls_use_all_processes_each_with_its_own_object(make_pool, request_of, monkeypatch, tmp_path):
    monkeypatch.setattr("burnish.rewards.pool.STARTING_AT_ONCE", 1)
    pool = make_pool(
        """
        import os, pathlib, time
        class Judge:
            built = 0
            def __init__(self, start, place):
                Judge.built += 1
                self.calls, self.place = start, pathlib.Path(place)
            def __call__(self, solution_str, bonus):
                self.calls += 1
                (self.place / f"{os.getpid()}.here").touch()
                while len(list(self.place.glob("*.here"))) < int(solution_str):
                    time.sleep(0.01)
                return {"score": self.calls + bonus, "built": Judge.built, "pid": os.getpid()}
        """,
        name="Judge",
        reward_kwargs={"start": 10, "bonus": 100, "place": str(tmp_path)},
        num_workers=3,
    )
    assert [score(pool, request_of("1")).score for _ in range(3)] == [111, 112, 113]
    results = score_all(pool, [request_of("3") for _ in range(4)])  # each until all processes are there
    assert len({r.info["pid"] for r in results}) == 3 and {r.info["built"] for r in results} == {1}
    assert 111 in {r.score for r in results}, "another process has counted for itself"


def test_many_processes_are_started_only_while_there_is_work_for_them(make_pool, request_of, monkeypatch):
    monkeypatch.setattr("burnish.rewards.pool.STARTING_AT_ONCE", 2)
    source = "import os\ndef compute_score(): return {'score': 1, 'pid': os.getpid()}"
    pool = make_pool(source, num_workers=64)
    assert len({r.info["pid"] for r in score_all(pool, [request_of()] * 50)}) < 10


@pytest.mark.parametrize(("num_workers", "at_once"), [(1, None), (1, 3), (2, 1)])
def test_calls_of_an_async_function_overlap_in_one_child_and_can_be_bounded_in_all(
    make_pool, request_of, tmp_path, num_workers, at_once
):
    source = f"""
        import asyncio, pathlib, uuid
        folder = pathlib.Path({str(tmp_path / "running")!r})
        async def compute_score(solution_str):
            mark = folder / uuid.uuid4().hex
            mark.touch()
            seen = len(list(folder.iterdir()))
            await asyncio.sleep(0.1)
            seen = max(seen, len(list(folder.iterdir())))
            mark.unlink()
            return {{"score": int(solution_str), "seen": seen}}
        """
    (tmp_path / "running").mkdir()
    pool = make_pool(source, num_workers=num_workers, at_once=at_once)
    results = score_all(pool, [request_of(str(i)) for i in range(12)])
    assert [result.score for result in results] == list(range(12))
    most = max(result.info["seen"] for result in results)
    assert most == at_once if at_once else most > 5


def test_values_of_rows_travel_as_they_are_or_are_that_samples_failure(make_pool, request_of):
    pool = make_pool("""
        def compute_score(ground_truth, extra_info):
            assert isinstance(ground_truth, tuple) and extra_info["image"] == b"\\xff"
            array = extra_info["array"]
            return {"score": float(array.sum()), "back": array, "n": array[0], "too large for JSON": [10**5000]}
        """)
    assert "cannot be sent to the scoring process" in score(pool, request_of(callback=lambda: 0)).error
    result = score(pool, ScoreRequest("s", "", (1, 2), {"array": np.arange(3), "image": b"\xff"}))
    assert result.error is None and result.score == 3.0
    assert result.info == {"back": [0, 1, 2], "n": 0, "too large for JSON": ["a whole number of 16610 bits"]}


def test_whatever_is_raised_or_returned_is_the_samples_failure_only(make_pool, request_of):
    pool = make_pool("""
        import os
        def helper(): raise KeyError("no such unit")
        def compute_score(solution_str):
            exec(solution_str)
            return float("nan") if solution_str == "nan = 1" else os.getpid()
        """)
    first = score(pool, request_of("pass")).score
    assert "Traceback" in score(pool, request_of("raise KeyboardInterrupt")).error  # others are in test_hostile.py
    error = score(pool, request_of("helper()")).error
    assert "KeyError: 'no such unit'" in error and "in helper" in error and "my_reward.py" in error
    assert "burnish/rewards" not in error
    needed = 'return a finite number, or a dict with one under "score"'
    assert score(pool, request_of("nan = 1")).error == f"compute_score of {pool.spec.path} returned nan; {needed}"
    assert score(pool, request_of("pass")).score == first, "the process is the same"


def test_whatever_an_async_function_raises_is_the_samples_failure_only(make_pool, request_of):
    ways = [
        "sys.exit(3)",
        "raise KeyboardInterrupt",
        "asyncio.current_task().cancel(); await asyncio.sleep(1)",
        "await asyncio.gather(leave())",
        "async with asyncio.TaskGroup() as tasks: tasks.create_task(leave())",
    ]
    branches = "".join(f"    if solution_str == {way!r}:\n        {way}\n" for way in ways)
    pool = make_pool(
        "import asyncio, os, sys\nasync def leave(): sys.exit(3)\nasync def compute_score(solution_str):\n"
        f"{branches}    await asyncio.sleep(0.2)\n    return os.getpid()\n"
    )
    for way in ways:
        results = score_all(pool, [request_of(), request_of(way), request_of()])
        assert "Traceback" in results[1].error and "my_reward.py" in results[1].error, way
        assert (results[0].error, results[2].error) == (None, None)
        assert results[0].score == results[2].score == score(pool, request_of()).score, "the process is the same"


def test_hanging_is_timed_out_and_the_child_replaced_with_what_it_started(make_pool, request_of, tmp_path):
    started = tmp_path / "pid"
    pool = make_pool(
        f"""
        import os, pathlib, subprocess
        def compute_score(solution_str):
            if solution_str == "hang":
                process = subprocess.Popen(["sleep", "1000"])
                pathlib.Path({str(started)!r}).write_text(str(process.pid))
                process.wait()
            return {{"score": 1.0, "pid": os.getpid()}}
        """,
        timeout=LIMIT_S,
    )
    before = score(pool, request_of()).info["pid"]
    result = score(pool, request_of("hang"))
    assert result.score is None and result.error == f"timed out: no score within reward.timeout={LIMIT_S:g} s"
    assert not Path(f"/proc/{before}").exists() and until(lambda: not is_running(int(started.read_text())))
    after = score(pool, request_of())
    assert after.score == 1.0 and after.info["pid"] != before


def test_an_async_function_that_hangs_does_not_harm_its_neighbours_but_one_that_blocks_is_killed(
    make_pool, request_of, monkeypatch
):
    monkeypatch.setattr("burnish.rewards.pool.GRACE_SECONDS", 60.0)
    pool = make_pool(
        """
        import asyncio, os, time
        async def compute_score(solution_str):
            if solution_str == "hang":
                await asyncio.sleep(1000)
            if solution_str == "block":
                time.sleep(1000)
            return {"score": 1.0, "pid": os.getpid()}
        """,
        timeout=LIMIT_S,
    )
    results = score_all(pool, [request_of("hang"), request_of(), request_of("hang"), request_of()])
    assert [r.score for r in results] == [None, 1.0, None, 1.0]
    assert f"timed out: no score within reward.timeout={LIMIT_S:g} s" in results[0].error
    first = results[1].info["pid"]
    assert score(pool, request_of()).info["pid"] == first
    monkeypatch.setattr("burnish.rewards.pool.GRACE_SECONDS", 0.1)
    assert "timed out" in score(pool, request_of("block")).error
    assert score(pool, request_of()).info["pid"] != first


@pytest.mark.parametrize("form", ["def", "async def"])
def test_killing_its_process_is_a_failure_and_the_child_is_replaced(make_pool, request_of, form):
    pool = make_pool(f"import os, signal, time\n{form} compute_score(solution_str): exec(solution_str); return 1.0")
    for end, said in {
        "os._exit(3)": "exit status 3",
        "os.kill(os.getpid(), signal.SIGSEGV)": "killed by SIGSEGV",
        "os.closerange(3, 100); time.sleep(1000)": "killed by SIGKILL",
        "os.fork() or time.sleep(1000); os._exit(5)": "exit status 5",  # it leaves a fork behind
    }.items():
        assert score(pool, request_of(end)).error == f"the scoring process died: {said}"
        assert score(pool, request_of("pass")).score == 1.0


def test_the_environment_is_the_users_own_and_a_process_that_cannot_be_started_a_failure(
    make_pool, request_of, monkeypatch
):
    source = "import os\ndef compute_score(): return {'score': 1, 'path': os.environ.get('PYTHONPATH')}"
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert score(make_pool(source), request_of()).info["path"] is None
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    assert score(make_pool(source), request_of()).info["path"] == "/somewhere"
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    assert "the scoring process could not be started" in score(make_pool(GOOD), request_of()).error


def test_a_function_that_always_hangs_is_known_after_a_few_calls(make_pool, request_of, tmp_path, num_workers=2):
    """A sample is tried again before the samples behind it are tried at all, so failures count as early as they can."""
    (tmp_path / "started").mkdir()
    source = f"""
        import pathlib, time, uuid
        def compute_score(solution_str):
            (pathlib.Path({str(tmp_path / "started")!r}) / uuid.uuid4().hex).touch()
            time.sleep(60)
        """
    pool = make_pool(source, num_workers=num_workers, timeout=0.3, retries=1)
    watch = FailureWatch(total=32, max_failure_ratio=0.05)  # one may fail

    async def score_one(uid):
        watch.add(uid, await scored(pool, request_of(str(uid))))

    async def step():
        async with asyncio.TaskGroup() as tasks:
            for uid in range(32):
                tasks.create_task(score_one(uid))

    with pytest.raises(ExceptionGroup) as error:
        asyncio.run(step())
    assert {type(reason) for reason in error.value.exceptions} == {RewardError}
    text = str(error.value.exceptions[0])
    assert text.startswith("stopped after scoring 2 of 32 samples: 2 failed, more than reward.max_failure_")
    allowed = 1
    assert len(list((tmp_path / "started").iterdir())) <= (allowed + 1 + num_workers) * (1 + pool.retries)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def Judge(answer): ...", "it requires answer, which no row can fill"),
        ("import os; os._exit(4)", "while it was loaded, the scoring process died: exit status 4"),
    ],
)
def test_check_finds_what_is_wrong_before_anything_is_scored(make_pool, request_of, source, said):
    pool = make_pool(source, name="Judge")
    with pytest.raises(ConfigError, match=rf"^custom_reward_function.name=Judge \((.|\n)*{said}"):
        pool.check()
    assert re.search(said, score(pool, request_of()).error)


def test_an_answer_that_is_too_large_does_not_harm_the_others(make_pool, request_of, tmp_path):
    asked = tmp_path / "asked"
    pool = make_pool(f"""
        import asyncio, pathlib
        from burnish.child import frames
        asked = pathlib.Path({str(asked)!r})
        async def compute_score(solution_str):
            if solution_str == "large":
                while not asked.exists():
                    await asyncio.sleep(0.01)
                frames.json_bytes = lambda value: b"x" * (65 * 2**20)
            if not asked.exists():  # the first time it waits for the end of its process
                asked.touch()
                await asyncio.sleep(1000)
            return 0.5
        """)
    other, large = score_all(pool, [request_of("other"), request_of("large")])
    assert (other.score, other.error) == (0.5, None) and "unreadable answer: it is larger than" in large.error


def test_a_cancelled_caller_frees_its_child(make_pool, request_of):
    pool = make_pool("import time\ndef compute_score(solution_str): time.sleep(float(solution_str)); return 1.0")
    pool.check()

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(scored(pool, request_of("1000")), 0.2)

    asyncio.run(give_up())
    assert score(pool, request_of("0")).score == 1.0


def test_a_cancelled_call_of_an_async_function_ends_in_the_child_too(make_pool, request_of, tmp_path):
    begun = tmp_path / "begun"
    pool = make_pool(f"""
        import asyncio, pathlib
        ended = 0
        async def compute_score(solution_str):
            global ended
            if solution_str == "hang":
                try:
                    pathlib.Path({str(begun)!r}).touch()
                    await asyncio.sleep(1000)
                except asyncio.CancelledError:
                    ended += 1
                    raise
            while not ended:
                await asyncio.sleep(0.01)
            return ended
        """)
    pool.check()

    async def give_up() -> float:
        neighbour = asyncio.ensure_future(scored(pool, request_of()))
        hangs = asyncio.ensure_future(scored(pool, request_of("hang")))
        while not begun.exists():
            await asyncio.sleep(0.01)
        hangs.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hangs
        return (await neighbour).score

    assert asyncio.run(give_up()) == 1, "the neighbour saw it end, and was not ended itself"


@pytest.mark.parametrize("while_starting", [True, False])
def test_close_ends_calls_in_flight_and_is_final(make_pool, request_of, while_starting):
    """asyncio connects a child's pipes in tasks of its own; when these were cancelled, the end never came."""
    source = "import time\n{}def compute_score(solution_str): time.sleep(1000)"
    pool = make_pool(source.format("time.sleep(60)\n" if while_starting else ""), num_workers=2)
    if not while_starting:
        pool.check()
    waiting = [pool.submit(request_of()) for _ in range(3)]
    pool.close()  # raises where it takes longer than CLOSE_SECONDS
    assert all(future.cancelled() for future in waiting)
    pool.close()
    with pytest.raises(WorkerError, match="score pool is closed"):
        pool.submit(request_of())


def test_what_waits_for_a_free_slot_is_among_the_waits(make_pool, request_of, tmp_path):
    go = tmp_path / "go"
    pool = make_pool(f"""
        import pathlib, time
        def compute_score(solution_str):
            while not pathlib.Path({str(go)!r}).exists():
                time.sleep(0.01)
            return 1
        """)
    futures = [pool.submit(request_of()) for _ in range(3)]
    slot = ("reward", "a free slot to be scored in", None)
    while [(wait.kind, wait.subject, wait.seconds) for wait in waits.longest()].count(slot) < 2:
        assert not any(future.done() for future in futures)
        time.sleep(0.01)
    go.touch()
    assert [future.result(60).score for future in futures] == [1.0] * 3 and not waits.longest()


PARENT = """
import os, signal, sys
from burnish.rewards.contract import FunctionSpec, ScoreRequest
from burnish.rewards.pool import ScorePool
pool = ScorePool(FunctionSpec(sys.argv[1]))
score = lambda text: pool.submit(ScoreRequest("s", text, None))
pid = score("0").result().score
if os.fork() == 0:
    sys.exit()  # which ends no child of its parent's
os.wait()
assert score("0").result().score == pid
print(int(pid), flush=True)
score("1000")
"""


@pytest.mark.parametrize(
    ("end", "status"),
    [("", 0), ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL)],
    ids=["ends", "is killed"],
)
def test_children_end_with_a_parent_that_never_closes_and_not_with_a_fork_of_it(reward_file, end, status):
    path = reward_file(
        "import os, time\ndef compute_score(solution_str): time.sleep(float(solution_str)); return os.getpid()"
    )
    command = [sys.executable, "-W", "ignore", "-c", PARENT + end, path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == status and done.stderr == ""
    assert until(lambda: not is_running(int(done.stdout)))


# Functions that take lists: one call for all samples, and what becomes of each.

LENGTHS = """
    import os
    calls = 0
    {form} compute_score(data_sources, solution_strs, ground_truths, extra_infos, bonus=0):
        global calls
        calls += 1
        return [
            {{"score": len(text) + bonus, "mean": sum(map(len, solution_strs)) / len(solution_strs),
              "calls": calls, "pid": os.getpid(), "source": source, "truth": truth, "info": info}}
            for source, text, truth, info in zip(data_sources, solution_strs, ground_truths, extra_infos)
        ]
    """


def requests(*texts: str) -> list[ScoreRequest]:
    return [ScoreRequest(f"s{i}", text, i, {"i": i}, index=i) for i, text in enumerate(texts)]


@pytest.mark.parametrize("form", ["def", "async def"])
def test_all_samples_go_in_one_call_to_another_process(make_pool, form):
    pool = make_pool(LENGTHS.format(form=form), reward_kwargs={"bonus": 10}, num_workers=2)
    results = pool.submit_all(requests("a", "bb", "cccccc")).result()
    assert [result.score for result in results] == [11, 12, 16]
    assert [result.data_source for result in results] == ["s0", "s1", "s2"]
    assert {result.info["mean"] for result in results} == {3.0}
    assert {result.info["calls"] for result in results} == {1} and results[0].info["pid"] != os.getpid()
    facts = [(r.info["source"], r.info["truth"], r.info["info"]) for r in results]
    assert facts == [("s0", 0, {"i": 0}), ("s1", 1, {"i": 1}), ("s2", 2, {"i": 2})]
    assert pool.submit(requests("abc")[0]).result().score == 13, "one sample is a list of one"
    assert pool.submit_all([]).result() == []
    assert pool.batch and pool.required == {"data_source", "solution_str", "ground_truth", "extra_info"}


def test_many_samples_of_a_function_for_one_are_scored_each_by_itself(make_pool):
    pool = make_pool("def compute_score(solution_str): return 1 / (len(solution_str) - 1)")
    first, second, third = pool.submit_all(requests("aa", "b", "ccc")).result()
    assert (first.score, third.score) == (1.0, 0.5) and "ZeroDivisionError" in second.error
    assert pool.batch is False


FAILURES = {
    "return [1.0]": "compute_score of {path} returned 1 results for 3 samples; return a list with a result for ea",
    "raise KeyError('unit')": "KeyError: 'unit'",
}


@pytest.mark.parametrize("form", ["def", "async def"])
def test_a_call_that_fails_fails_all_its_samples_with_the_cause(make_pool, form):
    bodies = "".join(f" if solution_strs[0] == {body!r}: {body}\n" for body in FAILURES)
    pool = make_pool(f"{form} compute_score(solution_strs):\n{bodies}")
    for body, said in FAILURES.items():
        results = pool.submit_all(requests(body, "b", "c")).result()
        assert [result.score for result in results] == [None] * 3
        assert all(said.format(path=pool.spec.path) in result.error for result in results)
        assert [(result.index, result.response) for result in results] == [(0, body), (1, "b"), (2, "c")]


def test_a_call_is_tried_again_as_a_whole(make_pool):
    source = """
        calls = 0
        def compute_score(solution_strs):
            global calls
            calls += 1
            return [calls] * (len(solution_strs) if calls > 2 else 1)
        """
    texts = requests("a", "b")
    assert [r.score for r in make_pool(source, retries=1).submit_all(texts).result()] == [None, None]
    assert [r.score for r in make_pool(source, retries=2).submit_all(texts).result()] == [3.0, 3.0]


def test_the_time_limit_grows_with_the_number_of_samples_and_is_reported(make_pool):
    source = "import time\ndef compute_score(solution_strs): time.sleep({}); return [1.0] * len(solution_strs)"
    pool = make_pool(source.format(2.5))
    pool.check()
    pool.timeout = 2.0
    assert [r.score for r in pool.submit_all(requests(*"abcd")).result()] == [1.0] * 4
    results = make_pool(source.format(1000), timeout=0.2).submit_all(requests("a", "b")).result()
    assert {r.error for r in results} == {"timed out: no scores of 2 samples within 2 × reward.timeout=0.2 s"}


@pytest.mark.hostile
@pytest.mark.long
def test_a_function_that_hangs_while_it_is_imported_is_reported_with_its_line(make_pool, caplog, monkeypatch):
    monkeypatch.setattr("burnish.rewards.pool.START_SECONDS", 12.0)
    pool = make_pool("\nimport threading; threading.Event().wait()\ndef compute_score(): return 1.0")
    with pytest.raises(ConfigError) as error:
        pool.check()
    assert "not imported within 10.8 s: still importing my_reward.py, line 2" in str(error.value)
    said = [text for text in caplog.messages if "still importing my_reward.py, line 2" in text]
    assert len(said) == 1 and said[0].endswith("the limit is 10.8 s")


NOISE = """
    import os, sys
    NOISE = b"noise " * 50_000
    def noise(times):
        for _ in range(times):
            os.write(1, NOISE)
    {before}
    def compute_score(solution_str):
        {within}
        return float(solution_str)
    """


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("before", "within"),
    [("noise(40)", "pass"), ("pass", "noise(40)"), ("pass", "os.system('yes | head -c 12000000')")],
    ids=["import", "call", "program"],
)
def test_of_what_a_function_prints_the_beginning_is_shown(make_pool, request_of, capfd, monkeypatch, before, within):
    monkeypatch.setattr("burnish.child.output.MINUTE_BYTES", 10_000)
    pool = make_pool(NOISE.format(before=before, within=within), num_workers=2)
    pool.check()
    results = score_all(pool, [request_of(str(i)) for i in range(4)])
    assert [result.score for result in results] == [0.0, 1.0, 2.0, 3.0]
    shown = capfd.readouterr().err
    assert len(shown) < 11_000 * 3 and "the rest of this minute is not shown" in shown


def test_a_function_may_close_its_output(make_pool, request_of):
    pool = make_pool("import os\ndef compute_score(): os.close(1); os.close(2); return 1.0")
    assert score(pool, request_of()).score == 1.0
