"""The test harness: what test programs may do with a solution, and what they get to see.

Solutions that cheat are in tests/rewards/test_code_cheating.py.
"""

import asyncio
import collections
import datetime
import decimal
import fractions
import json
import math
import subprocess
import sys
import typing
from pathlib import Path

import pytest

from burnish.rewards.code_tests import names_in
from burnish.sandbox import Limits, Outcome
from burnish.sandbox.harness import HarnessJob, HarnessVerdict, harness_source
from burnish.sandbox.harness.candidate import usual_names
from burnish.sandbox.harness.solution import refresh
from burnish.sandbox.harness.tester import same_value
from burnish.sandbox.harness.wire import HarnessPeer
from burnish.sandbox.local import LocalSandbox

DATA = [
    None, True, 0, -7, 2**53, -(2**80), 10**5000, 0.1, math.inf, 1e-300, 2 + 3j, "", "a\n\ud800é", b"\0\xff",
    bytearray(b"x"), [], [1, [2, []]],
    (), (1, (2,)), {}, {"a": 1, (1, 2): [3], None: {4}}, set(), {1, "a"}, frozenset({1}),
    range(1, 9, 3), slice(1, None), collections.deque([1, 2], 5), collections.Counter("aab"),
    collections.OrderedDict([("b", 1), ("a", 2)]), collections.defaultdict(list, {"k": [1]}),
    decimal.Decimal("1.10"), fractions.Fraction(-1, 3), datetime.date(2024, 2, 29),
    datetime.datetime(2024, 2, 29, 1, 2, 3, 4, datetime.UTC), datetime.time(1, 2), datetime.timedelta(-1, 5, 7),
    int, ValueError,
]  # fmt: skip


class Plain(HarnessPeer):
    def __init__(self):
        """Without a pipe."""

    def reference(self, value):
        return ["left to the side", repr(value)]

    def resolve(self, tag, parts):
        return (tag, *parts)


@pytest.mark.parametrize("value", DATA, ids=lambda value: type(value).__name__)
def test_data_comes_through_the_wire_as_it_was(value):
    back = through(value)
    assert back == value and type(back) is type(value)


def through(value):
    return Plain().decode(json.loads(json.dumps(Plain().encode(value))))


def test_special_values_come_through():
    assert math.isnan(through(math.nan))
    assert through(collections.defaultdict(int))["missing"] == 0
    assert through(collections.defaultdict(lambda: 5)).default_factory is None
    point = through(collections.namedtuple("point", "x y")(1, 2))
    assert point == (1, 2) and point.y == 2
    numpy = pytest.importorskip("numpy")
    array = numpy.array([[1.5, 2.0]], dtype="float32")
    assert through(array).dtype == array.dtype and (through(array) == array).all()
    assert Plain().encode([numpy.int64(3), numpy.float64(0.5), numpy.bool_(True)]) == ["list", 3, 0.5, True]


def test_of_a_subclass_only_the_plain_value_goes_over():
    class Odd(int):
        def __eq__(self, other):
            return True

        __hash__ = int.__hash__

    class Pair(list):
        def __iter__(self):
            return iter(["never"])

    assert type(through(Odd(7))) is int
    assert through(Pair([1, 2])) == [1, 2]


@pytest.mark.parametrize("value", [object(), print, lambda: 0, iter([]), Plain, sys])
def test_objects_that_are_not_plain_data_stay_in_the_candidate(value):
    assert Plain().encode(value) == ["left to the side", repr(value)]


@pytest.mark.parametrize(
    "form",
    [
        ["type", "eval"],
        ["namedtuple", "N", ["__eq__"], 1],
        ["numpy.ndarray", "|O8", ["list"]],
        ["dict", ["list"], 1],
        [],
    ],
)
def test_forms_that_no_honest_side_writes_are_refused(form):
    with pytest.raises((ValueError, TypeError, IndexError)):
        Plain().decode(form)


def test_changes_are_made_in_the_containers_themselves():
    inner, queue = [1], collections.deque([1])
    outer = {"a": inner, "b": {1}}
    refresh(outer, {"a": [1, 2], "c": 3})
    refresh(queue, collections.deque([1, 2]))
    refresh(inner, (5,))  # not its kind: left alone
    assert outer == {"a": [1, 2], "c": 3} and outer["a"] is inner == [1, 2] and list(queue) == [1, 2]


