"""Metrics that add up: whichever way values are cut into parts, the whole has the same statistics."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from burnish.algorithms import tally

VALUES = st.lists(st.tuples(st.floats(-1e3, 1e3), st.booleans(), st.integers(0, 2)), min_size=1, max_size=12)


def tallies(values, mask):
    return {
        "mean": tally.mean_over_tokens(values, mask),
        "max": tally.largest(values, mask),
        "min": tally.smallest(values, mask),
        "std": tally.spread(values, mask),
        "population": tally.spread(values, mask, sample=False),
        "share": tally.effective_share(values.abs(), mask),
    }


@given(rows=VALUES)
@settings(max_examples=60, deadline=None)
def test_any_cut_adds_up_to_the_statistics_of_the_whole(rows):
    values = torch.tensor([value for value, _, _ in rows], dtype=torch.float64)
    mask, part = torch.tensor([inside for _, inside, _ in rows]), torch.tensor([part for _, _, part in rows])
    whole = tally.merge([tallies(values, mask)])
    cut = tally.merge(
        [tallies(values[part == number], mask[part == number]) for number in range(3)]
    )  # some have no rows
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


def test_what_stands_outside_the_mask_is_not_read_and_inside_nothing_is_lost():
    values, mask = torch.tensor([2.0, torch.nan, 4.0, torch.inf]), torch.tensor([1, 0, 1, 0])
    read = tally.merge([tallies(values, mask)])
    assert (read["mean"], read["max"], read["min"], read["population"]) == (3, 4, 2, 1)
    assert read["share"] == pytest.approx(36 / 40)
    values, mask = torch.tensor([torch.inf, -torch.inf]), torch.ones(2)  # inside it is reported
    read = tally.merge([{"max": tally.largest(values, mask), "min": tally.smallest(values, mask)}])
    assert read == {"max": torch.inf, "min": -torch.inf}
    broken = tally.merge([{"max": tally.largest(values * 0, mask), "min": tally.smallest(values * 0, mask)}])
    assert all(np.isnan(value) for value in broken.values())
    values, mask = 1e8 + torch.tensor([0.0, 1.0, 2.0, 3.0], dtype=torch.float64), torch.ones(4)
    joined = tally.merge([{"std": tally.spread(values[:1], mask[:1])}, {"std": tally.spread(values[1:], mask[1:])}])
    assert joined["std"] == pytest.approx((5 / 3) ** 0.5, rel=1e-12), "nothing is lost to a large mean"


class Reads(TorchDispatchMode):
    """Counts the tensors that are read one by one, each of which waits for the device."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


def test_all_numbers_are_read_at_once_and_as_they_are():
    values = torch.tensor([1.0, 2.0, 4.0])
    parts = [tallies(values, torch.ones(3)), tallies(values, torch.tensor([1, 0, 1]))]
    with Reads() as reads:
        merged = tally.merge(parts)
    assert reads.count == 0 and merged["max"] == 4
    with Reads() as reads:
        float(values[0])
    assert reads.count == 1
    large = 2**24 + 1  # float32 would lose the 1
    mean = tally.part_of_mean(torch.tensor(1.0), torch.tensor(large))
    got = tally.merge([{"mean": mean, "sum": tally.part_of_sum(torch.tensor([0.1]))}])
    assert got == {"mean": 1 / large, "sum": float(torch.tensor(0.1))}
    assert tally.merge([{"mean": tally.part_of_mean(3.0, 2.0)}]) == {"mean": 1.5} and tally.merge([]) == {}
    one, two = (tally.part_of_mean(torch.tensor(total), torch.tensor(n)) for total, n in ((3.0, 4), (0.0, 2)))
    assert tally.merge([{"share": one}, {"share": two}]) == {"share": 0.5}, "means are weighted"
    assert tally.merge([{"share": tally.part_of_mean(torch.tensor(0.0), torch.tensor(0))}]) == {"share": 0.0}
    assert tally.merge([{"loss": tally.part_of_sum(torch.tensor(part))} for part in (0.25, 0.5)]) == {"loss": 0.75}
