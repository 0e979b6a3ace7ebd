r"""Equations and inequalities seen from several sides: what a form says, written as another form.

Consumes forms of forms.py; judge.py compares what comes out.
"""

from burnish.rewards.equivalence import exact
from burnish.rewards.equivalence.forms import Form, Relation, Scalar, SequenceForm, folded
from burnish.rewards.equivalence.reader import read


def members_of(form: Form) -> Form:
    """The set, where the answer says of a name that it lies in it."""
    return form.sides[-1] if isinstance(form, Relation) and form.signs == ("\\in",) and form.names else form


def right_side(equation: Relation) -> Form:
    """What an equation says its left side is; `5=x` says it the other way round."""
    first, last = equation.sides[0], equation.sides[-1]
    return first if is_number(first) and not is_number(last) and last.text.isalpha() else last


def same_name(a: Relation, b: Relation) -> bool:
    return folded(a.sides[0]) == folded(b.sides[0])


def is_number(form: Form) -> bool:
    try:
        return isinstance(form, Scalar) and read(form.core).rational is not None
    except exact.Unreadable:
        return False


_TURNED = {">": "<", "\\ge": "\\le"}


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
