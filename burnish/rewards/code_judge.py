"""Runs a solution's tests in a sandbox and counts how many it passes.

Consumes a solution's source, the row's tests and a `SandboxSlots` (a sandbox with its limits and places); produces a
`TestRun`. Test programs and calls are one sandboxed program for the whole row, the harness of `sandbox/harness/`, so
the sandbox's time limit is for all of them together. Tests of standard input and output are one program each: the first
alone, because most wrong solutions fail it, then a few at a time. It waits for a free place and for programs.

The first test that fails ends the others. Where the first few are `graded` one by one, these run in any case, and the
others only where all of these pass.

Output is compared outside the sandbox, which the expected output never enters. Lines are compared one by one, word by
word; empty lines and the number of blanks do not count. A word that is written differently still agrees where both are
numbers and at least one is written with a point or an exponent: `3` and `3.0` are equal; where the *expected* number
has a point or an exponent, the other may differ by a millionth (of its size, or absolutely below 1). Whole numbers are
compared as text, so `007` is not `7` and no digit of a long one is overlooked. Which words share a line counts, and so
does upper or lower case.

What a program does to itself is a failed test; a sandbox that could not run it is `SandboxFailed`, never a 0. No torch.
"""

import asyncio
import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from burnish.rewards.code_tests import FunctionCalls, Pairs, Programs, Tests
from burnish.sandbox.harness import HarnessJob
from burnish.sandbox.program import Limits, Outcome, Program, Sandbox

AT_A_TIME = 4
#: For one solution. Running time, added up over its tests, decides the score; the same by the clock, waiting included,
#: is a failure, because a busy machine says nothing about the solution.
OVERALL_SECONDS = 300.0
_SHOWN = 200
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)
TOLERANCE = Decimal("1e-6")


class SandboxFailed(RuntimeError):
    """The sandbox could not do its work, which says nothing about the solution."""


@dataclass
class SandboxSlots:
    """Where programs run: a sandbox, the limits of one program, and how many may run at a time."""

    sandbox: Sandbox
    limits: Limits
    places: asyncio.Semaphore

    async def run(self, program: Program) -> Outcome:
        async with self.places:
            outcome = await self.sandbox.run(program, self.limits)
        if outcome.status == "failed":
            raise SandboxFailed(f"the sandbox could not run the program: {outcome.reason}")
        return outcome


@dataclass
class TestRun:
    """How many of the tests are passed, and what happened. Tests that were not run are not passed."""

    tests: int
    passed: int = 0
    why: str = ""  # the first that failed, failed
    happened: set[str] = field(default_factory=set)  # of timeout, memory, output, crash, unfinished

    def fail(self, number: int, why: str) -> None:
        self.why = self.why or f"test {number + 1}: {why}"[:_SHOWN]


async def judge(solution: str, tests: Tests, bench: SandboxSlots, graded: int = 0) -> TestRun:
    """Run the first `graded` tests, and then on while none fails."""
    try:
        async with asyncio.timeout(OVERALL_SECONDS):
            if isinstance(tests, Pairs):
                return await _judge_pairs(solution, tests, bench, graded)
            return await _judge_in_harness(solution, tests, bench, graded)
    except TimeoutError:
        raise SandboxFailed(
            f"{OVERALL_SECONDS:g} s were not enough to run the tests on this machine; run fewer programs at a time "
            "(reward_model.sandbox.max_concurrent)"
        ) from None


async def _judge_in_harness(
    solution: str, tests: Programs | FunctionCalls, bench: SandboxSlots, graded: int
) -> TestRun:
    if isinstance(tests, Programs):
        names: dict[str, Any] = {"take": tests.names.take, "give": tests.names.give}
        programs = [{"program": program, **names} for program in tests.programs]
        job = HarnessJob(solution, programs, modules=tests.names.modules, graded=graded)
    else:
        calls = zip(tests.arguments, tests.expected, strict=True)
        listed = [{"function": tests.function, "arguments": given, "expected": wanted} for given, wanted in calls]
        job = HarnessJob(solution, listed, usual_names=True, graded=graded)
    outcome = await bench.run(job.program())
    verdict = job.verdict(outcome)
    if verdict.broken:
        raise SandboxFailed(verdict.broken)
    judgement = TestRun(len(tests), sum(verdict.passed))
    if verdict.ended:
        judgement.happened.add("crash" if outcome.status == "finished" else outcome.status)
    if judgement.passed < len(tests):
        first = next((i for i, passed in enumerate(verdict.passed) if not passed), len(verdict.passed))
        judgement.fail(first, verdict.why or _ending(outcome))
    return judgement


async def _judge_pairs(solution: str, tests: Pairs, bench: SandboxSlots, graded: int) -> TestRun:
    judgement = TestRun(len(tests))
    cases = list(enumerate(tests.pairs))
    spent = 0.0

    async def work(waiting: Iterator[tuple[int, tuple[str, str]]]) -> None:
        nonlocal spent
        for number, (stdin, expected) in waiting:
            if spent >= OVERALL_SECONDS:
                judgement.happened.add("unfinished")
                judgement.fail(number, f"not run: the tests before it took {OVERALL_SECONDS:g} s")
                return
            outcome = await bench.run(Program(solution, stdin))
            spent += outcome.seconds
            if outcome.succeeded and same_output(outcome.stdout, expected):
                judgement.passed += 1
                continue
            if outcome.succeeded:
                judgement.fail(number, f"wrote {outcome.stdout[:60]!r} where {expected[:60]!r} is expected")
            else:
                judgement.happened.add("crash" if outcome.status == "finished" else outcome.status)
                judgement.fail(number, _ending(outcome))
            if number >= graded:
                raise _Decided

    with contextlib.suppress(_Decided):
        for group in (cases[:1], cases[1:graded], cases[max(1, graded) :]):
            if group and group[0][0] >= graded and judgement.why:
                break
            waiting = iter(group)  # each takes what is next
            tasks = [asyncio.create_task(work(waiting)) for _ in group[:AT_A_TIME]]
            try:
                await asyncio.gather(*tasks)
            finally:  # where one raises, the others end too
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
    return judgement


class _Decided(Exception):
    """A test has failed and no other matters."""


def _ending(outcome: Outcome) -> str:
    """How a program ended that did not end well."""
    if outcome.status == "finished":
        last = outcome.stderr.strip().rpartition("\n")[2]
        return f"exit code {outcome.exit_code}{f', {last}' if last else ''}"
    limits = {"timeout": "time", "memory": "memory", "output": "output"}
    return f"over its limit of {limits[outcome.status]}"


def same_output(got: str, expected: str) -> bool:
    """Whether a program wrote what was expected."""
    ours, theirs = ([words for line in text.splitlines() if (words := line.split())] for text in (got, expected))
    return [len(line) for line in ours] == [len(line) for line in theirs] and all(
        map(_same_word, [word for line in ours for word in line], [word for line in theirs for word in line])
    )


def _same_word(got: str, expected: str) -> bool:
    if got == expected:
        return True
    is_loose, ours_is_loose = (any(sign in word for sign in ".eE") for word in (expected, got))
    if not (is_loose or ours_is_loose) or not (_NUMBER.fullmatch(got) and _NUMBER.fullmatch(expected)):
        return False
    one, other = Decimal(got), Decimal(expected)
    return one == other or (is_loose and abs(one - other) <= TOLERANCE * max(Decimal(1), abs(other)))
