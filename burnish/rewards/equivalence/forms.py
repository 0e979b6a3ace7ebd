r"""What kind of thing an answer is: consumes tidied LaTeX, produces a `Form` whose parts can be compared one by one.

    (3,\frac12)          SequenceForm with brackets ( ), ordered: a point, a vector, an open interval
    [0,1)                the same with its own brackets
    \{1,2\}, 1,2         SequenceForm \{ \} or without brackets: order does not matter
    (0,1)\cup[2,3)       Union
    \begin{pmatrix}…     Matrix
    x=5, x\le 5          Relation
    3:4                  Ratio
    \text{Evelyn}, ABCD  Words: names and phrases. Small letters alone (wxyz) are a product, a minus sign is one
    12\text{ cm}, 7\%    Scalar, with its unit and percent sign set apart

A form keeps its tidied text, for judges that read text. The last functions rewrite equations and inequalities.
"""

import functools
import re
from dataclasses import dataclass, field

from burnish.rewards.equivalence.exact import Unreadable, read
from burnish.rewards.equivalence.latex import closing
from burnish.rewards.equivalence.units import NUMBER_WORDS, is_unit, split_unit

DEEPEST = 12


@dataclass(frozen=True)
class Form:
    text: str = field(compare=False)


@dataclass(frozen=True)
class Scalar(Form):
    """One expression. `core` is its text without unit and percent sign."""

    core: str
    unit: str | None = None
    percent: bool = False


@dataclass(frozen=True)
class Words(Form):
    """A name, a phrase; `words` without capitals, spaces and stops."""

    words: str


@dataclass(frozen=True)
class SequenceForm(Form):
    opening: str  # "", "(", "[" or "\\{"
    closing: str
    items: tuple[Form, ...]

    @property
    def ordered(self) -> bool:
        return self.opening not in ("", "\\{")


@dataclass(frozen=True)
class Union(Form):
    parts: tuple[Form, ...]


@dataclass(frozen=True)
class Matrix(Form):
    rows: tuple[tuple[Form, ...], ...]


@dataclass(frozen=True)
class Ratio(Form):
    items: tuple[Form, ...]


@dataclass(frozen=True)
class Relation(Form):
    """sides[0] signs[0] sides[1] …; signs are = < > \\le \\ge \\ne \\in."""

    sides: tuple[Form, ...]
    signs: tuple[str, ...]

    @property
    def is_equation(self) -> bool:
        return set(self.signs) <= {"=", "\\in"}

    @property
    def names(self) -> bool:
        """Whether the left side is only a name for the right one: x=5, AB=9, f(x)=…, \\angle A=…, (x,y)=…"""
        return self.is_equation and _NAME.fullmatch(self.sides[0].text) is not None

    @property
    def adds_names(self) -> bool:
        """m+n=7. But x+y=0 is the equation of a line."""
        names = self.sides[0].text.split("+")
        distinct = len(set(names)) == len(names) and all(_SIMPLE_NAME.fullmatch(name) for name in names)
        return self.is_equation and distinct and self.sides[-1].text != "0"


_NAME = re.compile(
    r"(?:\\(?:angle|triangle|measuredangle)\s*|m)?"
    r"(?:[a-zA-Z]+|\[[A-Z]+\]|\\(?!frac|sqrt|pi(?![a-zA-Z]))[a-zA-Z]+|\\text\{[^{}]*\})"
    r"(?:_(?:\{[^{}]*\}|\w))?'*(?:\^\{-1\})?(?:\([a-zA-Z0-9,]*\))?"
    r"|\([a-zA-Z](?:,[a-zA-Z])+\)"
)
_SIMPLE_NAME = re.compile(r"[a-zA-Z](?:_(?:\{\w+\}|\w))?")
_SIGN = r"\\(?:le|ge|ne|in|approx)(?![a-zA-Z])\s*|[=<>]"
_CUP = r"\\cup(?![a-zA-Z])\s*"
_COMMA = "[,;]"
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?!\d)(?!,\d)")
_MATRIX = re.compile(
    r"\\begin\{([pbB]?|small)matrix\}(.*)\\end\{\1matrix\}|\\begin\{array\}\{[^{}]*\}(.*)\\end\{array\}"
)
_NESTED = re.compile(r"\\begin|\\end")
_RATIO = re.compile(r"[-\d./\\{}a-zA-Z ]+(?::[-\d./\\{}a-zA-Z ]+)+")
_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_NAMED = re.compile(r"(?:\\(?:angle|triangle|measuredangle)\s*)?[A-Z]{3,}|[A-Z][a-z]{2,}")  # ABCD, Evelyn
_PHRASE = re.compile(r"(?=.*[A-Za-z]{3})(?=.* )[A-Za-z][A-Za-z .']*")
_BASED = re.compile(r"(?=[-+]?[A-F]*\d)([-+]?[\dA-F]{1,64})_(?:\{(\d+)\}|(\d))")
_COUNTED = re.compile(r"([-+]?\d[\d.,/]*)\s+([^\d\s].*)")
_PLUS_MINUS = re.compile(r"\\(pm|mp)(?![a-zA-Z])\s*")
_TURNED = {">": "<", "\\ge": "\\le"}


