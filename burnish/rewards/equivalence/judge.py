r"""`equivalent(answer, truth)`: whether two answers are the same mathematics. Consumes text, hands on a `Verdict`.

Both are tidied, cut into forms and compared part by part. Most parts are decided here, in both directions, by their
text or by exact arithmetic. What is left (functions, higher roots, systems of inequalities, …) is put to math-verify,
which has `seconds` for all of it: past that the answer counts as not equal, and the verdict says `timed_out`, because
it is the response's text that is at fault. If math-verify itself fails, that is a WorkerError.

The truth sets the measure:
- a list without brackets (`1,2`) and a set hold their members in any order, a list of words or letters in its own;
- brackets count: (1,2), [1,2] and \{1,2\} are three answers, only the last of which is also `1,2`;
- `x=5` and `5` are equal, where the left side is a name; `x+y=0` and `0` are not. Equations and linear inequalities
  are equal where one is a multiple of the other;
- units may be missing, and unknown ones are ignored, but two different known ones (cm, m) are not equal;
- 50\% is 50 and also 0.5;
- a decimal fraction equals a number that it is the correct rounding of, if six or more significant digits stand behind
  its point (0.333333 is 1/3, 0.33 is not). With `tolerance` it also equals an irrational number that is as close to it
  in proportion, or that would be it if π were 3.14.
"""

import functools
import math
import re
from dataclasses import dataclass
from fractions import Fraction

from burnish.rewards.equivalence import algebra, exact
from burnish.rewards.equivalence.forms import (
    Form,
    Matrix,
    Ratio,
    Relation,
    Scalar,
    Sequence,
    Union,
    Words,
    folded,
    form_of,
)
from burnish.rewards.equivalence.latex import tidy
from burnish.rewards.equivalence.reader import read
from burnish.rewards.equivalence.relations import (
    as_interval,
    difference,
    is_number,
    members_of,
    right_side,
    rightward,
    same_name,
)

DEFAULT_SECONDS = 5.0
LONGEST = 2_000  # characters; what is longer equals nothing
MOST_MEMBERS = 60  # of a list that is compared in any order
SIGNIFICANT_DIGITS = 6
ROUGH_PI = 3.14

# What math-verify may read. No quotes and no names with underscores at both ends: nothing that reads as Python.
_MATHEMATICAL = re.compile(r"[A-Za-z0-9\s\\{}()\[\]^_+\-*/=<>|.,:;!&%]*")
_SET = re.compile(r"\\(?:mathbb|setminus|backslash|cup|cap|emptyset)(?![a-zA-Z])")
_INTEGER = re.compile(r"-?\d{1,1000}", re.ASCII)
# A capital letter; commands and digits of another base are met first, and left as they are.
_CAPITAL = re.compile(r"\\[a-zA-Z]+|(?<![\dA-F])(?=[A-F]*\d)[\dA-F]{2,64}_|[A-Z]")
_DECIMAL = re.compile(r"[-+]?(\d*)\.(\d+)")


@dataclass(frozen=True)
class Verdict:
    """`asked`: how often math-verify was needed."""

    equal: bool
    timed_out: bool = False
    asked: int = 0


def equivalent(answer: str, truth: str, seconds: float = DEFAULT_SECONDS, tolerance: float = 0.0) -> Verdict:
    """Whether `answer` is the same mathematics as `truth`. WorkerError: math-verify could not be asked."""
    if max(len(answer), len(truth)) > LONGEST:
        return Verdict(False)
    if answer == truth:
        return Verdict(True)
    if _INTEGER.fullmatch(answer) and _INTEGER.fullmatch(truth):
        return Verdict(int(answer) == int(truth))
    comparison = _Comparison(seconds, tolerance)
    try:
        equal = comparison.equal(_form(answer), _form(truth))
    except TimeoutError:
        return Verdict(False, timed_out=True, asked=comparison.asked)
    return Verdict(equal, asked=comparison.asked)


@functools.lru_cache(maxsize=4096)  # the responses to one prompt share their truth, and often their answers
def _form(text: str) -> Form:
    return form_of(tidy(text))


