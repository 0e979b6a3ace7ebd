"""Sequences to equal shares: over devices (`balanced_partitions`) and into micro-batches (`micro_batches`).

Consumes sequence lengths; hands on lists of indices. Pure Python on whole numbers, the same on every machine.

A partition starts greedy (longest first, into the lightest part) and is then refined: the heaviest and the lightest
part trade one or two sequences with another part in the way that evens the two out most, until nothing helps.
`micro_batches` never exceeds the token budget, unless a single sequence (or group) does by itself: where the smallest
possible number of micro-batches cannot be filled within it, one more is made.
"""

import bisect
import heapq
import itertools
from collections.abc import Hashable, Sequence

FEW = 16  # parts of at most so many members also trade pairs
MAX_TRIES = 5000  # bounds the time for hundreds of parts, where the greedy start is even enough


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def round_up(a: int, b: int) -> int:
    """The smallest multiple of b that is at least a."""
    return ceil_div(a, b) * b


def workload(length: int) -> int:
    """Relative cost of one sequence: linear layers, plus attention that grows with the square.

    The constant is six times the hidden size of a 7B model; the balance hardly depends on it.
    """
    return 24576 * length + length * length


def balanced_partitions(lengths: Sequence[int], k: int, *, equal_size: bool = False) -> list[list[int]]:
    """The indices of `lengths` in k non-empty parts whose sums are as equal as can be found quickly.

    With `equal_size` all parts have the same number of members. Parts and their members are in ascending order.
    """
    if k < 1 or len(lengths) < k:
        raise ValueError(f"{len(lengths)} sequences cannot be split into {k} parts")
    if equal_size and len(lengths) % k:
        raise ValueError(f"{len(lengths)} sequences cannot be split into {k} parts of equal size")
    parts = _greedy(lengths, k, len(lengths) // k if equal_size else None)
    _refine(lengths, parts, swaps_only=equal_size)
    return sorted(sorted(part) for part in parts)


def group_balanced_partitions(lengths: Sequence[int], groups: Sequence[Hashable], k: int) -> list[list[int]]:
    """Parts of even workload that keep the sequences of a group together; equal numbers of groups where k divides."""
    members: dict[Hashable, list[int]] = {}
    for i, group in enumerate(groups):
        members.setdefault(group, []).append(i)
    whole = list(members.values())
    loads = [sum(workload(lengths[i]) for i in group) for group in whole]
    parts = balanced_partitions(loads, k, equal_size=len(whole) % k == 0)
    return [sorted(i for group in part for i in whole[group]) for part in parts]


def micro_batches(
    lengths: Sequence[int], max_tokens: int, *, at_least: int = 1, divisor: int = 1, group_size: int = 1
) -> list[list[int]]:
    """Indices in micro-batches of at most `max_tokens`, even in workload, heaviest first so that memory peaks at once.

    at_least    smallest number of micro-batches (devices that must all make the same number)
    divisor     the number is a multiple of this
    group_size  so many consecutive sequences stay together, e.g. 2 for pairs
    """
    if len(lengths) % group_size:
        raise ValueError(f"{len(lengths)} sequences are not whole groups of {group_size}")
    groups = [range(i, i + group_size) for i in range(0, len(lengths), group_size)]
    tokens = [sum(lengths[i] for i in group) for group in groups]
    loads = [sum(workload(lengths[i]) for i in group) for group in groups]
    if not groups or max_tokens < 1:
        raise ValueError(f"{len(groups)} sequences or groups with a budget of {max_tokens} tokens make no micro-batch")
    parts = _within_budget(tokens, loads, max_tokens, at_least, divisor)
    parts.sort(key=lambda part: (-sum(loads[i] for i in part), part))
    return [[i for group in part for i in groups[group]] for part in parts]


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


def restore_index(parts: Sequence[Sequence[int]]) -> list[int]:
    """Where each original index is found after the parts are concatenated."""
    place = {i: position for position, i in enumerate(i for part in parts for i in part)}
    return [place[i] for i in range(len(place))]


def imbalance_metrics(
    lengths: Sequence[int], parts: Sequence[Sequence[int]], prefix: str = "global_seqlen"
) -> dict[str, float]:
    """How uneven consecutive parts of the same number would be, and how even these are."""
    k = len(parts)
    size = len(lengths) // k
    plain = [sum(lengths[i : i + size]) for i in range(0, size * k, size)]
    balanced = [sum(lengths[i] for i in part) for part in parts]
    return {
        f"{prefix}/min": min(plain),
        f"{prefix}/max": max(plain),
        f"{prefix}/minmax_diff": max(plain) - min(plain),
        f"{prefix}/balanced_min": min(balanced),
        f"{prefix}/balanced_max": max(balanced),
        f"{prefix}/mean": sum(lengths) / k,
    }


def _within_budget(tokens: list[int], loads: list[int], budget: int, at_least: int, divisor: int) -> list[list[int]]:
    """The fewest parts within the budget that were found; then as many more as `at_least` and `divisor` ask for."""
    fewest = _fewest(tokens, loads, budget)
    count = round_up(max(at_least, len(fewest)), divisor)
    if count > len(tokens):
        raise ValueError(
            f"{len(tokens)} sequences or groups need {len(fewest)} micro-batches of at most {budget} tokens; "
            f"with at_least={at_least} and divisor={divisor} that is {count}, more than there are to fill"
        )
    parts = balanced_partitions(loads, count)
    return parts if _fits(parts, tokens, budget) else _split(fewest, count)


def _fewest(tokens: list[int], loads: list[int], budget: int) -> list[list[int]]:
    certain = first_fit(tokens, budget)
    for count in range(min(ceil_div(sum(tokens), budget), len(tokens)), len(certain)):
        for weights in (loads, tokens):
            parts = balanced_partitions(weights, max(count, 1))
            if _fits(parts, tokens, budget):
                return parts
    return certain


def _split(parts: list[list[int]], count: int) -> list[list[int]]:
    """More parts, by halving those with the most members; none gets heavier."""
    parts = list(parts)
    while len(parts) < count:
        part = max(parts, key=len)
        parts.remove(part)
        parts += [part[0::2], part[1::2]]
    return parts


def _fits(parts: list[list[int]], tokens: Sequence[int], budget: int) -> bool:
    return all(len(part) == 1 or sum(tokens[i] for i in part) <= budget for part in parts)


def _greedy(lengths: Sequence[int], k: int, size: int | None) -> list[list[int]]:
    parts: list[list[int]] = [[] for _ in range(k)]
    # The member count breaks ties, so that k zeros still land in k different parts.
    lightest = [(0, 0, part) for part in range(k)]
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        total, members, part = heapq.heappop(lightest)
        parts[part].append(i)
        if size is None or members + 1 < size:
            heapq.heappush(lightest, (total + lengths[i], members + 1, part))
    return parts


def _refine(lengths: Sequence[int], parts: list[list[int]], *, swaps_only: bool) -> None:
    """Trades between the heaviest or lightest part and the others, as long as one helps. Changes `parts`."""
    sums = [sum(lengths[i] for i in part) for part in parts]
    tries = 0
    while tries < MAX_TRIES:
        by_sum = sorted(range(len(parts)), key=sums.__getitem__)
        heavy, light = by_sum[-1], by_sum[0]
        pairs = [(heavy, other) for other in by_sum[:-1]] + [(other, light) for other in reversed(by_sum[1:-1])]
        for a, b in pairs:
            tries += 1
            if _trade(lengths, parts, sums, a, b, swaps_only):
                break
        else:
            return


def _trade(lengths: Sequence[int], parts: list[list[int]], sums: list[int], a: int, b: int, swaps_only: bool) -> bool:
    """Make the trade that evens out parts a (the heavier) and b most; False where none does."""
    gap = sums[a] - sums[b]
    best, chosen = gap, None  # what is left of the gap, and the trade
    takes = _bundles(lengths, parts[b], with_empty=not swaps_only)
    of_size = {size: [entry for entry in takes if len(entry[1]) == size] if swaps_only else takes for size in (1, 2)}
    for load, give in _bundles(lengths, parts[a], with_empty=False):
        options = of_size[len(give)]
        place = bisect.bisect_left(options, (load - gap / 2,))
        for other, take in options[max(place - 1, 0) : place + 1]:
            if not take and len(give) == len(parts[a]):
                continue  # would leave the part empty
            if abs(gap - 2 * (load - other)) < best:
                best, chosen = abs(gap - 2 * (load - other)), (give, take, load - other)
    if chosen is None:
        return False
    give, take, moved = chosen
    parts[a] = [i for i in parts[a] if i not in give] + list(take)
    parts[b] = [i for i in parts[b] if i not in take] + list(give)
    sums[a], sums[b] = sums[a] - moved, sums[b] + moved
    return True


def _bundles(lengths: Sequence[int], part: list[int], *, with_empty: bool) -> list[tuple[int, tuple[int, ...]]]:
    """What a part can trade, by load: each member, pairs where there are few members, and nothing at all."""
    bundles: list[tuple[int, ...]] = [(i,) for i in part]
    if len(part) <= FEW:
        bundles += itertools.combinations(part, 2)
    if with_empty:
        bundles.append(())
    return sorted((sum(lengths[i] for i in bundle), bundle) for bundle in bundles)
