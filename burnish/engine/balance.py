"""Sequences in parts of even cost: micro-batches within a budget of tokens, and a given number of parts.

Pure Python on whole numbers, the same on every machine. A partition starts greedy (longest first, into the lightest
part); then the heaviest and the lightest part trade one or two sequences with another part until nothing helps.
"""

import bisect
import heapq
import itertools
from collections.abc import Sequence

FEW = 16  # parts of at most so many members also trade pairs
MAX_WORK = 8_000  # parts and bundles looked at while refining: bounds the time where there are many parts
MAX_COUNTS = 2  # numbers of parts tried below that of the best fit


def workload(length: int) -> int:
    """Relative cost of one sequence: linear layers, plus attention that grows with the square. The constant is six
    times the hidden size of a 7B model; the balance hardly depends on it."""
    return 24576 * length + length * length


def micro_batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Indices in as few parts of at most `budget` tokens as are found, even in workload. With the heaviest first memory
    peaks at once: a run that does not fit fails at its first pass."""
    if budget < 1:
        raise ValueError(f"a budget of {budget} tokens holds no sequence")
    costs = [workload(length) for length in lengths]
    parts = [[i] for i, length in enumerate(lengths) if length > budget]
    rest = [i for i, length in enumerate(lengths) if length <= budget]
    within = _within([lengths[i] for i in rest], [costs[i] for i in rest], budget)
    parts += [sorted(rest[i] for i in part) for part in within]
    return sorted(parts, key=lambda part: (-sum(costs[i] for i in part), part))


def balanced_partitions(weights: Sequence[int], k: int) -> list[list[int]]:
    """Indices in k non-empty parts of sums as equal as can be found quickly; parts and members in ascending order."""
    if k < 1 or len(weights) < k:
        raise ValueError(f"{len(weights)} sequences cannot be split into {k} parts")
    parts: list[list[int]] = [[] for _ in range(k)]
    # The member count breaks ties, so that k zeros still land in k different parts.
    lightest = [(0, 0, part) for part in range(k)]
    for i in _falling(weights):
        total, members, part = heapq.heappop(lightest)
        parts[part].append(i)
        heapq.heappush(lightest, (total + weights[i], members + 1, part))
    _Trades(weights, parts).make()
    return sorted(sorted(part) for part in parts)


def best_fit(tokens: Sequence[int], budget: int) -> list[list[int]]:
    """Indices in parts of at most `budget`: longest first, each into the fullest part that has room for it. Every part
    but the last is filled to more than m / (m + 1) where no sequence exceeds budget / m: the sequence that opened the
    last part fits into no other, and those in them are no shorter."""
    parts: list[list[int]] = []
    rooms: list[tuple[int, int]] = []  # (free tokens, part), ascending
    for i in _falling(tokens):
        place = bisect.bisect_left(rooms, (tokens[i], -1))
        if place == len(rooms):
            parts.append([])
            free, part = budget, len(parts) - 1
        else:
            free, part = rooms.pop(place)
        parts[part].append(i)
        bisect.insort(rooms, (free - tokens[i], part))
    return parts


def _within(tokens: Sequence[int], costs: Sequence[int], budget: int) -> list[list[int]]:
    """The fewest parts within the budget that were found, none of `tokens` exceeding it alone; even in `costs`."""
    if not tokens:
        return []
    packed = best_fit(tokens, budget)
    # No two sequences of more than half the budget share a part.
    fewest = max(-(-sum(tokens) // budget), sum(2 * length > budget for length in tokens), 1)
    for count in range(fewest, min(fewest + MAX_COUNTS, len(packed) + 1)):
        for weights in (costs, tokens):
            parts = balanced_partitions(weights, count)
            if all(sum(tokens[i] for i in part) <= budget for part in parts):
                if weights is tokens:
                    _Trades(costs, parts, tokens, budget).make()
                return parts
    _Trades(costs, packed, tokens, budget).make()
    return packed


def _falling(weights: Sequence[int]) -> list[int]:
    return sorted(range(len(weights)), key=lambda i: (-weights[i], i))


class _Trades:
    """Trades between the heaviest or lightest of `parts` and the others; `budget` bounds `tokens` in each."""

    def __init__(
        self, weights: Sequence[int], parts: list[list[int]], tokens: Sequence[int] | None = None, budget: int = 0
    ):
        self.weights, self.parts, self.tokens, self.budget = weights, parts, tokens, budget
        self.sums = [sum(weights[i] for i in part) for part in parts]
        self.work = 0

    def make(self) -> None:
        while self.work < MAX_WORK:
            by_sum = sorted(range(len(self.parts)), key=self.sums.__getitem__)
            heavy, light = by_sum[-1], by_sum[0]
            self.work += len(by_sum)
            pairs = [(heavy, other) for other in by_sum[:-1]] + [(other, light) for other in reversed(by_sum[1:-1])]
            if not any(self.work < MAX_WORK and self._trade(a, b) for a, b in pairs):
                return

    def _trade(self, a: int, b: int) -> bool:
        """Make the trade that evens out parts a (the heavier) and b most; False where none does."""
        gap = self.sums[a] - self.sums[b]
        best, chosen = gap, None  # what is left of the gap, and the trade
        gives, takes = self._bundles(a), sorted([*self._bundles(b), (0, ())])  # b may give nothing in return
        self.work += len(gives) + len(takes)
        for weight, give in gives:
            place = bisect.bisect_left(takes, (weight - gap / 2,))
            for other, take in takes[max(place - 1, 0) : place + 1]:
                left = abs(gap - 2 * (weight - other))
                if left < best and self._allowed(a, b, give, take):
                    best, chosen = left, (give, take, weight - other)
        if chosen is None:
            return False
        give, take, moved = chosen
        self.parts[a] = [i for i in self.parts[a] if i not in give] + list(take)
        self.parts[b] = [i for i in self.parts[b] if i not in take] + list(give)
        self.sums[a], self.sums[b] = self.sums[a] - moved, self.sums[b] + moved
        return True

    def _allowed(self, a: int, b: int, give: tuple[int, ...], take: tuple[int, ...]) -> bool:
        """Whether no part is left empty or over the budget."""
        if not take and len(give) == len(self.parts[a]):
            return False
        if self.tokens is None:
            return True
        moved = sum(self.tokens[i] for i in give) - sum(self.tokens[i] for i in take)
        gains, gained = (b, moved) if moved > 0 else (a, -moved)
        return sum(self.tokens[i] for i in self.parts[gains]) + gained <= self.budget

    def _bundles(self, part: int) -> list[tuple[int, tuple[int, ...]]]:
        """What a part can trade, by weight: each member, and pairs where there are few members."""
        members = self.parts[part]
        bundles: list[tuple[int, ...]] = [(i,) for i in members]
        if len(members) <= FEW:
            bundles += itertools.combinations(members, 2)
        return sorted((sum(self.weights[i] for i in bundle), bundle) for bundle in bundles)
