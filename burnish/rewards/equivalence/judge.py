r"""`equivalent(answer, truth)`: whether two answers are the same mathematics (docs/math-rewards.md has the rules).

Both are tidied, cut into forms and compared part by part. What is certain is decided here, in both directions: equal
text, words, units, and numbers, by exact arithmetic. What is left is put to math-verify, which has `seconds` of
processor time for all of it: past that the answer counts as not equal, and the verdict says `timed_out`, because it is
the response's text that is at fault. If math-verify itself fails, that is a WorkerError.
"""

import functools
import math
import re
from dataclasses import dataclass
from fractions import Fraction

from burnish.rewards.equivalence import exact, forms
from burnish.rewards.equivalence.exact import read
from burnish.rewards.equivalence.forms import Form, Matrix, Ratio, Relation, Scalar, SequenceForm, Union, Words
from burnish.rewards.equivalence.latex import braced, tidy
from burnish.rewards.equivalence.units import is_unit, split_unit

DEFAULT_SECONDS = 5.0
LONGEST = 2_000  # characters; what is longer equals nothing
MOST_MEMBERS = 60  # of a list that is compared in any order
SIGNIFICANT_DIGITS = 6
ROUGH_PI = 3.14

_SET = re.compile(r"\\(?:mathbb|setminus|backslash|cup|cap|emptyset)(?![a-zA-Z])")
_INTEGER = re.compile(r"-?\d{1,1000}", re.ASCII)
_DECIMAL = re.compile(r"[-+]?(\d*)\.(\d+)")
_LABELLED = re.compile(r"(?:\\text\{\(?([A-J])\)?[.:]?\s*\}|\(([A-J])\)|([A-J])[:.)])\s*(?!.*\b[A-J]\b)\S.*")
_SPACED_UNIT = re.compile(r"(?<=\d)\s+([msghl])\s*$")
# What math-verify may read. No quotes and no names with two underscores: nothing that reads as Python.
_MATHEMATICAL = re.compile(r"[A-Za-z0-9\s\\{}()\[\]^_+\-*/=<>|.,:;!&%]*")
_OVERLOOKED = re.compile(r"__|\\text|\d_")
_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_COMMAND = re.compile(r"\\text\{[^{}]*\}|\\[a-zA-Z]+")
_CAPITAL = re.compile(r"\\[a-zA-Z]+|[A-Z]")


@dataclass(frozen=True)
class Equivalence:
    """`asked`: how often math-verify was needed."""

    equal: bool
    timed_out: bool = False
    unreadable_truth: bool = False
    asked: int = 0


def equivalent(answer: str, truth: str, seconds: float = DEFAULT_SECONDS, tolerance: float = 0.0) -> Equivalence:
    """Whether `answer` is the same mathematics as `truth`. WorkerError: math-verify could not be asked."""
    if max(len(answer), len(truth)) > LONGEST:
        return Equivalence(False)
    if answer == truth:
        return Equivalence(True)
    if _INTEGER.fullmatch(answer) and _INTEGER.fullmatch(truth):
        return Equivalence(int(answer) == int(truth))
    wanted = _form(truth)
    comparison = _Comparison(seconds, tolerance)
    equal = timed_out = False
    try:
        is_choice = isinstance(wanted, Scalar) and len(wanted.core) == 1 and wanted.core in "ABCDEFGHIJ"
        equal = comparison.equal(_said(answer, is_choice), wanted)
    except TimeoutError:
        timed_out = True
    return Equivalence(equal, timed_out, comparison.unreadable_truth, comparison.asked)


@functools.lru_cache(maxsize=4096)  # the responses to one prompt share their truth, and often their answers
def _form(text: str) -> Form:
    return forms.form_of(tidy(text))


@functools.lru_cache(maxsize=4096)
def _said(answer: str, choice: bool) -> Form:
    """The form of an answer, without what only explains it."""
    text = tidy(_SPACED_UNIT.sub(r"\\text{ \1}", answer))
    if choice and (label := _LABELLED.fullmatch(text)):
        return forms.form_of(label[1] or label[2] or label[3])
    before, approximately, _ = text.partition("\\approx")
    if approximately and before and ("=" in before or not letters_of(before)):
        text = before
    return forms.form_of(text)