class _Comparison:
    """One question. The methods compare an answer (first) with the truth (second)."""

    def __init__(self, seconds: float, tolerance: float):
        self.seconds_left = seconds
        self.tolerance = tolerance
        self.asked = 0

    def equal(self, answer: Form, truth: Form) -> bool:
        answer, truth = members_of(answer), members_of(truth)
        if answer == truth:
            return True
        if isinstance(answer, Relation) or isinstance(truth, Relation):
            return self.relations(answer, truth)
        if isinstance(answer, Words) or isinstance(truth, Words):
            return folded(answer) == folded(truth)
        match answer, truth:
            case Scalar(), Scalar():
                return self.scalars(answer, truth)
            case Sequence(), Sequence():
                return self.sequences(answer, truth)
            case Union(), Union() if len(answer.parts) == len(truth.parts):
                return self.in_any_order(answer.parts, truth.parts) or self.ask(answer, truth)
            case Matrix(), Matrix():
                return self.matrices(answer, truth)
            case Ratio(), Ratio():
                return self.in_order(answer.items, truth.items)
            case Ratio(items=(a, b)), Scalar() if isinstance(a, Scalar) and isinstance(b, Scalar):
                return self.equal(_fraction(a, b), truth)
            case Scalar(), Ratio(items=(a, b)) if isinstance(a, Scalar) and isinstance(b, Scalar):
                return self.equal(answer, _fraction(a, b))
        return self.unlike(answer, truth)

    def unlike(self, answer: Form, truth: Form) -> bool:
        """Different kinds of things can be equal only where both are sets, or a matrix is computed with."""
        matrices = any(isinstance(form, Matrix) for form in (answer, truth)) and all(
            isinstance(form, Matrix) or "\\begin" in form.text for form in (answer, truth)
        )
        return (matrices or (_is_set(answer) and _is_set(truth))) and self.ask(answer, truth)

    def scalars(self, answer: Scalar, truth: Scalar) -> bool:
        units = [form.unit or ("%" if form.percent else None) for form in (answer, truth)]
        if all(units) and units[0] != units[1]:
            return False
        if answer.core == truth.core:
            return True
        try:
            return self.values(answer, truth)
        except exact.Unreadable:
            return self.ask(answer, truth)

    def values(self, answer: Scalar, truth: Scalar) -> bool:
        """By exact arithmetic. Unreadable: one of them is no expression of it."""
        a, b = _values(answer.core, truth.core)
        if exact.same(a, b):
            return True
        if answer.percent != truth.percent:
            part, whole = (a, b) if answer.percent else (b, a)
            return exact.same(exact.divide(part, exact.constant(100)), whole)
        return self.close(answer.core, b) or self.close(truth.core, a)

    def close(self, decimal: str, value: exact.Value) -> bool:
        """Whether `decimal` is a decimal fraction and stands for `value`."""
        match = _DECIMAL.fullmatch(decimal)
        if match is None:
            return False
        number, places = Fraction(decimal), len(match[2])
        digits = min(places, len((match[1] + match[2]).lstrip("0")))
        precise = value.rational if value.rational is not None else value.approximate()
        if precise is not None and digits >= SIGNIFICANT_DIGITS:
            half_unit = Fraction(1, 2 * 10**places)
            if abs(number - Fraction(precise)) <= half_unit:
                return True
        if not self.tolerance or value.rational is not None:
            return False
        near = [value.approximate(), value.approximate(pi=ROUGH_PI)]
        limits = [self.tolerance, 1e-9]
        return any(v is not None and math.isclose(number, v, rel_tol=r) for v, r in zip(near, limits, strict=True))

    def sequences(self, answer: Sequence, truth: Sequence) -> bool:
        if len(answer.items) != len(truth.items):
            return False
        if truth.ordered or answer.ordered:
            same_brackets = (answer.opening, answer.closing) == (truth.opening, truth.closing)
            return same_brackets and self.in_order(answer.items, truth.items)
        if _has_own_order(answer, truth) or len(truth.items) > MOST_MEMBERS:
            return self.in_order(answer.items, truth.items)
        return self.in_any_order(answer.items, truth.items)

    def in_order(self, answer: tuple[Form, ...], truth: tuple[Form, ...]) -> bool:
        return len(answer) == len(truth) and all(map(self.equal, answer, truth))

    def in_any_order(self, answer: tuple[Form, ...], truth: tuple[Form, ...]) -> bool:
        left = list(truth)
        for item in answer:
            found = next((i for i, other in enumerate(left) if item == other), None)
            if found is None:
                found = next((i for i, other in enumerate(left) if self.equal(item, other)), None)
            if found is None:
                return False
            del left[found]
        return not left

    def matrices(self, answer: Matrix, truth: Matrix) -> bool:
        if [len(row) for row in answer.rows] != [len(row) for row in truth.rows]:
            return False
        return all(map(self.in_order, answer.rows, truth.rows))

    def relations(self, answer: Form, truth: Form) -> bool:
        if not isinstance(truth, Relation):
            assert isinstance(answer, Relation)
            if answer.is_equation:
                return self.equal(right_side(answer), truth)
            interval = as_interval(answer)
            return self.equal(interval, truth) if interval else self.unlike(answer, truth)
        if not isinstance(answer, Relation):
            if truth.names:
                return self.equal(answer, truth.sides[-1])
            if truth.is_equation and is_number(truth.sides[0]):  # 0.56 = 56\%
                return any(self.equal(answer, side) for side in truth.sides)
            if truth.is_equation:
                return False
            interval = as_interval(truth)
            return self.equal(answer, interval) if interval else self.unlike(answer, truth)
        answer, truth = rightward(answer), rightward(truth)
        if answer.signs != truth.signs:
            return self.ask(answer, truth)
        if truth.names and answer.names and same_name(answer, truth):
            return self.equal(answer.sides[-1], truth.sides[-1])
        if len(truth.signs) > 1:
            return self.in_order(answer.sides, truth.sides)
        return self.multiples(answer, truth)

    def multiples(self, answer: Relation, truth: Relation) -> bool:
        """Whether two relations with the same sign are multiples of each other."""
        try:
            a, b = difference(answer), difference(truth)
        except exact.Unreadable:
            return self.ask(answer, truth)
        if not exact.degree(a) and not exact.degree(b):  # relations between numbers
            return self.in_order(answer.sides, truth.sides)
        either_way = truth.signs[0] in ("=", "\\ne")
        if not either_way and not (exact.is_whole(a) and exact.is_whole(b)):  # a denominator may change the sign
            return self.ask(answer, truth)
        factor = exact.proportional(a, b)
        if factor is not None and (factor > 0 or either_way):
            return True
        linear = max(exact.degree(a), exact.degree(b)) <= 1
        return not linear and truth.signs[0] != "=" and self.ask(answer, truth)

    def ask(self, answer: Form, truth: Form) -> bool:
        """What math-verify says, if the texts are such as it may read."""
        said, wanted = _without_units(answer), _without_units(truth)
        if not (_one_case(said) and _one_case(wanted)):  # it takes capitals for small letters
            said, wanted = (_CAPITAL.sub(_indexed, text) for text in (said, wanted))
        if not all(_MATHEMATICAL.fullmatch(text) and "__" not in text for text in (said, wanted)):
            return False
        if self.seconds_left <= 0:
            raise TimeoutError
        self.asked += 1
        equal, took = algebra.equal(said, wanted, self.seconds_left)
        self.seconds_left -= took
        return equal