def form_of(text: str, depth: int = 0) -> Form:
    if depth > DEEPEST:
        return Scalar(text, text)
    if text.count("\\text{") == 1 and (whole := _TEXT.fullmatch(text)):
        return _phrase(whole[1], depth)
    if len(items := _items(text)) > 1:
        return _sequence(text, "", "", items, depth)
    if len(signs := list(_PLUS_MINUS.finditer(text))) == 1:
        at = signs[0]
        return _sequence(text, "", "", [text[: at.start()] + sign + text[at.end() :] for sign in "+-"], depth)
    if len(parts := _split(text, _CUP)) > 1:
        return Union(text, tuple(form_of(part, depth + 1) for part in parts))
    if len(sides := _split(text, _SIGN)) > 1:
        signs_between = tuple(sign[0].strip().replace("\\approx", "=") for sign in _top(text, _SIGN))
        return Relation(text, tuple(form_of(side, depth + 1) for side in sides), signs_between)
    if _RATIO.fullmatch(text):
        return Ratio(text, tuple(form_of(part, depth + 1) for part in _split(text, ":")))
    if (matrix := _MATRIX.fullmatch(text)) and not _NESTED.search(matrix[2] or matrix[3] or ""):
        rows = (matrix[2] or matrix[3] or "").removesuffix("\\\\").split("\\\\")
        return Matrix(text, tuple(tuple(form_of(cell.strip(), depth + 1) for cell in row.split("&")) for row in rows))
    return _bracketed(text, depth) or _scalar(text)


def folded(form: Form) -> str:
    """Its text without capitals, spaces and stops: how words are compared."""
    return _folded(form.words if isinstance(form, Words) else _TEXT.sub(r"\1", form.text))


def _folded(text: str) -> str:
    return re.sub(r"[\s.]+", "", text).casefold()


def _phrase(words: str, depth: int) -> Form:
    """What stands in \\text{…}: a number or a letter for a choice is read as if it stood outside."""
    words = words.strip().rstrip(".,")
    parts = [part.strip() for part in re.split(r",|\band\b|\bor\b", words) if part.strip()]
    if len(parts) > 1 and all(len(part.split()) == 1 for part in parts):
        return _sequence(words, "", "", parts, depth)
    inner = words.removeprefix("(").removesuffix(")")
    if (counted := _COUNTED.fullmatch(inner)) and is_unit(counted[2]):  # \text{12 apples}
        return form_of(f"{counted[1]}\\text{{{counted[2]}}}", depth + 1)
    if re.search(r"[A-Za-z]{2}", inner):
        return _worded(words)
    return form_of(inner, depth + 1)


def _worded(words: str) -> Form:
    folded = _folded(words)
    if folded in NUMBER_WORDS:
        return Scalar(words, NUMBER_WORDS[folded])
    return Words(words, folded)


def _sequence(text: str, opening: str, end: str, items: list[str], depth: int) -> Form:
    forms: list[Form] = []
    for item in items:
        form = form_of(item, depth + 1)
        if not opening and isinstance(form, SequenceForm) and not form.opening:
            forms += form.items  # 1, \pm 2
        else:
            forms.append(form)
    return SequenceForm(text, opening, end, tuple(forms))


