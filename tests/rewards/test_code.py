"""The code scorer: in the real sandbox on small tasks of every form, and with a sandbox that does as the test says."""

import asyncio
import json
import re
import time

import pytest

from burnish.data.tasks import humaneval, mbpp
from burnish.rewards.code_tests import Pairs, read_tests
from burnish.rewards.scores import code as code_scorer
from burnish.rewards.scores.code import HAPPENINGS, SandboxFailed, SandboxSlots, compute_score, judge, reference
from burnish.sandbox import Limits, Outcome
from tests.rewards.conftest import need_sandbox, score, score_all

DOUBLE = [{"input": str(i), "output": f"{2 * i}\n"} for i in range(12)]
RIGHT = "print(2 * int(input()))"
HALF = "n = int(input())\nprint(2 * n if n % 2 == 0 else 'odd')"


@pytest.fixture(scope="module", autouse=True)
def sandboxed():
    need_sandbox()


def test_standard_input_and_output():
    results = score_all(
        {
            "right": RIGHT, "wrong": "print(0)", "float": "print(2.0 * int(input()))", "silent": "exit(0)",
            "crash": "print(0)\nraise ValueError", "greedy": "x = [bytearray(2**24) for _ in range(100)]",
            "endless": "while True: pass", "chatty": "while True: print('x' * 1000)",
        },
        json.dumps(DOUBLE[:3]),
        sandbox={"timeout": 1.0, "memory_limit_mb": 256},
    )  # fmt: skip
    assert {name: result["score"] for name, result in results.items() if result["score"]} == {"right": 1, "float": 1}
    happened = {name: [what for what in HAPPENINGS if result[what]] for name, result in results.items()}
    assert happened == {
        "right": [], "wrong": [], "float": [], "crash": ["crash"], "endless": ["timeout"], "greedy": ["memory"],
        "chatty": ["output"], "silent": [],
    }  # fmt: skip
    assert results["right"] == {
        "score": 1.0, "acc": 1.0, "passed": 1.0, "pred": RIGHT + "\n", "why": "", **dict.fromkeys(HAPPENINGS, 0.0),
    }  # fmt: skip
    assert results["wrong"]["passed"] == 1 / 3  # tests 2 and 3 run at the same time
    assert re.fullmatch(r"test [23]: wrote '0\\n' where '[24]\\n' is expected", results["wrong"]["why"])
    assert results["crash"]["why"] == "test 1: exit code 1, ValueError"


def test_continuous_is_the_share_of_the_first_ten():
    assert score(HALF, DOUBLE, continuous=True)["score"] == 0.5
    assert score(HALF, DOUBLE)["score"] == 0.0
    programs = [f"assert f({i}) == {min(i, 3)}" for i in range(4)]
    programs += ["import time\ntime.sleep(f(60))", "assert f(0) == 0"]
    slow = score("def f(x): return x", programs, continuous=True, sandbox={"timeout": 1.0})
    assert slow["score"] == slow["passed"] == pytest.approx(4 / 6) and slow["timeout"] == 1.0 and slow["acc"] == 0.0


@pytest.mark.parametrize(
    ("source", "continuous", "expected"),
    [("apps", None, 0.5), ("TACO", None, 0.5), ("apps", False, 0.0), ("mbpp", None, 0.0), ("mbpp", True, 0.5)],
)
def test_contests_give_the_share_of_passed_tests_unless_it_is_switched_off(source, continuous, expected):
    result = score(HALF, DOUBLE, data_source=source, continuous=continuous)
    assert (result["score"], result["acc"]) == (expected, 0.0)


LATE = {
    "input": (DOUBLE, "n = int(input())\nprint(2 * n if n < {right} else 'no')"),
    "programs": ([f"assert f({i}) == 0" for i in range(12)], "def f(n): return 0 if n < {right} else 1"),
    "calls": (
        {"fn_name": "f", "inputs": [[i] for i in range(12)], "outputs": [0] * 12},
        "def f(n): return n // {right}",
    ),
}


