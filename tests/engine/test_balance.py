"""Parts are as even as the recorded ones, within their budget, few, and the same every time."""

import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.engine.balance import balanced_partitions, best_fit, micro_batches, workload
from tests.recorded import each, golden

CASES = golden("seqlen_balancing")
PARTITIONS = ("get_seqlen_balanced_partitions", "greedy_partition")
GROUPS, MICRO, UNEVEN, ROUNDING = (
    "get_group_balanced_partitions", "rearrange_micro_batches", "log_seqlen_unbalance", "ceildiv",
)  # fmt: skip
assert {case["params"]["function"] for case in CASES} == {*PARTITIONS, GROUPS, MICRO, UNEVEN, ROUNDING}
assert len(CASES) >= 70


def cases(*functions):
    return each([case for case in CASES if case["params"]["function"] in functions])


def sums(weights, parts):
    return [sum(weights[i] for i in part) for part in parts]


def holds_each_once(parts, count):
    return sorted(i for part in parts for i in part) == list(range(count))


@cases(*PARTITIONS)
def test_as_even_as_the_recorded_partitions(case):
    lengths, k, equal_size = case["inputs"]["seqlen_list"], case["params"]["k_partitions"], case["params"]["equal_size"]
    expected = case["expected"]
    if "raises" in expected:
        with pytest.raises(ValueError, match="cannot be split into"):
            balanced_partitions(lengths, k, equal_size=equal_size)
        return
    parts = balanced_partitions(lengths, k, equal_size=equal_size)
    loads = sums(lengths, parts)
    assert holds_each_once(parts, len(lengths))
    assert max(loads) <= expected["max_sum"] and min(loads) >= expected["min_sum"]
    assert max(loads) - min(loads) <= expected["spread"]
    if equal_size:
        assert [len(part) for part in parts] == expected["partition_sizes"]


@cases(GROUPS)
def test_groups_can_be_balanced_as_wholes(case):
    members: dict[str, list[int]] = {}
    for length, uid in zip(case["inputs"]["seqlen_list"], case["inputs"]["uid_list"], strict=True):
        members.setdefault(uid, []).append(workload(length))
    groups = [sum(costs) for costs in members.values()]
    loads = sums(groups, balanced_partitions(groups, case["params"]["k_partitions"], equal_size=True))
    assert max(loads) <= case["expected"]["max_workload"] and min(loads) >= case["expected"]["min_workload"]


@cases(MICRO)
def test_micro_batches_are_as_few_and_as_even_as_the_recorded_ones_and_within_the_budget(case):
    lengths, budget = case["inputs"]["seqlen_list"], case["params"]["max_token_len"]
    parts = micro_batches(lengths, budget)
    tokens, loads = sums(lengths, parts), sums([workload(n) for n in lengths], parts)
    assert holds_each_once(parts, len(lengths)) and max(tokens) <= budget
    assert loads == sorted(loads, reverse=True)
    # One more is made where the recorded cut is over the budget.
    assert len(parts) <= case["expected"]["num_micro_batches"] + (case["expected"]["max_tokens"] > budget)
    order = np.concatenate(parts)
    recorded = np.concatenate(case["expected"]["micro_batch_indices"])
    assert recorded.argsort().tolist() == case["expected"]["restore_index"]  # how `infer` restores rows, on theirs
    assert order[order.argsort()].tolist() == list(range(len(lengths)))
    # As even at the recorded number of parts, which some cases raise, round up or fill with whole groups of rows.
    size, expected = case["params"].get("force_group_size", 1), case["expected"]
    costs = [sum(workload(n) for n in lengths[i : i + size]) for i in range(0, len(lengths), size)]
    loads = sums(costs, balanced_partitions(costs, expected["num_micro_batches"]))
    spread = expected["max_workload"] - expected["min_workload"]
    assert max(loads) <= expected["max_workload"] and max(loads) - min(loads) <= spread


@cases(UNEVEN)
def test_more_even_than_parts_in_order_and_than_the_recorded_ones(case):
    lengths, recorded = case["inputs"]["seqlen_list"], case["expected"]["metrics"]
    loads = sums(lengths, balanced_partitions(lengths, len(case["inputs"]["partitions"]), equal_size=True))
    assert max(loads) <= recorded["global_seqlen/balanced_max"] < recorded["global_seqlen/max"]
    assert min(loads) >= recorded["global_seqlen/balanced_min"] > recorded["global_seqlen/min"]
    assert np.mean(loads) == recorded["global_seqlen/mean"]