def _bracketed(text: str, depth: int) -> Form | None:
    opening = "\\{" if text.startswith("\\{") else text[:1]
    if opening not in ("(", "[", "\\{") or closing(text, 0) != len(text) - 1:
        return None
    end = "\\}" if text.endswith("\\}") else text[-1]
    inner = text[len(opening) : len(text) - len(end)].strip()
    items = _split(inner, _COMMA)
    if not inner:
        return None
    if len(items) == 1:
        return form_of(inner, depth + 1)
    return _sequence(text, opening, end, items, depth)


def _scalar(text: str) -> Form:
    if _NAMED.fullmatch(text) or _PHRASE.fullmatch(text) or text.casefold() in NUMBER_WORDS:
        return _worded(text)
    if based := _BASED.fullmatch(text):  # a number in another base, equal to nothing else
        return Words(text, f"{based[1]}_{based[2] or based[3]}")
    return Scalar(text, *split_unit(text))


def _items(text: str) -> list[str]:
    """The members of a list without brackets. 1,234 is one number."""
    if "," not in text and ";" not in text:
        return [text]
    inside = {at for number in _THOUSANDS.finditer(text) for at in range(number.start(), number.end())}
    return [part for part in _cut(text, [comma for comma in _top(text, _COMMA) if comma.start() not in inside]) if part]


def _split(text: str, separator: str) -> list[str]:
    return _cut(text, _top(text, separator))


def _cut(text: str, separators: list[re.Match[str]]) -> list[str]:
    starts = [0, *(match.end() for match in separators)]
    ends = [*(match.start() for match in separators), len(text)]
    return [text[start:end].strip() for start, end in zip(starts, ends, strict=True)]


def _top(text: str, separator: str) -> list[re.Match[str]]:
    """The separators that stand in no bracket and no environment."""
    found, depth = [], 0
    for match in _or_bracket(separator).finditer(text):
        if match["here"] is not None:
            if depth == 0:
                found.append(match)
        elif match[0] in ("\\begin", "(", "[", "{", "\\{"):
            depth += 1
        elif match[0] in ("\\end", ")", "]", "}", "\\}"):
            depth -= 1
    return found


@functools.cache
def _or_bracket(separator: str) -> re.Pattern[str]:
    return re.compile(rf"(?P<here>{separator})|\\[a-zA-Z]+|\\.|[(\[{{)\]}}]", re.DOTALL)


def members_of(form: Form) -> Form:
    """The set, where the answer says of a name that it lies in it."""
    return form.sides[-1] if isinstance(form, Relation) and form.signs == ("\\in",) and form.names else form


def is_number(form: Form) -> bool:
    try:
        return isinstance(form, Scalar) and read(form.core).rational is not None
    except Unreadable:
        return False


def rightward(relation: Relation) -> Relation:
    """The same with its signs turned to < and \\le where all of them can be."""
    if not relation.signs or not set(relation.signs) <= _TURNED.keys():
        return relation
    signs = tuple(_TURNED[sign] for sign in reversed(relation.signs))
    return Relation(relation.text, relation.sides[::-1], signs)


def as_interval(inequality: Relation) -> SequenceForm | None:
    """a<x, x<b and a<x<b as intervals, where x is a letter."""
    turned = rightward(inequality)
    sides = turned.sides
    if not set(turned.signs) <= {"<", "\\le"} or len(sides) > 3:
        return None
    below, above = Scalar("-\\infty", "-\\infty"), Scalar("\\infty", "\\infty")
    letters = [len(side.text) == 1 and side.text.isalpha() for side in sides]
    opening, end = ("(" if turned.signs[0] == "<" else "["), (")" if turned.signs[-1] == "<" else "]")
    if letters == [False, True, False]:
        return SequenceForm(turned.text, opening, end, (sides[0], sides[2]))
    if letters == [True, False]:
        return SequenceForm(turned.text, "(", end, (below, sides[1]))
    return SequenceForm(turned.text, opening, ")", (sides[0], above)) if letters == [False, True] else None