class _Comparison:
    """One question. The methods compare an answer (first) with the truth (second)."""

    def __init__(self, seconds: float, tolerance: float):
        self.seconds_left = seconds
        self.tolerance = tolerance
        self.asked = 0
        self.unreadable_truth = False

    def equal(self, answer: Form, truth: Form) -> bool:
        answer, truth = forms.members_of(answer), forms.members_of(truth)
        if answer == truth:
            return True
        if isinstance(answer, Relation) or isinstance(truth, Relation):
            return self.relations(answer, truth)
        if isinstance(answer, Words) or isinstance(truth, Words):
            return forms.folded(answer) == forms.folded(truth)
        match answer, truth:
            case Scalar(), Scalar():
                return self.scalars(answer, truth)
            case SequenceForm(), SequenceForm():
                return self.sequences(answer, truth)
            case Union(), Union() if len(answer.parts) == len(truth.parts):
                return self.in_any_order(answer.parts, truth.parts) or self.ask(answer, truth)
            case Matrix(rows=a), Matrix(rows=b):
                return list(map(len, a)) == list(map(len, b)) and all(map(self.in_order, a, b))
            case Ratio(), Ratio():
                return self.ratios(answer, truth)
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
        answer, truth = _with_unit_of(truth, answer), _with_unit_of(answer, truth)
        units = [form.unit or ("%" if form.percent else None) for form in (answer, truth)]
        if all(units) and units[0] != units[1]:
            return False
        a, b = answer.core.removeprefix("+"), truth.core.removeprefix("+")
        if a == b:
            return True
        if len(a) == len(b) == 1 and a.isalpha() and b.isalpha():
            return a.casefold() == b.casefold()
        if "\\infty" in a or "\\infty" in b:  # no number: nothing can be computed with it
            return False
        try:
            return self.values(answer, truth)
        except exact.Unreadable:
            return self.ask(answer, truth)

    def values(self, answer: Scalar, truth: Scalar) -> bool:
        """By exact arithmetic. Unreadable: one of them is no expression of it."""
        a, b = read(answer.core), read(truth.core)
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

    def sequences(self, answer: SequenceForm, truth: SequenceForm) -> bool:
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

    def ratios(self, answer: Ratio, truth: Ratio) -> bool:
        """6:8 is 3:4. Times of day are no ratios."""
        items = [*answer.items, *truth.items]
        are_numbers = all(map(forms.is_number, items)) and not any(map(_is_of_time, items))
        if len(answer.items) != len(truth.items) or not are_numbers:
            return self.in_order(answer.items, truth.items)
        a, b = ([read(item.text) for item in form.items] for form in (answer, truth))
        return all(exact.same(exact.multiply(x, b[0]), exact.multiply(y, a[0])) for x, y in zip(a, b, strict=True))

    def relations(self, answer: Form, truth: Form) -> bool:
        if not isinstance(truth, Relation):
            assert isinstance(answer, Relation)
            if answer.is_equation:
                return self.said_of(answer, truth)
            interval = forms.as_interval(answer)
            return self.equal(interval, truth) if interval else self.unlike(answer, truth)
        if not isinstance(answer, Relation):
            if truth.names:
                return self.equal(answer, truth.sides[-1])
            if truth.is_equation and forms.is_number(truth.sides[0]):  # 0.56 = 56\%
                return any(self.equal(answer, side) for side in truth.sides)
            if truth.is_equation:
                return False
            interval = forms.as_interval(truth)
            return self.equal(answer, interval) if interval else self.unlike(answer, truth)
        answer, truth = forms.rightward(answer), forms.rightward(truth)
        if answer.signs == truth.signs:
            if answer.sides == truth.sides:
                return True
            if truth.names and answer.names and forms.folded(answer.sides[0]) == forms.folded(truth.sides[0]):
                return self.equal(answer.sides[-1], truth.sides[-1])
            if len(truth.signs) > 1 or not (letters_of(answer.text) and letters_of(truth.text)):
                return self.in_order(answer.sides, truth.sides)
        return self.ask(answer, truth)

    def said_of(self, equation: Relation, truth: Form) -> bool:
        """Whether an answer that is an equation gives a truth that is none: a name and the value, or a computation."""
        first, last = equation.sides[0], equation.sides[-1]
        if equation.names or equation.adds_names:
            return self.equal(last, truth)
        if forms.is_number(first) and not forms.is_number(last) and last.text.isalpha():  # 5=x
            return self.equal(first, truth)
        return not letters_of(equation.text) and all(self.equal(side, truth) for side in equation.sides)

    def ask(self, answer: Form, truth: Form) -> bool:
        """What math-verify says of both without their units, if the texts are such as it may read."""
        from burnish.rewards.equivalence import algebra  # asyncio and processes, which most answers do not need

        said, wanted = _without_units(answer), _without_units(truth)
        if not (_one_case(said) and _one_case(wanted)):  # math-verify takes capitals for small letters
            said, wanted = (
                _CAPITAL.sub(lambda match: match[0] + "_{0}" * (len(match[0]) == 1), text) for text in (said, wanted)
            )
        if not may_be_read(wanted):
            self.unreadable_truth = True
            return False
        if not may_be_read(said):
            return False
        if self.seconds_left <= 0:
            raise TimeoutError
        self.asked += 1
        reply = algebra.equal(said, wanted, self.seconds_left)
        self.seconds_left -= reply.seconds
        self.unreadable_truth |= reply.unreadable_truth
        return reply.equal