@cases(ROUNDING)
def test_sequences_of_one_token_make_as_many_parts_as_the_budget_divides(case):
    a, b = case["inputs"]["a"], case["inputs"]["b"]
    parts = micro_batches([1] * a, b)
    assert len(parts) == case["expected"]["ceildiv"] and len(parts) * b == case["expected"]["roundup_divisible"]


LENGTHS = st.lists(st.integers(0, 300), min_size=1, max_size=40)


@given(LENGTHS, st.integers(1, 12), st.booleans())
@settings(deadline=None)
def test_partitions_hold_everything_once(lengths, k, equal_size):
    if len(lengths) < k or (equal_size and len(lengths) % k):
        with pytest.raises(ValueError, match="cannot be split"):
            balanced_partitions(lengths, k, equal_size=equal_size)
        return
    parts = balanced_partitions(lengths, k, equal_size=equal_size)
    assert holds_each_once(parts, len(lengths))
    assert len(parts) == k and all(parts)
    assert parts == balanced_partitions(lengths, k, equal_size=equal_size)
    if equal_size:
        assert {len(part) for part in parts} == {len(lengths) // k}


@given(LENGTHS, st.integers(1, 700))
@settings(deadline=None, max_examples=300)
def test_micro_batches_are_few_and_within_the_budget(lengths, budget):
    parts = micro_batches(lengths, budget)
    assert holds_each_once(parts, len(lengths)) and parts == micro_batches(list(lengths), budget)
    assert all(part == sorted(part) for part in parts)
    assert all(len(part) == 1 or total <= budget for part, total in zip(parts, sums(lengths, parts), strict=True))
    loads = sums([workload(n) for n in lengths], parts)
    assert loads == sorted(loads, reverse=True)
    # The bound that holds for every list of lengths; see `best_fit`.
    fitting = [n for n in lengths if n <= budget]
    m = budget // max(fitting, default=budget) if max(fitting, default=0) else budget
    most = max(math.ceil(sum(fitting) * (m + 1) / (m * budget)), bool(fitting))
    assert len(parts) <= most + len(lengths) - len(fitting)


@given(st.lists(st.integers(16, 512), min_size=60, max_size=300), st.integers(2048, 8192))
@settings(deadline=None, max_examples=60)
def test_where_a_part_holds_several_sequences_at_most_one_part_more_than_the_tokens_need(lengths, budget):
    parts = micro_batches(lengths, budget)
    assert len(parts) <= math.ceil(sum(lengths) / budget) + 1
    loads = sums([workload(n) for n in lengths], parts)
    assert max(loads) - min(loads) <= workload(512)


@given(st.lists(st.integers(1, 60_000), min_size=2, max_size=60), st.floats(1.0, 2.5))
@settings(deadline=None, max_examples=300)
def test_where_attention_counts_a_budget_stays_one_of_tokens(lengths, room):
    """Long sequences cost more than their tokens say, so evening out the cost would put more tokens into some parts."""
    budget = int(max(lengths) * room)
    assert max(sums(lengths, micro_batches(lengths, budget))) <= budget


def test_parts_by_hand():
    assert best_fit([6, 4, 5, 5], 10) == [[0, 1], [2, 3]], "filled to the last token"
    # Two parts hold these only in one way, which neither costs nor tokens balanced by themselves find at once.
    lengths = [5, 5, 4, 3, 2, 1]
    assert sums(lengths, micro_batches(lengths, 10)) == [10, 10]
    assert micro_batches([4, 30, 4, 20], 8) == [[1], [3], [0, 2]], "over the budget: alone and first"
    assert micro_batches([], 8) == []
    with pytest.raises(ValueError, match="a budget of 0 tokens"):
        micro_batches([1], 0)


@pytest.mark.parametrize("budget", [4096, 16384, 65536])
def test_the_sequences_of_a_large_batch_are_cut_in_a_moment(budget):
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(6, 0.8, 4096), 20, 4096).astype(int).tolist()
    start = time.process_time()
    parts = micro_batches(lengths, budget)
    assert time.process_time() - start < 30  # some 0.05 s on an idle core
    assert len(parts) <= math.ceil(sum(lengths) / budget) + 1