@pytest.mark.parametrize(
    ("got", "expected", "same"),
    [
        ((1, (2, 3)), [1, [2, 3]], True), ([1], [1, 2], False), ({1: "a"}, {"1": "a"}, True), ({1: 2}, {"1": 3}, False),
        (0.1 + 0.2, 0.3, True), (1, 1.0, True), (1.00001, 1, False), (float("nan"), 1.0, False), ("1", 1, False),
        (None, None, True), (None, 0, False), (True, True, True), (object(), 1, False), ([1], "1", False),
        (3, math.inf, False), (math.inf, math.inf, True), (1e308, math.inf, False), (math.inf, -math.inf, False),
        (10**400, 1.5, False), (1e300, 10**400, False),
        (10**400, math.inf, False), (-math.inf, -math.inf, True), (3, -math.inf, False), (math.inf, 3.0, False),
        ([1, 3], [1, math.inf], False), (math.nan, math.inf, False), ("Infinity", math.inf, False),
    ],
)  # fmt: skip
def test_values_of_calls_are_compared_as_json_can_tell(got, expected, same):
    assert same_value(got, expected) is same


def test_usual_names_are_those_that_a_solution_lacks():
    source = "from math import sqrt\nimport re\nown = 1\ndef f(x: List[int]): return deque(x), sqrt, len, own, math, re"
    assert usual_names(source) == {"List": typing.List, "deque": collections.deque, "math": math}  # noqa: UP006


def judged(sandbox: LocalSandbox, solution: str, *programs: str, graded: int = 99, seconds: float = 10):
    names = names_in(programs)
    tests = [{"program": program, "take": names.take, "give": names.give} for program in programs]
    job = HarnessJob(solution, tests, names.modules, graded=graded)
    return job.verdict(asyncio.run(sandbox.run(job.program(), Limits(seconds=seconds))))


def passes(verdict: HarnessVerdict, count: int) -> bool:
    assert not verdict.why and not verdict.broken, verdict
    return verdict == HarnessVerdict((True,) * count)


def all_pass(sandbox: LocalSandbox, solution: str, programs: list[str]) -> bool:
    return passes(judged(sandbox, solution, *programs), len(programs))


def test_functions_take_and_give_data(sandbox):
    solution = "from fractions import *\ndef same(*a, **k): return a, k\ndef half(x): return Fraction(x, 2)\nLIMIT = 5"
    assert all_pass(sandbox, solution, [
        "assert same(1, [2], a={3}) == ((1, [2]), {'a': {3}})",
        "from fractions import Fraction as F\nassert half(3) == F(3, 2) and half(3) + 1 == 2.5",
        "assert LIMIT == 5 and same.__name__ == 'same'",
        "assert same(10**5000)[0][0] == 10**5000 and same(int)[0] == (int,)",
        "assert sys.getsizeof(same(1)[0]) == sys.getsizeof((1,))",
        "check = lambda candidate: candidate(1) == ((1,), {})\nassert check(same)",
    ])  # fmt: skip


def test_arguments_changed_in_place_are_seen(sandbox):
    solution = (
        "def f(x, y=None):\n    x.sort()\n    if y is not None: y['n'] = x.pop()\n"
        "def g(m):\n    m[0].append(9)\ndef h(t): t[0].add(1)"
    )
    assert all_pass(sandbox, solution, [
        "x = [3, 1, 2]\nf(x)\nassert x == [1, 2, 3]",
        "x, y = [2, 1], {}\nf(x, y=y)\nassert x == [1] and y == {'n': 2}",
        "m = [[], []]\nrow = m[0]\ng(m)\nassert row == [9] and m == [[9], []]",
        "s = set()\nh((s,))\nassert s == {1}",
    ])  # fmt: skip


def test_errors_are_those_that_the_solution_raises(sandbox):
    solution = (
        "class Mine(Exception): pass\nclass Deeper(Mine, LookupError): pass\n"
        "def f(kind, *a): raise {'v': ValueError, 'm': Mine, 'd': Deeper, 'k': KeyError}[kind](*a)\n"
        "def g(): return {}['x']"
    )
    assert all_pass(sandbox, solution, [
        "try: f('v', 'no', 3)\nexcept ValueError as e: assert e.args == ('no', 3)\nelse: assert False",
        "try: f('d')\nexcept Mine: pass\nelse: assert False",
        "try: f('d')\nexcept LookupError: pass\nelse: assert False",
        "try: g()\nexcept KeyError as e: assert e.args == ('x',)\nelse: assert False",
        "try: f('m')\nexcept (ValueError, Deeper): assert False\nexcept Mine as e: assert isinstance(e, Mine)",
    ])  # fmt: skip


