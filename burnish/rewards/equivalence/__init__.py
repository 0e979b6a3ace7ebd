"""Are two answers the same mathematics? Used by the scorers math, math_dapo, prime_math and geo3k.

judge.py's `equivalent(answer, truth)` tidies both (latex.py), cuts them into forms (forms.py, units.py), compares these
with exact arithmetic (exact.py), and asks math-verify about what is left (algebra.py), in a process that can be killed
(child.py). Nothing here evaluates text as Python; child.py says how that is kept true of math-verify and sympy as well.
"""

from burnish.rewards.equivalence.judge import DEFAULT_SECONDS, LONGEST, Equivalence, equivalent

__all__ = ["DEFAULT_SECONDS", "LONGEST", "Equivalence", "equivalent"]
