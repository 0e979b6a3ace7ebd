r"""What a response answers and what a row holds to be right: shared by math, math_dapo, prime_math and geo3k. `judged`
is what a scorer gives back; `rule_of_truth` makes its `reference`, which is its `check` too.
"""

import math
import numbers
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from burnish.rewards.equivalence import LONGEST, Equivalence, equivalent

_BOX = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])\s*")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # a brace behind a backslash is a character of the formula
_OPEN_END = re.compile(r"\$|\\\)|\\\]|\n")
_STATED = re.compile(r"\banswer\s*+(?:is\b\s*+:?|[*_\s]*+:)[\s*_]*+(?=\S)", re.IGNORECASE)
_DISPLAY = re.compile(r"(?:\$\$|\\[\[\]])\s*")
_ONE_FORMULA = re.compile(r"[^$]*(?<!\\)\$\$?([^$]+)(?<!\\)\$\$?[^$]*")
_SENTENCE = re.compile(r"[.!?](?=\s)|,?\s\(?(?:because|since|which|where)\b")


def judged(
    scorer: str, answer: str | None, ground_truth: Any, seconds: float, tolerance: float = 0.0, wrong: float = 0.0
) -> dict[str, Any]:
    """The result for an answer: 1 where it is the same mathematics as the ground truth, else `wrong`."""
    truth = truth_text(ground_truth, scorer)
    verdict = equivalent(answer, truth, seconds, tolerance) if answer else Equivalence(False)
    return {
        "score": 1.0 if verdict.equal else wrong,
        "acc": float(verdict.equal),
        "pred": answer or "",
        "timed_out": float(verdict.timed_out),
        "unreadable_truth": float(verdict.unreadable_truth),
    }


def rule_of_truth(scorer: str, before: str = "") -> Callable[[Any, Mapping[str, Any]], str]:
    """A scorer's `reference`: a right response, which boxes the truth."""
    return lambda ground_truth, extra_info: f"{before}\\boxed{{{truth_text(ground_truth, scorer)}}}"


class Box(NamedTuple):
    """The last box: what it holds, None where it is never closed, and where it ends."""

    content: str | None
    end: int


def last_boxed(text: str) -> str | None:
    """What the last box holds. None: there is none, or it is not closed, as in a response that was cut."""
    box = last_box(text)
    return box.content if box else None


def last_box(text: str) -> Box | None:
    start = max((match.end() for match in _BOX.finditer(text)), default=-1)
    if start < 0:
        return None
    if not text.startswith("{", start):
        stop = _OPEN_END.search(text, start)
        end = stop.start() if stop else len(text)
        return Box(text[start:end].strip(), end)
    depth = 0
    for brace in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0 and brace[0] == "}":
            return Box(text[start + 1 : brace.start()].strip(), brace.end())
    return Box(None, len(text))


def stated(text: str, pattern: re.Pattern[str] = _STATED, start: int = 0) -> str | None:
    """What follows the last "answer is" or "answer:" (or `pattern`): a box, the only formula, else the sentence."""
    at = max((match.end() for match in pattern.finditer(text, start)), default=None)
    if at is None:
        return None
    display = _DISPLAY.match(text, at)
    if display:
        at = display.end()
    line = text[at:].partition("\n")[0][: 2 * LONGEST]
    if (boxed := last_boxed(line)) is not None:
        return boxed
    if display:
        return _DISPLAY.split(line, maxsplit=1)[0].strip()
    if formula := _ONE_FORMULA.fullmatch(line):
        return formula[1].strip()
    sentence = _SENTENCE.split(line, maxsplit=1)[0]
    return sentence.strip().strip("*_").strip().rstrip(".").strip()


def truth_text(ground_truth: Any, scorer: str) -> str:
    """The ground truth as LaTeX. ValueError, naming the scorer, where it is no answer that can be compared with."""
    where = f"reward_model.ground_truth={str(ground_truth)[:60]!r}: {scorer} needs the answer as text or a number"
    if isinstance(ground_truth, str):
        boxed = last_boxed(ground_truth)
        text = ground_truth.strip() if boxed is None else boxed
    elif isinstance(ground_truth, numbers.Real) and not isinstance(ground_truth, bool):
        if not math.isfinite(ground_truth):
            raise ValueError(where)
        whole = ground_truth == math.floor(ground_truth)  # tables make floats of integers
        text = str(math.floor(ground_truth)) if whole else str(ground_truth)
    else:
        raise ValueError(f"{where}, not {type(ground_truth).__name__}")
    if not text:
        raise ValueError(f"{where}; it is empty")
    if len(text) > LONGEST:
        raise ValueError(f"{where} of at most {LONGEST} characters; it has {len(text)}")
    return text