def test_objects_can_be_used(sandbox):
    solution = """
import dataclasses, enum, re
from collections import OrderedDict, namedtuple
class Stack:
    size = 0
    def __init__(self): self.items = []
    def push(self, x): self.items.append(x); self.size += 1; return self
    def pop(self): return self.items.pop()
    def __len__(self): return len(self.items)
    def __getitem__(self, i): return self.items[i]
    def __iter__(self): return iter(self.items)
    def __str__(self): return f"Stack{self.items}"
    def __enter__(self): return self
    def __exit__(self, *e): self.items.clear()
@dataclasses.dataclass(order=True)
class Point:
    x: int
    y: int = 0
    def __add__(self, other): return Point(self.x + other.x, self.y + other.y)
class Cache(OrderedDict):
    def put(self, k, v): self[k] = v; self.move_to_end(k)
Pair = namedtuple("Pair", "a b")
class Colour(enum.Enum):
    RED = 1
def colour(): return Colour.RED
def count(n):
    yield from range(n)
def adder(n): return lambda x: x + n
def match(p, s): return re.match(p, s)
def swap(p): return Pair(p.b, p.a)
def link(): return Stack
"""
    assert all_pass(sandbox, solution, [
        "s = Stack()\ns.push(1).push([2])\nassert s.size == 2 and len(s) == 2 and s[1] == [2] and s[0:1] == [1]\n"
        "assert list(s) == [1, [2]] and 1 in s and 3 not in s and str(s) == 'Stack[1, [2]]' and s.pop() == [2]",
        "s = Stack()\ns.size = 9\nassert s.size == 9 and isinstance(s, Stack) and not isinstance(3, Stack)\n"
        "assert s != 9 and not s == None and s == s and not s",
        "with Stack() as s: s.push(1)\nassert len(s) == 0",
        "assert Point(1) == Point(1, 0) != Point(2) and Point(1) + Point(2, 3) == Point(3, 3) and Point(1) < Point(2)",
        "assert sorted([Point(2), Point(1)])[0].x == 1 and Point(1).y == 0",
        "c = Cache()\nc.put(1, 2)\nassert c == {1: 2} and c[1] == 2 and list(c.items()) == [(1, 2)]",
        "assert swap(Pair(1, 2)) == (2, 1) and swap(Pair(1, 2)).a == 2 and Pair(1, 2) == (1, 2)",
        "assert colour() == Colour.RED and colour() is Colour.RED and colour().value == 1 and Colour(1) == colour()",
        "assert list(count(3)) == [0, 1, 2] and sum(count(4)) == 6 and adder(2)(3) == 5\n"
        "g = count(1)\nassert next(g) == 0\ntry: next(g)\nexcept StopIteration: pass\nelse: assert False",
        "assert not hasattr(Stack(), '__array_interface__') and vars(Stack()) == {'items': []}",
        "assert match('a+', 'aab') and not match('b', 'a') and match('a+', 'aab').group() == 'aa'",
        "assert link()().push(4).items == [4] and link() is Stack and {Stack: 1}[link()] == 1",
    ])  # fmt: skip


def test_functions_of_the_test_can_be_called_by_the_solution(sandbox):
    solution = "def apply(f, xs): return [f(x) for x in xs]\ndef twice(f): return lambda x: f(f(x))\nfib = lambda n: n"
    assert all_pass(sandbox, solution, [
        "assert apply(lambda x: x * 2, [1, 2]) == [2, 4] and apply(len, ['a', '']) == [1, 0]",
        "assert apply(str, [1]) == ['1'] and twice(lambda x: x + 1)(3) == 5",
        "assert apply(lambda x: fib(x) + 1, [1, 2]) == [2, 3]",
        "def bad(x): raise KeyError(x)\n"
        "try: apply(bad, [1])\nexcept KeyError as e: assert e.args == (1,)\nelse: assert False",
    ])  # fmt: skip