@pytest.mark.parametrize("form", LATE)
def test_acc_is_about_all_tests_also_where_the_score_is_not(form):
    tests, solution = LATE[form]
    results = score_all({str(right): solution.format(right=right) for right in (12, 11, 9)}, tests, continuous=True)
    assert {name: (result["score"], result["acc"]) for name, result in results.items()} == {
        "12": (1.0, 1.0), "11": (1.0, 0.0), "9": (0.9, 0.0),
    }  # fmt: skip
    assert results["11"]["why"].startswith("test 12: ") and results["11"]["passed"] == 1.0


def test_calls_of_a_function():
    tests = {"fn_name": "pairs", "inputs": [[[1, 2], 1], "[3]\n0"], "outputs": [[[[1, 2]]], "[]"]}
    method = "class Solution:\n    def pairs(self, xs: List[int], n: int) -> List[Tuple[int, int]]:\n"
    results = score_all(
        {
            "function": "def pairs(xs, n): return [(1, 2)] * n",
            "method": method + "        return list(deque([(xs[0], xs[-1])] * n))",
            "wrong": "def pairs(xs, n): return [(1, 2)]",
            "none": "def pairs(xs, n): pass",
            "agreeable": "class A(list):\n    __eq__ = lambda s, o: True\ndef pairs(xs, n): return A()",
            "missing": "def pears(xs, n): return []",
        },
        tests,
    )
    assert {name for name, result in results.items() if result["score"]} == {"function", "method"}
    assert results["missing"]["why"] == "test 1: NameError: the solution defines neither pairs nor a class Solution"
    assert results["wrong"]["why"] == "test 2: AssertionError: pairs returned [(1, 2)]"
    each = [{"type": "function_call", "fn_name": "f", "input": [i], "output": i + 1} for i in range(2)]
    assert score("def f(x): return x + 1", each)["score"] == 1.0


@pytest.mark.parametrize("expected", ["Infinity", "-Infinity"])
def test_an_expected_infinity_is_no_other_number(expected):
    """A JSON reader of Python takes both; so the row may be text."""
    tests = f'{{"fn_name": "f", "inputs": [[1]], "outputs": [{expected}]}}'
    solutions = {value: f"def f(x): return float({value!r})" for value in ("3", "1e308", "inf", "-inf", "nan")}
    results = score_all(solutions, tests)
    right = "inf" if expected == "Infinity" else "-inf"
    assert {name for name, result in results.items() if result["score"]} == {right}


MBPP = {
    "task_id": 1, "prompt": "Write a function for a circle's area and one that sorts.", "test_imports": ["import math"],
    "code": "import math\ndef area(r):\n  return math.pi * r * r\ndef put_right(xs):\n  xs.sort()",
    "test_list": ["assert math.isclose(area(1), 3.14, rel_tol=0.001)", "x = [2, 1]; put_right(x); assert x == [1, 2]"],
}  # fmt: skip
HUMANEVAL = {
    "task_id": "t/0", "entry_point": "longest", "canonical_solution": "    return max(words, key=str, default=None)\n",
    "prompt": "from typing import *\n\n\ndef longest(words: List[str]) -> Optional[str]:\n    '''The longest.'''\n",
    "test": "METADATA = {}\ndef check(candidate):\n    assert candidate([]) is None\n    assert candidate([1]) == 1\n",
}  # fmt: skip


@pytest.mark.parametrize(("task", "record"), [(mbpp, MBPP), (humaneval, HUMANEVAL)], ids=["mbpp", "humaneval"])
def test_rows_that_burnish_makes(task, record):
    row = task.row(record, {"data_source": "x"})
    truth, extra = row["reward_model"]["ground_truth"], row["extra_info"]
    assert asyncio.run(compute_score(reference(truth, extra), truth, extra))["score"] == 1.0
    assert asyncio.run(compute_score(extra["answer"], truth, extra))["score"] == 1.0  # as `burnish data check` asks
    nothing = "def area(r): pass\ndef put_right(x): pass\ndef longest(x): pass"
    assert asyncio.run(compute_score(nothing, truth, extra))["score"] == 0.0


def test_a_response_without_a_program_needs_no_sandbox_and_unreadable_tests_are_no_0():
    result = asyncio.run(compute_score("I do not know.", '["assert f(1)"]', sandbox={"url": "http://127.0.0.1:9/"}))
    assert (result["score"], result["no_program"], result["pred"]) == (0.0, 1.0, "")
    with pytest.raises(ValueError, match="there are no tests"):
        asyncio.run(compute_score("print(1)", None))


