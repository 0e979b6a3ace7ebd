r"""Are two answers the same mathematics? Used by the scorers math, math_dapo, prime_math and geo3k.

    latex.py      one spelling for what LaTeX can write in many
    units.py      words behind a number
    forms.py      what kind of thing an answer is: number, list, interval, union, matrix, relation, words
    exact.py      exact arithmetic of rational numbers, square roots and π, without sympy
    reader.py     LaTeX to values of that arithmetic
    relations.py  equations and inequalities as other forms
    question.py   the text that math-verify is sent
    judge.py      `equivalent(answer, truth)`: compares form by form, and asks math-verify about what is left
    algebra.py    math-verify in a separate process that can be killed: one per calling process, from any thread
    child.py      what that process runs

Nothing here evaluates text as Python; child.py says how that is kept true of math-verify and sympy as well.
"""

from burnish.rewards.equivalence.judge import DEFAULT_SECONDS, LONGEST, Equivalence, equivalent

__all__ = ["DEFAULT_SECONDS", "LONGEST", "Equivalence", "equivalent"]
