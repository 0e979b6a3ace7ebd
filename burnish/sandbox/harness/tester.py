"""The tester's process, and the program that the sandbox runs: tests a solution that cannot reach the tests.

Order matters. It forks the candidate first; makes itself unreadable to other processes; reads the job (JSON: nonce,
solution, tests, modules that they import) from standard input; imports what the tests import; and only then lets the
candidate run the solution. Each test runs here, with its own globals and with the solution's functions as handles. For
each it writes a line that begins with the nonce, which no other process knows; nothing else on standard output counts.
A test is {"program", "take": [names of the solution], "give": {name: [module, attribute or null]}} or {"function",
"arguments", "expected"}.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import sys

from burnish.sandbox.harness.candidate import run as run_candidate
from burnish.sandbox.harness.solution import Solution
from burnish.sandbox.harness.wire import Gone

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DUMPABLE = 4  # PR_SET_DUMPABLE
SHOWN = 300
TOLERANCE = 1e-6
INFINITY = float("inf")
TEST = "<test>"
ENDED = "the solution has ended itself"


def main() -> None:
    requests, replies = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(requests[1])
        os.close(replies[0])
        run_candidate(requests[0], replies[1])
    os.close(requests[0])
    os.close(replies[1])
    hidden = ctypes.CDLL(None).prctl(DUMPABLE, 0, 0, 0, 0) == 0
    job = json.loads(sys.stdin.buffer.read())
    report = Report(job["nonce"])
    solution = Solution(replies[0], requests[1])
    state, *why = solution.receive()
    if not hidden or state != "ready":
        report.line(broken=why[0] if why else "the tester's process cannot be hidden from others")
        return
    prepare(job["modules"])
    report.line(ready=True)
    test_all(job, solution, report)
    report.line(ended=solution.gone)
    os.kill(child, 9)
    os._exit(0)  # there is nothing to tidy up, and tidying takes time


class Report:
    """What the sandbox's owner reads. Tests that print write nowhere."""

    def __init__(self, nonce: str):
        self._nonce = nonce
        self._out = os.dup(1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

    def line(self, **facts: Any) -> None:
        os.write(self._out, f"\n{self._nonce} {json.dumps(facts)}\n".encode())


def prepare(modules: list[str]) -> None:
    """Import what the tests will, while no file can have been planted; and nothing from where one could be later."""
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError:
            continue  # the test that imports it will say so
    homes = tuple({sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix})
    sys.path[:] = [path for path in sys.path if path.startswith(homes) and path != os.getcwd()]


def test_all(job: dict[str, Any], solution: Solution, report: Report) -> None:
    try:
        solution.ask("load", job["solution"], job["usual_names"])
        problem = None
    except BaseException as error:  # noqa: BLE001  whatever the solution raises, or that it ended itself
        problem = f"the solution does not load: {described(error)}"
    failed = False
    for number, test in enumerate(job["tests"]):
        why = problem or failure_of(test, solution)
        report.line(test=number, passed=why is None, why=why)
        failed = failed or why is not None
        if problem or (failed and number + 1 >= job["graded"]):
            return


def failure_of(test: dict[str, Any], solution: Solution) -> str | None:
    try:
        if "program" in test:
            run_program(test, solution)
        else:
            run_call(test, solution)
    except BaseException as error:  # noqa: BLE001  a test fails by raising, whatever it is
        return described(error, test.get("program", ""))
    return ENDED if solution.gone else None


def run_program(test: dict[str, Any], solution: Solution) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    for name, (module, attribute) in test["give"].items():
        found = importlib.import_module(module)
        names[name] = getattr(found, attribute) if attribute else found
    names.update(solution.names(test["take"]))
    exec(compile(test["program"], TEST, "exec", dont_inherit=True, optimize=0), names)


def run_call(test: dict[str, Any], solution: Solution) -> None:
    name = test["function"]
    found = solution.names([name, "Solution"])
    if name not in found and "Solution" not in found:
        raise NameError(f"the solution defines neither {name} nor a class Solution")
    function = found[name] if name in found else getattr(found["Solution"](), name)
    result = function(*test["arguments"])
    if not any(same_value(result, expected) for expected in test["expected"]):
        raise AssertionError(f"{name} returned {shortened(repr(result))}")


def same_value(got: Any, expected: Any) -> bool:
    """Whether a call returned what was expected, which was written as JSON. That knows neither tuples nor keys that are
    no text: a tuple equals a list of the same items, and keys are compared as text. Numbers may differ by a millionth,
    where one of them is a float; what is infinite equals only itself."""
    if isinstance(got, (list, tuple)) and isinstance(expected, list):
        return len(got) == len(expected) and all(map(same_value, got, expected))
    if isinstance(got, dict) and isinstance(expected, dict):
        texts = {str(key): value for key, value in got.items()}
        return texts.keys() == expected.keys() and all(same_value(texts[key], expected[key]) for key in expected)
    if isinstance(got, float) or isinstance(expected, float):
        numbers = isinstance(got, (int, float)) and isinstance(expected, (int, float))
        if not numbers or got == expected or INFINITY in (abs(got), abs(expected)):
            return numbers and got == expected
        try:
            return abs(got - expected) <= TOLERANCE * max(1.0, abs(expected))
        except OverflowError:  # a whole number larger than any float
            return False
    return type(got) in (bool, int, str, type(None)) and bool(got == expected)


def described(error: BaseException, program: str = "") -> str:
    """An exception in a line, with the line of the test where it came up."""
    try:
        text = ENDED if isinstance(error, Gone) else f"{type(error).__name__}: {error}".rstrip(": ")
    except BaseException as worse:  # noqa: BLE001  its text may be the solution's to tell
        text = f"{type(error).__name__}, whose text cannot be had ({type(worse).__name__})"
    step, number = error.__traceback__, 0
    while step is not None:
        number = step.tb_lineno if step.tb_frame.f_code.co_filename == TEST else number
        step = step.tb_next
    lines = program.splitlines()
    return shortened(text) + (f" ({shortened(lines[number - 1].strip())})" if 0 < number <= len(lines) else "")


def shortened(text: str) -> str:
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


if __name__ == "__main__":
    main()
