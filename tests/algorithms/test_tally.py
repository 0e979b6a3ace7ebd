"""Metrics that add up: whichever way values are cut into parts, the whole has the same statistics."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from burnish.algorithms.tally import (
    effective_share,
    largest,
    mean_over_tokens,
    merge,
    part_of_mean,
    part_of_sum,
    smallest,
    spread,
)

VALUES = st.lists(st.tuples(st.floats(-1e3, 1e3), st.booleans(), st.integers(0, 2)), min_size=1, max_size=12)


def tallies(values, mask):
    return {
        "mean": mean_over_tokens(values, mask),
        "max": largest(values, mask),
        "min": smallest(values, mask),
        "std": spread(values, mask),
        "population": spread(values, mask, sample=False),
        "share": effective_share(values.abs(), mask),
    }


@given(rows=VALUES)
@settings(max_examples=60, deadline=None)
def test_any_cut_adds_up_to_the_statistics_of_the_whole(rows):
    values = torch.tensor([value for value, _, _ in rows], dtype=torch.float64)
    mask, part = torch.tensor([inside for _, inside, _ in rows]), torch.tensor([part for _, _, part in rows])
    whole = merge([tallies(values, mask)])
    cut = merge([tallies(values[part == number], mask[part == number]) for number in range(3)])  # some have no rows
    assert cut == pytest.approx(whole, rel=1e-9, abs=1e-9)
    inside = values[mask].numpy()
    if not inside.size:
        assert set(whole.values()) == {0.0}
        return
    weights = np.abs(inside)
    assert whole == pytest.approx(
        {
            "mean": inside.mean(),
            "max": inside.max(),
            "min": inside.min(),
            "std": inside.std(ddof=1) if inside.size > 1 else 0,
            "population": inside.std(),
            "share": weights.sum() ** 2 / (inside.size * (weights**2).sum()) if (weights**2).any() else 0,
        },
        rel=1e-9,
        abs=1e-9,
    )


def test_a_spread_loses_nothing_to_a_large_mean():
    values = 1e8 + torch.tensor([0.0, 1.0, 2.0, 3.0], dtype=torch.float64)
    mask = torch.ones(4)
    joined = merge([{"std": spread(values[:1], mask[:1])}, {"std": spread(values[1:], mask[1:])}])
    assert joined["std"] == pytest.approx((5 / 3) ** 0.5, rel=1e-12)


def test_what_stands_outside_the_mask_is_not_read():
    values, mask = torch.tensor([2.0, torch.nan, 4.0, torch.inf]), torch.tensor([1, 0, 1, 0])
    read = merge([tallies(values, mask)])
    assert (read["mean"], read["max"], read["min"], read["population"]) == (3, 4, 2, 1)
    assert read["share"] == pytest.approx(36 / 40)


def test_values_that_are_not_finite_are_reported():
    values, mask = torch.tensor([torch.inf, -torch.inf]), torch.ones(2)
    read = merge([{"max": largest(values, mask), "min": smallest(values, mask)}])
    assert read == {"max": torch.inf, "min": -torch.inf}
    broken = merge([{"max": largest(values * 0, mask), "min": smallest(values * 0, mask)}])
    assert all(np.isnan(value) for value in broken.values())


class Reads(TorchDispatchMode):
    """Counts the tensors that are read one by one, each of which waits for the device."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


def test_all_numbers_are_read_at_once():
    values = torch.tensor([1.0, 2.0, 4.0])
    parts = [tallies(values, torch.ones(3)), tallies(values, torch.tensor([1, 0, 1]))]
    with Reads() as reads:
        merged = merge(parts)
    assert reads.count == 0 and merged["max"] == 4
    with Reads() as reads:
        float(values[0])
    assert reads.count == 1


def test_counts_and_sums_are_read_as_they_are():
    large = 2**24 + 1  # float32 would lose the 1
    mean = part_of_mean(torch.tensor(1.0), torch.tensor(large))
    got = merge([{"mean": mean, "sum": part_of_sum(torch.tensor([0.1]))}])
    assert got == {"mean": 1 / large, "sum": float(torch.tensor(0.1))}
    assert merge([{"mean": part_of_mean(3.0, 2.0)}]) == {"mean": 1.5} and merge([]) == {}
    one, two = (part_of_mean(torch.tensor(total), torch.tensor(n)) for total, n in ((3.0, 4), (0.0, 2)))
    assert merge([{"share": one}, {"share": two}]) == {"share": 0.5}, "means are weighted"
    assert merge([{"share": part_of_mean(torch.tensor(0.0), torch.tensor(0))}]) == {"share": 0.0}
    assert merge([{"loss": part_of_sum(torch.tensor(part))} for part in (0.25, 0.5)]) == {"loss": 0.75}
