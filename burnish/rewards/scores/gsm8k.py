"""GSM8K: the last number of the response must be the ground truth. `strict` takes the number of the last `####
<number>`, `flexible` the last number anywhere, both of the last 300 characters; numbers are compared by value.

It agrees with the recorded scores of the field's usual scorer except where that one refuses a right answer or
rewards none:
- `#### 12.` is 12, 18.00 is 18, .5 is 0.5 and 007 is 7; `#### $18`, `#### -$18` and `#### **18**` are read;
- commas are part of a number between groups of three digits, in either method (`1,234` is 1234), and end it elsewhere
  (`42,` is 42; `1,8` is 1 and then 8); behind `####` also between lakhs and crores (`12,34,567` is 1234567);
- dots and commas without a digit are no number: they earn nothing, and do not hide an earlier number;
- a number that the 300-character window would cut in two is left out rather than read by half.
"""

import numbers
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Literal

WINDOW = 300
# A dot opens a number only where it is not the end of an ellipsis.
_SIGN = r"(?:-\\?\$?|\\?\$-?)?"
_DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?!,?\d)|\d+|(?<!\.)\.\d+)(?:\.\d+)*"
_LAKHS = r"\d{1,2}(?:,\d{2})+,\d{3}(?!,?\d)(?:\.\d+)?"
_STRICT = re.compile(rf"#### \*{{0,2}},*({_SIGN}(?:{_LAKHS}|{_DIGITS}))", re.ASCII)
_FLEXIBLE = re.compile(f"({_SIGN}{_DIGITS})", re.ASCII)
_BETWEEN_GROUPS = re.compile(r"(?<=\d),(?=(?:\d{2},)*\d{3}(?!\d))", re.ASCII)
_NOT_IN_NUMBER = str.maketrans("", "", "$\\ ")
_NUMBER = re.compile(r"-?(?:\d+(?:\.\d*)?|\.\d+)", re.ASCII)

Method = Literal["strict", "flexible"]


def extract_solution(solution_str: str, method: Method = "strict") -> str | None:
    """The answer the response gives, as plain digits, or None."""
    if method not in ("strict", "flexible"):
        raise ValueError(f"method={method!r}: gsm8k knows 'strict' and 'flexible'")
    pattern = _STRICT if method == "strict" else _FLEXIBLE
    start = max(0, len(solution_str) - WINDOW)
    while 0 < start < len(solution_str) and {solution_str[start - 1], solution_str[start]} <= set("0123456789.,"):
        start += 1  # past a number that the window would cut in two
    found = pattern.findall(solution_str, start)
    return normalise(found[-1]) if found else None


def compute_score(
    solution_str: str,
    ground_truth: str | int | float,
    method: Method = "strict",
    format_score: float = 0.0,
    score: float = 1.0,
) -> float:
    """`score`, `format_score` or 0 for one response. `ground_truth` may be text or a number."""
    wanted = normalise(ground_truth)
    answer = extract_solution(solution_str, method)
    if answer is None:
        return 0.0
    return score if _value(answer) == _value(wanted) else format_score


def reference(ground_truth: str | int | float, extra_info: Mapping[str, Any]) -> str:
    return f"#### {normalise(ground_truth)}"


def check(ground_truth: str | int | float, extra_info: Mapping[str, Any]) -> None:
    if not compute_score(reference(ground_truth, extra_info), ground_truth):
        raise _no_number(ground_truth)


def normalise(number: str | int | float) -> str:
    """Plain digits: no commas, dollar sign or full stop at the end. A whole float, as tables make them, is an int."""
    if isinstance(number, bool) or not isinstance(number, str | numbers.Real):
        raise _no_number(number)
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    return _BETWEEN_GROUPS.sub("", str(number).strip().translate(_NOT_IN_NUMBER).rstrip("."))


def _value(number: str) -> Decimal | str:
    return Decimal(number) if _NUMBER.fullmatch(number) else number


def _no_number(ground_truth: Any) -> ValueError:
    return ValueError(f"reward_model.ground_truth={ground_truth!r:.200}: gsm8k needs the answer, a number")
