"""The process that runs math-verify: `python -m burnish.rewards.equivalence.child`, started by algebra.py.

Consumes calls (burnish/child): {"answer", "truth", "seconds"}. Sends an empty PART when it begins, then the answer
{"equal", "unreadable_truth", "seconds"} with the processor time it took, or {"error"}. The first call asks whether it
is ready: {}, or {"failed": why}. What it is given was written by a policy, so it is confined:

- **No text is evaluated.** math-verify's reader of plain expressions ends in sympy's `parse_expr`, an `eval` behind a
  tokenizer: all text goes through the LaTeX grammar instead, where `_number` replaces `sympy.Number(text)`, another
  `eval`. Against what was overlooked, an audit hook refuses to compile text in this process, but for what libraries
  write themselves: three modules that generate code, and whatever runs while a module is imported (sympy's units).
- The hook also refuses sockets, new processes, and opening files for writing. It is no sandbox against machine code.
- 2 GB of memory, no file larger than nothing, and for each question so many seconds of processor time, which the kernel
  counts: it ends the process with SIGPROF. It dies with its parent.
"""

import logging
import os
import pickle
import resource
import signal
import sys
import time
from types import FrameType
from typing import Any

from burnish.child.frames import PART, Parent

MEMORY = 2 * 2**30
_GENERATORS = {"collections", "dataclasses", "sympy.polys.monomials"}
_REFUSED = ("os.", "socket.", "subprocess.", "shutil.", "pty.", "ctypes.", "fcntl.", "urllib.", "http.")
_ALLOWED = {"os.listdir", "os.scandir"}  # for imports
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def main() -> None:
    parent = Parent(kill_group=False, limits={"AS": MEMORY, "CORE": 0}, die_at_once=True)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    first, _, _ = parent.receive()
    try:
        verifier = Verifier()
        confine()
        verifier.test()
    except Exception as error:  # noqa: BLE001  whatever it is, the parent reports it
        parent.send(first, {"failed": f"{type(error).__name__}: {error}"})
        return
    parent.send(first, {})
    while True:
        number, _, question = parent.receive()
        parent.send(number, {}, PART)
        parent.send(number, reply(verifier, pickle.loads(question)))  # noqa: S301  from the parent, privately


def reply(verifier: "Verifier", question: dict[str, Any]) -> dict[str, Any]:
    before = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, question["seconds"])
    try:
        equal = verifier.equal(question["answer"], question["truth"])
    except Exception as error:  # noqa: BLE001  math-verify catches what sympy raises; this is something else
        return {"error": f"{type(error).__name__}: {error}"}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return {"equal": bool(equal), "unreadable_truth": equal is None, "seconds": time.process_time() - before}


class Verifier:
    """math-verify, with LaTeX as its only input."""

    def __init__(self) -> None:
        import latex2sympy2_extended.latex2sympy2 as latex2sympy  # type: ignore[import-untyped]
        import math_verify  # type: ignore[import-untyped]

        self._library = math_verify
        normalisation = latex2sympy.NormalizationConfig(
            basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none"
        )  # units=False: it takes the d of 2d for days
        self._reading = [math_verify.LatexExtractionConfig(normalization_config=normalisation)]
        latex2sympy.convert_number = _number
        latex2sympy._Latex2Sympy.parse_number = lambda self, text: _number(text)
        for name in ("math_verify.parser", "math_verify.grader"):  # both warn once that they have no time limit
            logging.getLogger(name).setLevel(logging.ERROR)

    def equal(self, answer: str, truth: str) -> bool | None:
        """None: math-verify cannot read the truth."""
        parsed, wanted = self._parsed(answer), self._parsed(truth)
        if not wanted:
            return None
        if not parsed:
            return False
        return _are_multiples(parsed[0], wanted[0]) or bool(
            self._library.verify(wanted, parsed, allow_set_relation_comp=True, strict=True, timeout_seconds=None)
        )

    def test(self) -> None:
        """That the library, of whatever version, still does what is needed here."""
        right = self.equal(r"2.5\cos x\sin x", r"\frac{5}{4}\sin(2x)") and not self.equal(r"\sin 3", r"\cos 3")
        if not right:
            raise RuntimeError("math-verify does not compare as expected; known to work: math-verify 0.9")

    def _parsed(self, text: str) -> list[Any]:
        found: list[Any] = self._library.parse(
            f"${text}$", extraction_config=self._reading, fallback_mode="no_fallback", parsing_timeout=None
        )
        return found


def _are_multiples(a: Any, b: Any) -> bool:
    """Whether two inequalities are positive multiples of each other, which math-verify does not see (2x>6, x>3)."""
    from sympy import GreaterThan, LessThan, StrictGreaterThan, StrictLessThan, simplify  # type: ignore[import-untyped]

    signs = {GreaterThan: (1, False), LessThan: (-1, False), StrictGreaterThan: (1, True), StrictLessThan: (-1, True)}
    if type(a) not in signs or type(b) not in signs or signs[type(a)][1] != signs[type(b)][1]:
        return False
    left, right = ((form.lhs - form.rhs) * signs[type(form)][0] for form in (a, b))
    return left.is_polynomial() and right.is_polynomial() and bool(simplify(left / right).is_positive)


def _number(text: str) -> Any:
    """The sympy number that a token of digits stands for, without sympy's `eval` of it."""
    from sympy import Float, Integer

    digits = text.replace(",", "").replace(" ", "")
    return Integer(int(digits)) if digits.isdecimal() else Float(digits)


def confine() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    sys.addaudithook(_refuse)


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "compile":
        source, filename = arguments
        if source is not None and str(filename).startswith("<") and not _is_library_code():
            raise PermissionError("no text may be compiled here")
    elif event == "open":
        if (arguments[2] or 0) & _WRITES:
            raise PermissionError("no file may be written here")
    elif event.startswith(_REFUSED) and event not in _ALLOWED:
        raise PermissionError(f"{event} is refused here")


def _is_library_code() -> bool:
    """Whether the text being compiled is a library's own: generated for itself, or met while a module is imported."""
    frame = sys._getframe(2)
    if frame.f_globals.get("__name__") in _GENERATORS:
        return True
    above: FrameType | None = frame
    while above is not None and above.f_code.co_filename != "<frozen importlib._bootstrap>":
        above = above.f_back
    return above is not None


if __name__ == "__main__":
    main()