def test_failures_are_reported_test_by_test(sandbox):
    solution = "import time\ndef f(x):\n    print('noise')\n    if x == 9: time.sleep(60)\n    return x"
    programs = ["assert f(1) == 1", "x = 1\nassert f(2) == 3, 'two'", *(f"assert f({x}) == {x}" for x in (3, 9, 4))]
    verdict = judged(sandbox, solution, *programs, seconds=2)
    assert verdict.passed == (True, False, True) and verdict.ended
    assert verdict.why == "AssertionError: two (assert f(2) == 3, 'two')"
    assert judged(sandbox, solution, *programs, graded=0).passed == (True, False)


def test_a_solution_is_a_module_not_the_main_program(sandbox):
    solution = "if __name__ == '__main__': raise SystemExit\nimport sys\ndef f(): return sys.stdin.read()"
    assert passes(judged(sandbox, solution, "assert f() == '' and __name__ == '__main__'", "assert f() == ''"), 2)


def test_a_harness_that_cannot_start_is_not_the_solutions_fault():
    job = HarnessJob("", [])
    assert "no output" in job.verdict(Outcome("timeout")).broken
    assert "no such module" in job.verdict(Outcome("finished", 1, "", "no such module")).broken
    assert "hidden" in job.verdict(Outcome("finished", 0, f'\n{job.nonce} {{"broken": "not hidden"}}\n')).broken
    assert job.verdict(Outcome("finished", -9, f'\n{job.nonce} {{"ready": true}}\n')) == HarnessVerdict(ended=True)
    forged = '\n{"ready": true}\nxx {"ready": true}\n'
    assert job.verdict(Outcome("finished", 0, forged)).broken


def without_sandbox(job: HarnessJob, folder: Path, source: str | None = None) -> HarnessVerdict:
    path = folder / "main.py"
    path.write_text(source or job.program().source)
    done = subprocess.run([sys.executable, path], input=job.program().stdin, capture_output=True, text=True, cwd=folder)
    return job.verdict(Outcome("finished", done.returncode, done.stdout, done.stderr))


def job_of(solution: str, program: str) -> HarnessJob:
    return HarnessJob(solution, [{"program": program, "take": ["f"], "give": {}}])


def test_another_python_compiles_the_text(tmp_path):
    """Where the server's Python is not this one, the compiled parts are of no use."""
    job = job_of("def f(x): return x", "assert f(2) == 2")
    source = harness_source().replace(repr(sys.version), "'another'", 1).replace("marshal.loads(", "refuse(")
    assert passes(without_sandbox(job, tmp_path, source), 1)


LOOKS_AT_THE_TESTER = """
import ctypes, os
libc, parent, got = ctypes.CDLL(None), os.getppid(), []
def f():
    for name in ("mem", "environ", "maps", "auxv", "fd/0", "fd/1"):
        try:
            open(f"/proc/{parent}/{name}", "rb").read(1)
            got.append(name)
        except OSError:
            pass
    text, there = ctypes.create_string_buffer(8), ctypes.c_void_p * 2
    ours, theirs = there(ctypes.addressof(text), 8), there(id(got), 8)
    if libc.process_vm_readv(parent, ours, 1, theirs, 1, 0) > 0: got.append("process_vm_readv")
    if libc.ptrace(16, parent, None, None) == 0: got.append("ptrace")
    if hasattr(os, "pidfd_open") and libc.syscall(438, os.pidfd_open(parent), 0, 0) >= 0: got.append("pidfd_getfd")
    return got
"""


def test_the_tester_is_hidden_even_without_a_sandbox(tmp_path):
    """On a server both share a container that may have /proc and no filter; and this test may be run by root."""
    assert passes(without_sandbox(job_of(LOOKS_AT_THE_TESTER, "assert f() == []"), tmp_path), 1)


def test_modules_left_behind_by_the_solution_are_not_imported(tmp_path):
    plant = "for name in ('colorsys', 'decimal', 'numpy'): open(name + '.py', 'w').write('raise SystemExit')\n"
    job = job_of(plant + "def f(): return 1", "import colorsys, decimal\nassert f()")
    assert passes(without_sandbox(job, tmp_path), 1)
    assert (tmp_path / "colorsys.py").exists()
