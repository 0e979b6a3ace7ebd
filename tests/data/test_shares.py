"""Shares of whole numbers."""

from hypothesis import given
from hypothesis import strategies as st

from burnish.data.shares import first_fit, largest_remainder


def test_first_fit_leaves_no_two_parts_that_would_fit_together():
    lengths = [5, 5, 4, 3, 2, 1, 12]
    parts = first_fit(lengths, 10)
    assert [sum(lengths[i] for i in part) for part in parts] == [12, 10, 10]


@given(st.lists(st.integers(1, 30), max_size=30), st.integers(1, 40))
def test_first_fit_holds_everything_once_within_the_budget(lengths, budget):
    parts = first_fit(lengths, budget)
    assert sorted(i for part in parts for i in part) == list(range(len(lengths)))
    assert all(len(part) == 1 or sum(lengths[i] for i in part) <= budget for part in parts)


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=8), st.integers(0, 1000))
def test_largest_remainder_is_exact_and_within_one_of_the_share(weights, total):
    shares = largest_remainder(weights, total)
    assert sum(shares) == total
    assert all(
        abs(share - weight / sum(weights) * total) < 1.001 for share, weight in zip(shares, weights, strict=True)
    )
