"""Rank fusion: what both find comes first, and either alone still counts."""

import pytest

from burnish.search.ranker import HybridRanker, Ranker, fuse


class Fixed(Ranker):
    name = "fixed"

    def __init__(self, *positions):
        self.positions, self.asked = positions, []

    def rank(self, queries, topk):
        self.asked.append(topk)
        return [[(at, 100.0 - rank) for rank, at in enumerate(self.positions[:topk])] if q else [] for q in queries]


def test_scores_are_sums_of_reciprocal_ranks():
    fused = dict(fuse([[(4, 9.0), (2, 1.0)], [(2, 0.3), (7, 0.2)]], 10))
    assert fused == pytest.approx({4: 1 / 61, 2: 1 / 62 + 1 / 61, 7: 1 / 62})
    assert [at for at, _ in fuse([[(4, 9.0), (2, 1.0)], [(2, 0.3), (7, 0.2)]], 2)] == [2, 4]


def test_a_passage_low_in_both_rankings_beats_one_high_in_a_single_one():
    assert HybridRanker(Fixed(1, 2, 3), Fixed(4, 5, 3)).rank(["q"], 1)[0][0][0] == 3


def test_what_only_one_finds_is_found_and_ties_go_to_the_lower_position():
    found = HybridRanker(Fixed(), Fixed(8, 3)).rank(["q", ""], 5)
    assert [[at for at, _ in row] for row in found] == [[8, 3], []]
    assert [at for at, _ in HybridRanker(Fixed(8), Fixed(3)).rank(["q"], 1)[0]] == [3]


def test_both_are_asked_for_more_than_is_handed_out():
    first, second = Fixed(*range(500)), Fixed(*range(500, 0, -1))
    ranker = HybridRanker(first, second)
    assert len(ranker.rank(["q"], 3)[0]) == 3 and len(ranker.rank(["q"], 200)[0]) == 200
    assert first.asked == second.asked == [100, 200]
    assert ranker.rank(["q"], 0) == [[]]
