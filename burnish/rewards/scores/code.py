"""Code: the program in the response has to pass the row's tests, in a sandbox (docs/code-rewards.md). No torch.

1 where it passes all of them, else 0; with `continuous`, the default of contests' data sources, the share that it
passes, of the first 10 where there are more.
`program_in` finds the program, code_tests.py reads the tests, `judge` runs them. Test programs and calls are one
sandboxed program for the whole row, the harness of `sandbox/harness/`. Tests of standard input and output are one
program each: the first alone, because most wrong solutions fail it, then a few at a time; output is compared outside
the sandbox, which the expected output never enters. What a program does to itself is a failed test; tests that cannot
be read (ValueError) and a sandbox that cannot run (SandboxFailed) are failures of the sample, never a 0.
"""

import ast
import asyncio
import contextlib
import dataclasses
import re
import textwrap
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from weakref import WeakKeyDictionary

from burnish.config.reward import FUSION, LOCAL, SandboxConfig
from burnish.rewards.code_tests import CONTESTS, FunctionCalls, Pairs, Programs, Tests, read_tests
from burnish.sandbox import Limits, Outcome, Program, Sandbox, limits_of, open_sandbox
from burnish.sandbox.harness import HarnessJob

CONTINUOUS_TESTS = 10
HAPPENINGS = ("no_program", "timeout", "memory", "output", "crash", "unfinished")

_FENCE = re.compile(r"`{3,}|^[ \t]*~{3,}")
_AFTER_LANGUAGE = re.compile(r"[^\w+.#-]")
_PYTHON = ("python", "py", "python3")
_DEFINED = re.compile(r"^(?:(?:async[ \t]+)?def|class)[ \t]+(\w+)|^(\w+)[ \t]*=[ \t]*lambda\b", re.MULTILINE)
_READS = re.compile(r"\b(?:(?:input|open)[ \t]*\(|(?:stdin|fileinput)\b)")
LONGEST_BARE = 100_000  # characters of a response that is a program without a fence

AT_A_TIME = 4
#: For one solution. Running time, added up over its tests, decides the score; the same by the clock, waiting included,
#: is a failure, because a busy machine says nothing about the solution.
OVERALL_SECONDS = 300.0
_SHOWN = 200
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)
TOLERANCE = Decimal("1e-6")

# Kept, by setting: a sandbox holds a warm process or connections. Places belong to the event loop that they wait on.
_sandboxes: dict[Any, Sandbox] = {}
_places: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Any, asyncio.Semaphore]] = WeakKeyDictionary()


async def compute_score(
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    continuous: bool | None = None,
    sandbox: Mapping[str, Any] | None = None,
    data_source: str = "",
) -> dict[str, Any]:
    """`sandbox` has the fields of `reward_model.sandbox`; None: the defaults."""
    tests, continuous = read_tests(ground_truth, extra_info), gives_shares(data_source, continuous)
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


def gives_shares(data_source: str, continuous: bool | None = None) -> bool:
    return data_source.lower() in CONTESTS if continuous is None else continuous


def reference(ground_truth: Any, extra_info: Mapping[str, Any]) -> str:
    """The dataset's own solution, for tests say none."""
    tests = read_tests(ground_truth, extra_info)
    answer = extra_info.get("answer")
    if not isinstance(answer, str) or not answer.strip():
        raise ValueError("extra_info.answer is missing: tests do not say how a right program is written")
    return f"```python\n{program_in(answer, tests) or answer}\n```"


def check(ground_truth: Any, extra_info: Mapping[str, Any]) -> None:
    read_tests(ground_truth, extra_info)


def _bench(sandbox: Mapping[str, Any] | None) -> "SandboxSlots":
    config = SandboxConfig(**(sandbox or {}))
    config.backend = config.backend or (FUSION if config.url else LOCAL)
    setting = dataclasses.astuple(config)
    if setting not in _sandboxes:
        _sandboxes[setting] = open_sandbox(config)
    places = _places.setdefault(asyncio.get_running_loop(), {})
    if setting not in places:
        places[setting] = asyncio.Semaphore(config.max_concurrent)
    return SandboxSlots(_sandboxes[setting], limits_of(config), places[setting])


@dataclass
class _CodeBlock:
    fence: str
    language: str
    lines: list[str]
    is_closed: bool = False

    @property
    def program(self) -> str:
        return textwrap.dedent("".join(line + "\n" for line in self.lines))


def program_in(response: str, tests: Tests) -> str | None:
    """The source text of the answer, or None: all of the response where that is Python, else the block that fits the
    tests. Lines are read one by one, so that time grows only linearly with the text."""
    if _is_python(response):
        return response
    blocks = _blocks(response)
    if not blocks:
        return None
    *_, best = sorted(blocks, key=lambda one: (_fits(one.program, tests), one.language in _PYTHON, one.is_closed))
    return best.program  # the last of those that are alike


def _blocks(response: str) -> list[_CodeBlock]:
    blocks: list[_CodeBlock] = []
    for line in response.replace("\r\n", "\n").split("\n"):
        block = blocks[-1] if blocks else None
        if block is None or block.is_closed:
            if found := _FENCE.search(line):
                info = line[found.end() :].strip()
                language = _AFTER_LANGUAGE.split(info, maxsplit=1)[0]
                in_a_sentence = line[: found.start()].strip() and info != language  # code, or a word about it
                if "`" not in info and not in_a_sentence:
                    blocks.append(_CodeBlock(found[0].strip(), language.lower(), []))
            continue
        text, fence = line.rstrip(), block.fence
        before = text.rstrip(fence[0])  # what precedes a closing fence at the end of the line
        block.is_closed = len(text) - len(before) >= len(fence) and fence not in before
        block.lines += [line] if not block.is_closed else [before] if before.strip() else []
    return blocks


def _fits(program: str, tests: Tests) -> bool:
    if isinstance(tests, Pairs):
        return bool(_READS.search(program))
    wanted = {tests.function, "Solution"} if isinstance(tests, FunctionCalls) else set(tests.names.take)
    return any(one in wanted or other in wanted for one, other in _DEFINED.findall(program))


def _is_python(text: str) -> bool:
    if not text.strip() or len(text) > LONGEST_BARE:
        return False
    try:
        with warnings.catch_warnings(action="ignore"):
            ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


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
    if outcome.status == "finished":
        last = outcome.stderr.strip().rpartition("\n")[2]
        return f"exit code {outcome.exit_code}{f', {last}' if last else ''}"
    limits = {"timeout": "time", "memory": "memory", "output": "output"}
    return f"over its limit of {limits[outcome.status]}"


def same_output(got: str, expected: str) -> bool:
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
