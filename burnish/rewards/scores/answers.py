r"""What a response answers and what a row holds to be right: shared by math, math_dapo, prime_math and geo3k.

`last_boxed` finds the last \boxed{…} (or \fbox{…}, or `\boxed 7` without braces), `stated` what stands behind the last
"answer is" or "answer:". `truth_text` gives a ground truth as text and refuses what cannot be one.
"""

import math
import numbers
import re
from typing import Any, NamedTuple

from burnish.rewards.equivalence import LONGEST

_BOX = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])\s*")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # a brace behind a backslash is a character of the formula
_OPEN_END = re.compile(r"\$|\\\)|\\\]|\n")
_STATED = re.compile(r"\banswer\s*(?:is\b\s*:?|:)[\s*]*(\S[^\n]*)", re.IGNORECASE)
_SENTENCE = re.compile(r"[.!?](?=\s)")


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


def stated(text: str) -> str | None:
    """The rest of the sentence behind the last "answer is" or "answer:", without the marks of a formula."""
    found = _STATED.findall(text)
    return plain(_SENTENCE.split(found[-1], maxsplit=1)[0]) if found else None


def plain(answer: str) -> str:
    """An answer without the dollar signs, asterisks and full stop around it."""
    answer = answer.strip().strip("*").strip().rstrip(".").strip()
    return answer[1:-1].strip() if len(answer) > 2 and answer[0] == answer[-1] == "$" else answer


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
