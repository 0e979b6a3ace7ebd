"""Whether two answers are equal, as PRIME's scorer asks."""

import math

from burnish.rewards.equivalence import DEFAULT_SECONDS, equivalent
from burnish.rewards.scores.prime_math import TOLERANCE


def math_equal(
    prediction: bool | float | str,
    reference: float | str,
    include_percentage: bool = True,
    tolerance: float = TOLERANCE,
    timeout: float = DEFAULT_SECONDS,
    pi: float = math.pi,
) -> bool:
    """50% is 0.5, but 50 is not, whatever `include_percentage` is; 3.14 counts as π in any case."""
    return equivalent(str(prediction), str(reference), DEFAULT_SECONDS, tolerance).equal
