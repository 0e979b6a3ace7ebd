"""Shares of whole numbers."""

from hypothesis import given
from hypothesis import strategies as st

from burnish.data.shares import largest_remainder


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=8), st.integers(0, 1000))
def test_largest_remainder_is_exact_and_within_one_of_the_share(weights, total):
    shares = largest_remainder(weights, total)
    assert sum(shares) == total
    assert all(
        abs(share - weight / sum(weights) * total) < 1.001 for share, weight in zip(shares, weights, strict=True)
    )