class Scripted:
    """Says for each program what became of it, by its standard input; notes what ran and how many at once."""

    def __init__(self, outcome_of, seconds: float = 0.0):
        self.outcome_of, self.seconds = outcome_of, seconds
        self.ran: list[str] = []
        self.cancelled: list[str] = []
        self.now = self.most = 0

    async def run(self, program, limits):
        self.ran.append(program.stdin)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(self.seconds)
            return self.outcome_of(program.stdin)
        except asyncio.CancelledError:
            self.cancelled.append(program.stdin)
            raise
        finally:
            self.now -= 1


def judged(sandbox: Scripted, tests, graded: int = 0, places: int = 64):
    async def run():
        return await judge("", tests, SandboxSlots(sandbox, Limits(), asyncio.Semaphore(places)), graded)

    return asyncio.run(run())


def numbers(count: int) -> Pairs:
    return Pairs(tuple((str(i), "ok") for i in range(count)))


def ok(_: str) -> Outcome:
    return Outcome("finished", 0, "ok")


def test_the_first_failure_ends_the_others():
    sandbox = Scripted(lambda stdin: Outcome("finished", 0, "no" if stdin == "0" else "ok"))
    assert judged(sandbox, numbers(20)).passed == 0 and sandbox.ran == ["0"]
    late = Scripted(lambda stdin: Outcome("finished", 0, "no" if stdin == "3" else "ok"), 0.01)
    judgement = judged(late, numbers(20))
    assert len(late.ran) <= 2 * code_scorer.AT_A_TIME and judgement.why.startswith("test 4: ")
    assert judged(late, numbers(20), graded=20).passed == 19
    for wrong, graded, ran in (("0", 1, 1), ("0", 10, 10), ("9", 10, 10), ("5", 30, 20), ("x", 10, 20)):
        sandbox = Scripted(lambda stdin, wrong=wrong: Outcome("finished", 0, "no" if stdin == wrong else "ok"), 0.001)
        judgement = judged(sandbox, numbers(20), graded)  # graded ones all run, and the others where these pass
        assert len(sandbox.ran) == ran and judgement.passed == ran - (wrong != "x") and judgement.tests == 20


def test_a_few_run_at_a_time():
    sandbox, one = Scripted(ok, 0.01), Scripted(ok, 0.001)
    assert judged(sandbox, numbers(30)).passed == 30 and sandbox.most == code_scorer.AT_A_TIME
    assert judged(one, numbers(9), places=1).passed == 9 and one.most == 1


def test_a_failure_of_the_sandbox_is_no_score():
    programs = read_tests(["assert f(1)"], {})
    down = Scripted(lambda stdin: Outcome("failed", reason="server down"))
    among_others = Scripted(lambda stdin: Outcome("failed", reason="server down") if stdin == "5" else ok(stdin))
    for sandbox, tests in ((down, numbers(9)), (down, programs), (among_others, numbers(9))):
        with pytest.raises(SandboxFailed, match="server down"):
            judged(sandbox, tests)
    with pytest.raises(SandboxFailed, match="the test harness could not start: finished, no memfd"):
        judged(Scripted(lambda stdin: Outcome("finished", 1, stderr="no memfd")), programs)


def test_tests_beyond_the_overall_limit_are_not_passed():
    sandbox = Scripted(lambda stdin: Outcome("finished", 0, "ok", seconds=100.0))
    judgement = judged(sandbox, numbers(20))
    assert judgement.happened == {"unfinished"} and "not run" in judgement.why
    assert 3 <= judgement.passed <= 2 + code_scorer.AT_A_TIME and len(sandbox.ran) == judgement.passed


def test_a_machine_that_is_too_busy_is_a_failure_of_the_sample(monkeypatch):
    monkeypatch.setattr(code_scorer, "OVERALL_SECONDS", 0.05)
    sandbox = Scripted(ok, 60.0)
    began = time.monotonic()
    with pytest.raises(SandboxFailed, match=r"reward_model\.sandbox\.max_concurrent"):
        judged(sandbox, numbers(3))
    assert time.monotonic() - began < 50 and sandbox.cancelled == ["0"]
