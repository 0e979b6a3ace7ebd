"""Shares of whole numbers: how many draws or rows each file gets."""

from collections.abc import Sequence
from fractions import Fraction


def largest_remainder(weights: Sequence[float], total: int) -> list[int]:
    """`total` split by `weights`: each share is rounded down, and the largest remainders get one more."""
    exact = [Fraction(weight) for weight in weights]  # floats would round 0.3 of 10 either way
    exact = [weight * total / sum(exact) for weight in exact]
    shares = [int(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: (shares[i] - exact[i], i))
    for i in by_remainder[: total - sum(shares)]:
        shares[i] += 1
    return shares