def _with_unit_of(other: Scalar, form: Scalar) -> Scalar:
    """5m is a product, but with the unit of 5\\text{ m} where it is compared with that."""
    if other.unit is None or form.unit is not None or not form.core[-1:].isalpha():
        return form
    core, unit, _ = split_unit(f"{form.core[:-1]}\\text{{{form.core[-1]}}}")
    return Scalar(form.text, core, unit) if unit == other.unit else form


def _is_of_time(form: Form) -> bool:
    return isinstance(form, Scalar) and (form.unit is not None or (len(form.core) == 2 and form.core[0] == "0"))


def _fraction(a: Scalar, b: Scalar) -> Form:
    text = f"\\frac{{{a.core}}}{{{b.core}}}"
    return Scalar(text, text, b.unit)


def _has_own_order(answer: SequenceForm, truth: SequenceForm) -> bool:
    """Words and letters; and values that only one side has names for (`x=1, y=2` and `1, 2`)."""
    if all(isinstance(item, Words) or item.text.isalpha() for item in truth.items):
        return True
    names = [{item.sides[0].text for item in form.items if isinstance(item, Relation)} for form in (answer, truth)]
    return sorted(map(bool, names)) == [False, True] and max(map(len, names)) > 1


def _is_set(form: Form) -> bool:
    if isinstance(form, SequenceForm):
        return form.ordered and len(form.items) == 2
    if isinstance(form, Relation):
        return not form.is_equation
    return isinstance(form, Union) or _SET.search(form.text) is not None


def may_be_read(text: str) -> bool:
    """Of words and of the base of a number math-verify takes no notice."""
    return _MATHEMATICAL.fullmatch(text) is not None and not _OVERLOOKED.search(text)


def letters_of(text: str) -> set[str]:
    """The letters that stand for something."""
    return {character for character in _COMMAND.sub("", text) if character.isalpha()}


def _without_units(form: Form) -> str:
    """The text for math-verify, which takes `1,234` for one number and `1, 234` for two, as `tidy` does with `;`."""
    if isinstance(form, Scalar):
        text = form.core
    else:
        text = _TEXT.sub(lambda words: "" if is_unit(words[1]) else words[0], form.text).replace("%", "")
    return braced(text).replace(";", ", ")


def _one_case(text: str) -> bool:
    letters = letters_of(text)
    return not any(letter.islower() and letter.upper() in letters for letter in letters)
