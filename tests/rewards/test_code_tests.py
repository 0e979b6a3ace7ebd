"""The forms of tests, where the names in them come from, and how output is compared."""

import json

import numpy as np
import pytest

from burnish.rewards.code_tests import FunctionCalls, Pairs, Programs, names_in, read_tests
from burnish.rewards.scores.code import check, program_in, reference, same_output
from tests.rewards.conftest import quick

PAIRS = Pairs((("1\n2", "3"), ("4", "5")))


@pytest.mark.parametrize(
    "value",
    [
        [{"input": "1\n2", "output": "3"}, {"input": "4", "output": "5", "explanation": "easy"}],
        {"inputs": ["1\n2", "4"], "outputs": ["3", "5"]},
        {"inputs": [["1", "2"], 4], "outputs": [["3"], 5], "fn_name": None},
        {"input": ["1\n2", "4"], "output": ["3", "5"]},
        [
            {"type": "stdin_stdout", "input": "1\n2", "output": "3", "fn_name": None},
            {"testtype": "stdin", "input": "4", "output": "5", "metadata": {}},
        ],
    ],
)
@pytest.mark.parametrize("written", [json.dumps, lambda value: json.dumps(json.dumps(value)), lambda value: value])
def test_forms_of_input_and_output(value, written):
    assert read_tests(written(value), {}) == PAIRS


def test_test_cases_take_precedence_over_the_ground_truth():
    """`test_cases` goes first, from wherever it came; an empty one does not count. Tables give arrays."""
    cases = [{"input": "1\n2", "output": "3"}, {"input": "4", "output": "5"}]
    assert read_tests(np.array(cases), {}) == PAIRS
    assert read_tests("def solve(): ...", {"test_cases": cases}) == PAIRS
    assert read_tests(None, {"test_cases": json.dumps(cases)}) == PAIRS
    assert read_tests(cases, {"test_cases": []}) == PAIRS
    assert read_tests(cases, None) == PAIRS


def test_calls():
    tests = read_tests({"fn_name": "add", "inputs": [[1, 2], "3\n[4]"], "outputs": [[3], "7"]}, {})
    assert tests == FunctionCalls("add", ([1, 2], [3, [4]]), ([[3], 3], ["7", 7]))
    items = [
        {"type": "function_call", "fn_name": "f", "input": [1], "output": 2},
        {"fn_name": "f", "input": "3", "output": 4},
    ]
    assert read_tests(items, {}) == FunctionCalls("f", ([1], [3]), ([2], [4]))


def test_a_test_without_input_sends_nothing():
    assert read_tests({"inputs": [None], "outputs": ["3"]}, {}) == Pairs((("", "3"),))


@pytest.mark.parametrize("written", [json.dumps, lambda value: value])
@pytest.mark.parametrize("others", [{}, {"inputs": ["", ""], "outputs": [None, None], "fn_name": None}])
def test_programs_as_assert_case(written, others):
    programs = ["assert f(1) == 2", "assert f(2) == 4"]
    assert read_tests(written({"assert_case": programs, **others}), {}) == read_tests(programs, {})


def test_programs():
    programs = ["import math\nassert math.isclose(f(1), 2)", "assert f(2)"]
    tests = read_tests(json.dumps(programs), {})
    assert isinstance(tests, Programs) and tests.programs == tuple(programs)
    assert (tests.names.take, tests.names.give, tests.names.modules) == (["f"], {}, ["math"])
    assert read_tests("assert f(1) == 2\nassert f(2) == 3", {}).programs == ("assert f(1) == 2\nassert f(2) == 3",)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "there are no tests in reward_model.ground_truth"),
        ("", "there are no tests"),
        ([], "there are no tests"),
        ("[]", "an empty list"),
        ("42", "int is none of the forms"),
        ("the answer is 42", "invalid syntax"),
        ('{"inputs": ["1"], "outputs": []}', "1 inputs and 0 outputs"),
        ({"inputs": [], "outputs": []}, "0 inputs"),
        ({"tests": []}, "no lists 'inputs' and 'outputs'"),
        ({"assert_case": ["assert f(1)"], "inputs": ["1"]}, "'inputs' next to 'assert_case': keep one"),
        ([{"input": "1"}], "neither all strings nor all objects"),
        (["assert f(1)", {"input": "1", "output": "2"}], "neither all strings"),
        (["assert f(1) =="], "invalid syntax"),
        (["x = 1"], "test 1 checks nothing"),
        (["assert True"], "they call nothing of the solution's"),
        (["assert len([1]) == 1 and sum([1]) == 1"], "they call nothing"),
        ({"fn_name": "f", "inputs": ["1 2"], "outputs": ["3"]}, "'1 2' are not JSON"),
        ({"fn_name": ["f"], "inputs": [[1]], "outputs": [3]}, "is no name"),
        (
            [{"fn_name": "f", "input": [1], "output": 2}, {"fn_name": "g", "input": [1], "output": 2}],
            "functions, or none: f, g",
        ),
        ([{"fn_name": "f", "input": [1], "output": 2}, {"input": "1", "output": "2"}], "different functions, or none"),
        ([{"type": "function_call", "input": [1], "output": 2}], "'function_call' without fn_name"),
        ([{"type": "stdin", "fn_name": "f", "input": [1], "output": 2}], "'stdin' with fn_name"),
        ([{"function": "f", "input": [1], "output": 2}], "'function' is not known next to input"),
        ({"func_name": "f", "inputs": [[1]], "outputs": [2]}, "'func_name' is not known next to input"),
    ],
)
def test_what_cannot_be_read_is_named_with_the_forms(value, message):
    with pytest.raises(ValueError, match=message) as caught:
        check(value, {})
    assert '{"inputs": […], "outputs": […]}' in str(caught.value)
    if value:
        assert str(caught.value).startswith("reward_model.ground_truth=")
        with pytest.raises(ValueError, match="^test_cases="):
            check("[]", {"test_cases": value})


