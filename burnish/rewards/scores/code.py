"""Code: the program in the response has to pass the row's tests, in a sandbox.

1 where it passes all of them, else 0; with `continuous` the share that it passes, of the first 10 where there are more.
`acc` is 1 where it passes all of them, either way: with `continuous`, a program that passes the first 10 runs the rest
too, until it fails one. A wrong, crashing, endless or greedy program is a 0; tests that cannot be read (ValueError) and
a sandbox that cannot run (SandboxFailed) are failures of the sample.

    ../code_answer.py   the program in a response
    ../code_tests.py    the forms of tests
    ../code_names.py    which names of the tests are the solution's
    ../code_judge.py    runs the tests and compares output

The result also has `passed` (the share of tests; without `continuous` those until the first failure), `pred` (the
program), `why` (the first failure in words), and 1.0 or 0.0 for what happened on the way: no_program, timeout,
memory, output, crash, unfinished. Python only. No torch.
"""

import asyncio
import dataclasses
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from burnish.config.reward import FUSION, LOCAL, SandboxConfig
from burnish.rewards.code_answer import program_in
from burnish.rewards.code_judge import SandboxSlots, TestRun, judge
from burnish.rewards.code_tests import read_tests
from burnish.sandbox import Sandbox, limits_of, open_sandbox

CONTINUOUS_TESTS = 10
HAPPENINGS = ("no_program", "timeout", "memory", "output", "crash", "unfinished")

# Kept, by setting: a sandbox holds a warm process or connections. Places belong to the event loop that they wait on.
_sandboxes: dict[Any, Sandbox] = {}
_places: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Any, asyncio.Semaphore]] = WeakKeyDictionary()


async def compute_score(
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    continuous: bool = False,
    sandbox: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """`sandbox` has the fields of `reward_model.sandbox`; None: the defaults."""
    tests = read_tests(ground_truth, extra_info)
    graded = min(CONTINUOUS_TESTS, len(tests)) if continuous else 0
    program = program_in(solution_str, tests)
    if program is None:
        judgement = TestRun(len(tests), why="the response holds no program", happened={"no_program"})
    else:
        judgement = await judge(program, tests, _bench(sandbox), graded)
    counted = graded or len(tests)
    share = min(judgement.passed, counted) / counted  # where others ran too, all that are graded have passed
    right = float(judgement.passed == judgement.tests)
    return {
        "score": share if continuous else right,
        "acc": right,
        "passed": share,
        "pred": program or "",
        "why": judgement.why,
        **{name: float(name in judgement.happened) for name in HAPPENINGS},
    }


def reference(ground_truth: Any, extra_info: Mapping[str, Any]) -> str:
    """A right response: the dataset's own solution. ValueError where the row has none, for tests say none."""
    tests = read_tests(ground_truth, extra_info)
    answer = extra_info.get("answer")
    if not isinstance(answer, str) or not answer.strip():
        raise ValueError("extra_info.answer is missing: tests do not say how a right program is written")
    return f"```python\n{program_in(answer, tests) or answer}\n```"


def check(ground_truth: Any, extra_info: Mapping[str, Any]) -> None:
    """ValueError where the row has no tests, or none that can be read."""
    read_tests(ground_truth, extra_info)


def _bench(sandbox: Mapping[str, Any] | None) -> SandboxSlots:
    config = SandboxConfig(**(sandbox or {}))
    config.backend = config.backend or (FUSION if config.url else LOCAL)
    setting = dataclasses.astuple(config)
    if setting not in _sandboxes:
        _sandboxes[setting] = open_sandbox(config)
    places = _places.setdefault(asyncio.get_running_loop(), {})
    if setting not in places:
        places[setting] = asyncio.Semaphore(config.max_concurrent)
    return SandboxSlots(_sandboxes[setting], limits_of(config), places[setting])
