from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.data.dataset import RLDataset
from burnish.data.files import largest_remainder
from burnish.data.order import Order, Stage, make_order
from burnish.errors import ConfigError, DataError
from tests.data.conftest import refused

SIZES = st.lists(st.integers(1, 12), min_size=1, max_size=4)
SEEDS = st.integers(0, 2**63)


@st.composite
def orders(draw):
    sizes = draw(SIZES)
    weights = None
    if draw(st.booleans()):
        weights = draw(st.lists(st.floats(0.01, 10), min_size=len(sizes), max_size=len(sizes)))
    stages = None
    if draw(st.booleans()):
        rows = st.lists(st.integers(0, sum(sizes) - 1), min_size=1, unique=True)
        stages = draw(st.lists(st.builds(Stage, rows.map(sorted), st.integers(1, 3)), min_size=1, max_size=3))
    return sizes, draw(SEEDS), draw(st.booleans()), weights, stages


def epoch_rows(order, epoch):
    return [order.index(p) for p in range(order.start(epoch), order.start(epoch + 1))]


@given(SIZES, SEEDS, st.booleans(), st.integers(0, 20))
@settings(deadline=None)
def test_every_epoch_is_a_permutation(sizes, seed, shuffle, epoch):
    order = Order(sizes, seed, shuffle)
    rows = epoch_rows(order, epoch)
    assert sorted(rows) == list(range(sum(sizes)))
    if not shuffle:
        assert rows == sorted(rows)


@given(orders(), st.lists(st.integers(0, 200), max_size=6), st.integers(0, 300))
@settings(deadline=None)
def test_a_position_has_one_row_and_one_epoch_whatever_was_asked_before(arguments, asked, position):
    used, order = Order(*arguments), Order(*arguments)
    for other in asked:
        used.index(other)
    assert used.index(position) == order.index(position)
    epoch = order.epoch(position)
    assert order.start(epoch) <= position < order.start(epoch + 1)
    assert order.start(0) == 0 and order.start(1) == len(order)


@given(SIZES, SEEDS, st.booleans(), st.data(), st.integers(0, 5))
@settings(deadline=None)
def test_mixing_shares_are_exact_in_every_epoch(sizes, seed, shuffle, data, epoch):
    weights = data.draw(st.lists(st.floats(0.01, 10), min_size=len(sizes), max_size=len(sizes)))
    order = Order(sizes, seed, shuffle, weights)
    ends = np.cumsum(sizes)
    drawn = Counter(int(np.searchsorted(ends, row, side="right")) for row in epoch_rows(order, epoch))
    assert [drawn[i] for i in range(len(sizes))] == largest_remainder(weights, sum(sizes))


@given(st.integers(1, 9), st.integers(1, 9), SEEDS, st.booleans())
@settings(deadline=None)
def test_a_source_repeats_no_row_before_all_were_drawn(a, b, seed, shuffle):
    order = Order([a, b], seed, shuffle, [3, 1])
    stream = [order.index(p) for p in range(6 * (a + b))]
    for rows, size in (([r for r in stream if r < a], a), ([r - a for r in stream if r >= a], b)):
        for start in range(0, len(rows) - size + 1, size):
            assert sorted(rows[start : start + size]) == list(range(size))


def test_the_order_of_a_seed_stays_and_spreads_rows_evenly():
    """A run resumed with a newer version continues in the same order."""
    assert epoch_rows(Order([8], 1, True), 0) == [0, 3, 5, 1, 7, 4, 2, 6]
    assert epoch_rows(Order([4, 2], 1, True, [1, 1]), 1) == [2, 4, 5, 1, 4, 2]
    # Over many epochs each row is as often in the first half as in the second.
    order = Order([10], 0, True)
    first_half = Counter(row for epoch in range(400) for row in epoch_rows(order, epoch)[:5])
    assert all(150 < first_half[row] < 250 for row in range(10))
    one, two = Order([50], 1, True), Order([50], 2, True)
    assert epoch_rows(one, 0) != epoch_rows(one, 1) and epoch_rows(one, 0) != epoch_rows(two, 0)