@pytest.mark.parametrize(
    ("programs", "take", "give"),
    [
        (["assert set(f([1])) == {1}"], ["f"], {}),
        (["assert sum(10, 15) == 6", "assert sum(1, 2) == 1"], ["sum"], {}),
        (["assert sum(f(1)) == 6"], ["f"], {}),
        (["assert f(1) == sys.getsizeof(1)"], ["f"], {"sys": ("sys", None)}),
        (["assert np.allclose(f(1), [1])"], ["f"], {"np": ("numpy", None)}),
        (["assert Counter(f(1)) == Counter('a')"], ["f"], {"Counter": ("collections", "Counter")}),
        (["c = Counter()\nc.add(1)\nassert c.total() == 1"], ["Counter", "c"], {}),
        (["assert bisect([1], 1) == 1"], ["bisect"], {}),
        (["import f\nassert g(f) == 1"], ["g"], {}),
        (["def check(candidate):\n    assert candidate(1) == 2\ncheck(f)"], ["candidate", "f"], {}),
        (["x = f(1)\nassert x == 1"], ["f", "x"], {}),
        (["f = f(1)\nassert f == 1 and g()"], ["f", "g"], {}),
    ],
)
def test_where_names_come_from(programs, take, give):
    names = names_in(programs)
    assert (names.take, names.give) == (take, give)


@pytest.mark.parametrize(
    ("got", "expected", "same"),
    [
        ("3\n", "3", True), ("3  \n\n\n", "3\n", True), ("a b\nc", "a b\nc\n", True), ("\r\n3\r\n", "\n3", True),
        ("", "", True), ("\n", "", True), ("", "3", False), ("3", "", False),
        (" 3", "3", True), ("3\n\n4", "3\n4", True), ("a  b", "a b", True), ("\ta \t b\n \nc", "a b\nc", True),
        ("Yes", "YES", False), ("a\nb", "a b", False), ("ab", "a b", False), ("a", "a\na", False),
        ("3.0", "3", True), ("3", "3.0", True), ("3.0000001", "3", False), ("3.0000001", "3.0", True),
        ("0.3333333", "0.333333333", True), ("0.333", "0.333333333", False), ("1e3", "1000", True),
        ("1e-3", ".001", True),
        ("100000000.9", "100000000.0", True), ("100000200.0", "100000000.0", False), ("-0.0", "0.0", True),
        ("007", "7", False), ("1" * 30 + "2", "1" * 30 + "3", False), ("2e400", "1e400", False), ("nan", "nan", True),
        ("inf", "1e999", False), ("x 1.0 y", "x 1 y", True), ("1.0.0", "1.0", False), ("1,0", "1.0", False),
    ],
)  # fmt: skip
def test_output_is_compared_line_by_line(got, expected, same):
    assert same_output(got, expected) is same


