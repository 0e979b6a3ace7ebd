"""Shares of whole numbers: how many draws or rows each file gets, and which examples fit into one packed row."""

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


def first_fit(tokens: Sequence[int], budget: int) -> list[list[int]]:
    """Indices in parts of at most `budget`: longest first, each into the first part with room, or alone."""
    parts: list[list[int]] = []
    room: list[int] = []
    for i in sorted(range(len(tokens)), key=lambda i: (-tokens[i], i)):
        place = next((p for p, free in enumerate(room) if free >= tokens[i]), None)
        if place is None:
            parts.append([i])
            room.append(budget - tokens[i])
        else:
            parts[place].append(i)
            room[place] -= tokens[i]
    return parts
