import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.data.balance import (
    balanced_partitions,
    ceil_div,
    first_fit,
    group_balanced_partitions,
    imbalance_metrics,
    micro_batches,
    restore_index,
    round_up,
    workload,
)

CASES = json.loads((Path(__file__).parents[1] / "golden" / "seqlen_balancing.json").read_text())


def cases(*functions):
    chosen = [case for case in CASES if case["params"]["function"] in functions]
    assert chosen
    return pytest.mark.parametrize("case", chosen, ids=[case["name"] for case in chosen])


@cases("get_seqlen_balanced_partitions", "greedy_partition")
def test_as_even_as_the_recorded_partitions(case):
    lengths, k, equal_size = case["inputs"]["seqlen_list"], case["params"]["k_partitions"], case["params"]["equal_size"]
    if "raises" in case["expected"]:
        with pytest.raises(ValueError, match="cannot be split into"):
            balanced_partitions(lengths, k, equal_size=equal_size)
        return
    parts = balanced_partitions(lengths, k, equal_size=equal_size)
    sums = [sum(lengths[i] for i in part) for part in parts]
    assert sorted(i for part in parts for i in part) == list(range(len(lengths)))
    assert max(sums) <= case["expected"]["max_sum"] and min(sums) >= case["expected"]["min_sum"]
    assert max(sums) - min(sums) <= case["expected"]["spread"]
    if equal_size:
        assert [len(part) for part in parts] == case["expected"]["partition_sizes"]


@cases("get_group_balanced_partitions")
def test_groups_stay_together(case):
    lengths, groups = case["inputs"]["seqlen_list"], case["inputs"]["uid_list"]
    parts = group_balanced_partitions(lengths, groups, case["params"]["k_partitions"])
    loads = [sum(workload(lengths[i]) for i in part) for part in parts]
    assert max(loads) <= case["expected"]["max_workload"] and min(loads) >= case["expected"]["min_workload"]
    assert [len(part) for part in parts] == case["expected"]["partition_sizes"]
    homes = [{groups[i] for i in part} for part in parts]
    assert sum(len(home) for home in homes) == len(set(groups))


@cases("rearrange_micro_batches")
def test_micro_batches_are_at_least_as_good_and_within_the_budget(case):
    lengths, params, expected = case["inputs"]["seqlen_list"], case["params"], case["expected"]
    batches = micro_batches(
        lengths,
        params["max_token_len"],
        at_least=params.get("min_num_micro_batch", 1),
        divisor=params.get("num_batches_divided_by", 1),
        group_size=params.get("force_group_size", 1),
    )
    tokens = [sum(lengths[i] for i in batch) for batch in batches]
    loads = [sum(workload(lengths[i]) for i in batch) for batch in batches]
    assert max(tokens) <= params["max_token_len"] and max(tokens) <= expected["max_tokens"]
    assert max(loads) <= expected["max_workload"]
    assert loads == sorted(loads, reverse=True)
    # One more is made exactly where the recorded cut is over the budget.
    over_budget = expected["max_tokens"] > params["max_token_len"]
    assert len(batches) == expected["num_micro_batches"] + over_budget


@cases("rearrange_micro_batches")
def test_restore_index(case):
    assert restore_index(case["expected"]["micro_batch_indices"]) == case["expected"]["restore_index"]


@cases("log_seqlen_unbalance")
def test_metrics(case):
    got = imbalance_metrics(case["inputs"]["seqlen_list"], case["inputs"]["partitions"], case["params"]["prefix"])
    assert got == case["expected"]["metrics"]


@cases("ceildiv")
def test_rounding(case):
    a, b = case["inputs"]["a"], case["inputs"]["b"]
    assert (ceil_div(a, b), round_up(a, b)) == (case["expected"]["ceildiv"], case["expected"]["roundup_divisible"])


LENGTHS = st.lists(st.integers(0, 300), min_size=1, max_size=40)


@given(LENGTHS, st.integers(1, 12), st.booleans())
@settings(deadline=None)
def test_partitions_hold_everything_once(lengths, k, equal_size):
    if len(lengths) < k or (equal_size and len(lengths) % k):
        with pytest.raises(ValueError, match="cannot be split"):
            balanced_partitions(lengths, k, equal_size=equal_size)
        return
    parts = balanced_partitions(lengths, k, equal_size=equal_size)
    assert sorted(i for part in parts for i in part) == list(range(len(lengths)))
    assert len(parts) == k and all(parts)
    assert parts == balanced_partitions(lengths, k, equal_size=equal_size)
    if equal_size:
        assert {len(part) for part in parts} == {len(lengths) // k}


@given(LENGTHS, st.integers(1, 400), st.integers(1, 5), st.integers(1, 3), st.integers(1, 2))
@settings(deadline=None)
def test_micro_batches_never_exceed_the_budget_unless_one_sequence_does(lengths, budget, at_least, divisor, group_size):
    lengths = lengths * group_size
    try:
        batches = micro_batches(lengths, budget, at_least=at_least, divisor=divisor, group_size=group_size)
    except ValueError as exc:
        assert "more than there are to fill" in str(exc)
        return
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    assert len(batches) >= at_least and len(batches) % divisor == 0
    for batch in batches:
        assert len(batch) == group_size or sum(lengths[i] for i in batch) <= budget
        groups = [batch[i : i + group_size] for i in range(0, len(batch), group_size)]
        assert all(group == list(range(group[0], group[0] + group_size)) for group in groups)


@given(LENGTHS, st.integers(50, 400), st.integers(0, 5))
@settings(deadline=None)
def test_devices_can_agree_on_a_number(lengths, budget, more):
    """What one device needs and another asks for: exactly the larger number is made."""
    needed = len(micro_batches(lengths, budget))
    wanted = min(needed + more, len(lengths))
    assert len(micro_batches(lengths, budget, at_least=wanted)) == wanted


def test_first_fit_leaves_no_two_parts_that_would_fit_together():
    lengths = [5, 5, 4, 3, 2, 1, 12]
    parts = first_fit(lengths, 10)
    sums = [sum(lengths[i] for i in part) for part in parts]
    assert sums == [12, 10, 10]


@pytest.mark.parametrize(
    ("lengths", "budget", "keywords", "message"),
    [
        ([], 10, {}, "0 sequences or groups .* make no micro-batch"),
        ([1], 0, {}, "budget of 0 tokens"),
        ([1, 2, 3], 10, {"group_size": 2}, "3 sequences are not whole groups of 2"),
        ([1, 2], 10, {"at_least": 3}, "with at_least=3 and divisor=1 that is 3, more than there are to fill"),
    ],
)
def test_impossible_cuts(lengths, budget, keywords, message):
    with pytest.raises(ValueError, match=message):
        micro_batches(lengths, budget, **keywords)