@pytest.mark.parametrize("shuffle", [True, False])
def test_sources_are_spread_within_an_epoch(shuffle):
    order = Order([500, 500], 3, shuffle, [0.7, 0.3])
    rows = epoch_rows(order, 0)
    for start in range(0, 1000, 100):
        assert abs(sum(row < 500 for row in rows[start : start + 100]) - 70) <= 4


def test_weights_repeat_a_small_source_and_leave_out_one_of_weight_zero():
    drawn = Counter(epoch_rows(Order([2, 200], 0, True, [0.9, 0.1]), 0))
    assert abs(drawn[0] - drawn[1]) <= 1 and drawn[0] + drawn[1] == 182
    assert max(epoch_rows(Order([5, 5], 0, True, [1, 0]), 0)) < 5
    rows = epoch_rows(Order([6, 3], 0, False, [2, 1]), 0)
    assert [row for row in rows if row < 6] == [0, 1, 2, 3, 4, 5]
    assert [b - a for a, b in pairwise(i for i, row in enumerate(rows) if row >= 6)] == [3, 3]


def test_sources_without_rows():
    refused("gives file 1 the weight 0.5, but none of its rows is left", Order, [3, 0], 0, True, [0.5, 0.5])
    refused("no rows to draw from", Order, [0], 0, True)
    said = "data.dataset_weights has 1 weights for 2 files; give one"
    refused(said, Order, [3, 3], 0, True, [1.0], error=ConfigError)
    refused("position -1 is negative", Order([3], 0, True).index, -1, error=ValueError)


