"""The test harness: one sandboxed program that runs tests on a solution which can neither read nor forge them.

tester.py is the program; it forks candidate.py, which runs the solution; solution.py is what test code sees of that;
wire.py is the pipe between the two. All of these run inside the sandbox and import nothing of burnish but each other;
here they are put together to one source text (`HarnessJob.program`), and the report is read (`HarnessJob.verdict`).
"""

import base64
import functools
import json
import marshal
import secrets
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from burnish.sandbox import Outcome, Program

PARTS = ("wire", "candidate", "solution", "tester")


@dataclass(frozen=True)
class HarnessVerdict:
    """What became of the tests. `broken`: the harness could not start, which says nothing about the solution."""

    passed: tuple[bool, ...] = ()  # of the tests that were decided, in order
    why: str = ""  # the first that failed, failed
    ended: bool = False  # the solution ended itself, or the tester, or was ended with it
    broken: str = ""


@dataclass(frozen=True)
class HarnessJob:
    """A solution and its tests, as `tester.py` describes them."""

    solution: str
    tests: list[dict[str, Any]]
    modules: list[str] = field(default_factory=list)  # that the tests import
    usual_names: bool = False  # give the solution names like List and deque that it does not import
    graded: int = 0  # so many tests run in any case; from there on, one that fails ends the others
    nonce: str = field(default_factory=lambda: secrets.token_hex(16))

    def program(self) -> Program:
        return Program(harness_source(), json.dumps(vars(self)))

    def verdict(self, outcome: Outcome) -> HarnessVerdict:
        """What the tester wrote. A solution that ends the tester, or all of it, leaves the rest undecided."""
        lines = [line for line in outcome.stdout.split("\n")[:-1] if line.startswith(self.nonce + " ")]
        facts = [json.loads(line.partition(" ")[2]) for line in lines]
        if not facts or "ready" not in facts[0]:
            ending = f"{outcome.status}, {outcome.stderr.strip()[-500:] or 'no output'}"
            reason = facts[0]["broken"] if facts else ending
            return HarnessVerdict(broken=f"the test harness could not start: {reason}")
        tests = [fact for fact in facts if "test" in fact]
        ended = "ended" not in facts[-1] or facts[-1]["ended"]
        why = next((fact["why"] for fact in tests if not fact["passed"]), "")
        return HarnessVerdict(tuple(fact["passed"] for fact in tests), why, ended)


@functools.cache
def harness_source() -> str:
    """The parts as one program: each becomes a module under its own name, and the last is run. A Python of this version
    takes them as compiled here, a good part of the time of a short test; another one compiles their text."""
    here = Path(__file__).parent
    texts = {f"{__name__}.{part}": (here / f"{part}.py").read_text(encoding="utf-8") for part in PARTS}
    compiled = marshal.dumps({name: compile(text, name, "exec", dont_inherit=True) for name, text in texts.items()})
    return (
        "import sys\n"
        f"if sys.version == {sys.version!r}:\n"
        f"    import binascii, marshal; parts = marshal.loads(binascii.a2b_base64({base64.b64encode(compiled)!r}))\n"
        "else:\n"
        f"    parts = {texts!r}\n"
        "for name, part in parts.items():\n"
        "    sys.modules[name] = module = type(sys)(name)\n"
        "    exec(part, module.__dict__)\n"
        "module.main()\n"
    )