def _values(a: str, b: str) -> tuple[exact.Value, exact.Value]:
    """Both expressions. Capital letters are small ones, unless an expression has both of one letter."""
    if all(_one_case(text) for text in (a, b)):
        a, b = (_CAPITAL.sub(_small, text) for text in (a, b))
    return read(a), read(b)


def _small(match: re.Match[str]) -> str:
    return match[0].lower() if len(match[0]) == 1 else match[0]


def _indexed(match: re.Match[str]) -> str:
    return f"{match[0]}_{{0}}" if len(match[0]) == 1 else match[0]


def _one_case(text: str) -> bool:
    letters = set(re.sub(r"\\[a-zA-Z]+", "", text))
    return not any(letter.islower() and letter.upper() in letters for letter in letters)


def _fraction(a: Scalar, b: Scalar) -> Form:
    text = f"\\frac{{{a.core}}}{{{b.core}}}"
    return Scalar(text, text, b.unit)


def _has_own_order(answer: Sequence, truth: Sequence) -> bool:
    """Words and letters; and values that only one side has names for (`x=1, y=2` and `1, 2`)."""
    if all(isinstance(item, Words) or item.text.isalpha() for item in truth.items):
        return True
    names = [{item.sides[0].text for item in form.items if isinstance(item, Relation)} for form in (answer, truth)]
    return sorted(map(bool, names)) == [False, True] and max(map(len, names)) > 1


def _is_set(form: Form) -> bool:
    if isinstance(form, Sequence):
        return form.ordered and len(form.items) == 2
    if isinstance(form, Relation):
        return not form.is_equation
    return isinstance(form, Union) or _SET.search(form.text) is not None


def _without_units(form: Form) -> str:
    """The text for math-verify, which takes `1,234` for one number and `1, 234` for two, as `tidy` does with `;`."""
    if isinstance(form, Scalar):
        return form.core + ("\\%" if form.percent else "")
    return re.sub(r"\\text\{[^{}]*\}", "", form.text).replace("%", "\\%").replace(";", ", ")