class TestCurriculum:
    LEVELS = ("easy", "hard", "easy", "medium", "hard", "easy")

    @pytest.fixture
    def dataset(self, write_jsonl, data_config):
        rows = [{"prompt": "q", "extra_info": {"difficulty": level}} for level in self.LEVELS]
        return RLDataset([write_jsonl(rows)], None, data_config)

    def order(self, dataset, config, stages, key="extra_info.difficulty"):
        config.curriculum.key, config.curriculum.stages = key, stages
        return make_order(dataset, config)

    def test_stages_follow_each_other_and_the_last_lasts(self, dataset, data_config):
        stages = [{"values": ["easy"], "epochs": 2}, {"values": ["medium"]}, {"values": ["easy", "medium", "hard"]}]
        order = self.order(dataset, data_config, stages)
        levels = [sorted(self.LEVELS[row] for row in epoch_rows(order, epoch)) for epoch in range(5)]
        assert levels == [["easy"] * 3, ["easy"] * 3, ["medium"], *[sorted(self.LEVELS)] * 2]
        assert [order.start(epoch) for epoch in range(6)] == [0, 3, 6, 7, 13, 19]
        assert [order.epoch(position) for position in (0, 5, 6, 7, 12, 13)] == [0, 1, 2, 3, 3, 4]

    def test_bare_values_are_stages_of_one_epoch_and_rows_in_none_are_reported(self, dataset, data_config, caplog):
        caplog.set_level("INFO")
        order = self.order(dataset, data_config, ["medium", ["easy", "hard"]])
        assert epoch_rows(order, 0) == [3]
        assert sorted(epoch_rows(order, 1)) == [0, 1, 2, 4, 5] and not caplog.messages
        self.order(dataset, data_config, [{"values": ["easy"]}])
        assert caplog.messages == ["3 of 6 rows are in no stage of data.curriculum and never drawn"]

    def test_a_stage_mixes_the_sources_that_have_rows_in_it(self):
        order = Order([4, 4, 4], 0, True, [0.5, 0.25, 0.25], [Stage([0, 1, 4, 5]), Stage(range(12))])
        assert Counter(row // 4 for row in epoch_rows(order, 0)) == {0: 3, 1: 1}
        assert Counter(row // 4 for row in epoch_rows(order, 1)) == {0: 6, 1: 3, 2: 3}

    @pytest.mark.parametrize(
        ("stages", "message"),
        [
            ([{"values": ["odd"]}], r"stages\[0\]: no row has .*\['odd'\]; the values are 'easy', 'hard', 'medium'"),
            ([{"value": ["easy"]}], r"stages\[0\].*expected \{values: \[\.\.\.\], epochs: k\}"),
            ([{"values": ["easy"], "epoch": 2}], r"stages\[0\].*expected"),
            ([{"values": ["easy"], "epochs": 0}], r"stages\[0\]\.epochs=0: expected a whole number of at least 1"),
            ([{"values": ["easy"], "epochs": True}], r"epochs=True"),
        ],
    )
    def test_bad_stages(self, dataset, data_config, stages, message):
        refused(message, self.order, dataset, data_config, stages, error=ConfigError)
        with pytest.raises(DataError, match=r"rows\.jsonl, row 0 .*field 'extra_info\.level' \(data\.curriculum"):
            self.order(dataset, data_config, ["easy"], key="extra_info.level")


def test_seed_shuffle_and_weights_are_read(write_jsonl, data_config):
    dataset = RLDataset([write_jsonl([{"prompt": "q"}] * 6, f"{name}.jsonl") for name in "ab"], None, data_config)
    data_config.seed, data_config.dataset_weights = 5, [0.75, 0.25]
    assert epoch_rows(make_order(dataset, data_config), 0) == epoch_rows(Order([6, 6], 5, True, [0.75, 0.25]), 0)
    data_config.shuffle, data_config.dataset_weights = False, None
    assert epoch_rows(make_order(dataset, data_config), 0) == list(range(12))


class TestSampler:
    @pytest.fixture
    def make(self, write_jsonl, write_python, data_config):
        def make(body):
            text = "class Mine:\n    def __init__(self, dataset, config):\n        self.n = len(dataset)\n" + body
            data_config.sampler.class_path, data_config.sampler.class_name = write_python(text), "Mine"
            return make_order(RLDataset([write_jsonl([{"prompt": "q"}] * 4)], None, data_config), data_config)

        return make

    LEN = "    def __len__(self): return self.n\n"

    @pytest.mark.parametrize(
        ("body", "rows"),
        [
            ("    def index(self, position): return (3 * position) % self.n\n", [0, 3, 2, 1, 0, 3, 2, 1]),
            ("    def __iter__(self): return iter([3, 1, 0, 2])\n", [3, 1, 0, 2, 3, 1, 0, 2]),
            (
                "    def set_epoch(self, epoch): self.epoch = epoch\n"
                "    def __iter__(self): return iter([(i + self.epoch) % self.n for i in range(self.n)])\n",
                [0, 1, 2, 3, 1, 2, 3, 0],
            ),
        ],
    )
    def test_by_position_or_by_iteration(self, make, body, rows):
        order = make(self.LEN + body)
        assert [order.index(p) for p in range(8)] == rows and order.index(1) == rows[1]
        assert (order.epoch(5), order.start(2), len(order)) == (1, 8, 4)

    @pytest.mark.parametrize(
        ("body", "message"),
        [
            (LEN, r"Mine needs __len__, and either index\(position\) or __iter__"),
            ("    def __iter__(self): return iter([0])\n", "Mine needs __len__"),
            (LEN + "    def __iter__(self): return iter([0])\n", "has the length 4 but gives 1 rows per epoch"),
            (
                LEN + "    k = 0\n    def __iter__(self):\n        self.k += 1\n        return iter([self.k] * 4)\n",
                "gives another order each time it is iterated",
            ),
            ("    def __len__(self): return 0\n    def index(self, p): return 0\n", "an epoch of 0 positions"),
            ("    def __init__(self): pass\n" + LEN + "    def index(self, p): return 0\n", "cannot be called with 2"),
            (LEN + "    def index(self, p): return p\n", r"Mine gives row 4 at position 4; rows are 0 to 3"),
        ],
    )
    def test_bad_samplers(self, make, body, message):
        refused(message, lambda: make(body).index(4), error=ConfigError)