@pytest.mark.parametrize(
    ("response", "program"),
    [
        ("```python\na = 1\n```", "a = 1\n"),
        ("First\n```python\na = 1\n```\nbetter:\n```python\na = 2\n```\nDone.", "a = 2\n"),
        ("```Python3\na = 1\n```", "a = 1\n"),
        ("```python\na = 1\n```\nprints\n```\n1\n```", "a = 1\n"),
        ("```\na = 1\n```\n```text\nb\n```", "b\n"),
        ("1. Do\n   ```py title=x\n   a = 1\n   if a:\n     b = 2\n   ```", "a = 1\nif a:\n  b = 2\n"),
        ("```python\na = 1\n```\nBetter\n```python\na = ", "a = 1\n"),
        ("Cut short\n```python\na = 1\nb = ", "a = 1\nb = \n"),
        ("As text\n```\na\n```\n```python\na = 1", "a = 1\n"),
        ("~~~python\na = '```'\n~~~", "a = '```'\n"),
        ("````python\na = '''\n```\n'''\n````", "a = '''\n```\n'''\n"),
        ("Code: ```python\na = 1\n```", "a = 1\n"),
        ("```python\na = 1```\nDone.", "a = 1\n"),
        ("```python\r\na = 1\r\nb = 2\r\n```\r\nDone.", "a = 1\nb = 2\n"),
        ("Use ```a = 0``` here:\n```python\na = 1\n```", "a = 1\n"),
        ("With ``` a block\n```python\na = 1\n```", "a = 1\n"),
        ("s = '''\n```python\na = 1\n```\n'''", "s = '''\n```python\na = 1\n```\n'''"),
        ("def f():\n    return '```'", "def f():\n    return '```'"),
        ("a = 1", "a = 1"),
        ("The answer is 42.", None),
        ("", None),
        ("(" * 5000, None),
        ("x\0", None),
    ],
)
def test_the_program_in_a_response(response, program):
    assert program_in(response, PAIRS) == program


def fenced(*programs: str) -> str:
    return "\n".join(f"Text.\n```python\n{program}\n```" for program in programs)


SOLUTION = "def f(x):\n    return x"
ASSERTS = read_tests(["x = f(1)\nassert x == 1"], {})


@pytest.mark.parametrize(
    ("tests", "solution", "others"),
    [
        (ASSERTS, SOLUTION, ["x = f(1)\nprint(x)", "assert f(1) == 1", "def test_f():\n    assert f(1) == 1"]),
        (ASSERTS, "f = lambda x: x", ["print(f(1))"]),
        (ASSERTS, "async def f(x) -> int: ...", ["class A:\n    def f(self): pass"]),
        (FunctionCalls("f", ([1],), ([1],)), "class Solution:\n    def f(self, x): ...", ["print(Solution().f(1))"]),
        (PAIRS, "print(int(input()) + 1)", ["print(solve(3))  # the input is 3"]),
        (PAIRS, "import sys\nprint(sys.stdin.read())", ["assert solve(3) == 4"]),
    ],
)
def test_a_block_that_fits_the_tests_goes_before_a_later_one(tests, solution, others):
    for other in others:
        assert program_in(fenced(solution, other), tests) == solution + "\n"
        assert program_in(fenced(other, solution), tests) == solution + "\n"
        assert program_in(fenced(solution).replace("python", "") + "\n" + fenced(other), tests) == solution + "\n"
    assert program_in(fenced("before = 1\n" + solution, *others, solution), tests) == solution + "\n"
    broken = f"{solution}\n1 +"  # the last word is the answer, be it no Python
    assert program_in(fenced(solution, broken), tests) == broken + "\n"
    cut = fenced(solution) + "\nBetter:\n```python\n" + solution[:-1]
    assert program_in(cut, tests) == solution + "\n"


LONG = 200_000


ODD = [
    *("```" + unit * LONG + end for unit, end in (("a", ""), ("a", "`"), (" ", "`"))),
    *(unit * (LONG // len(unit)) for unit in ("```a\n", "`", "``` ", "```\n", "```\nx\n```\n", "\n", "(", "f(")),
    " " * LONG + "~~",
    "```python\n" + " " * LONG + "x",
    *("```python\n" + unit * (LONG // len(unit)) for unit in ("input" + " " * 99, "async ", "x")),
]


@pytest.mark.parametrize("tests", [PAIRS, ASSERTS], ids=["input", "programs"])
def test_an_odd_response_takes_no_long_time(tests):
    for text in ODD:
        with quick(text):
            program_in(text, tests)


def test_the_reference_is_the_datasets_solution():
    assert reference('["assert f(1)"]', {"answer": "def f(x): return x"}) == "```python\ndef f(x): return x\n```"
    assert reference('["assert f(1)"]', {"answer": "```python\nx = 1\n```"}) == "```python\nx = 1\n\n```"
    with pytest.raises(ValueError, match=r"extra_info\.answer is missing"):
        reference('["assert f(1)"]', {})
