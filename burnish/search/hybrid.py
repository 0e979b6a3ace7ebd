"""Hybrid retrieval: BM25 and dense, fused by the ranks they give (reciprocal rank fusion, Cormack et al. 2009).

A passage scores 1 / (60 + rank) in each ranking that has it. Ranks and not scores, since a BM25 score has no upper end
and another scale for every query, while a cosine lies within ±1: any weighting of the two would have to be tuned for
the corpus, and this one needs nothing. The fused scores say which is better, not how good a passage is.
"""

from collections.abc import Sequence

import numpy as np

from burnish.search.ranker import Ranker, Ranking, best

DAMPING = 60  # the paper's: how little the first ranks stand out from the next
DEPTH = 100  # passages of each ranking that take part


class HybridRanker(Ranker):
    """The passages that several rankers agree on come first."""

    name = "hybrid"

    def __init__(self, *rankers: Ranker):
        self._rankers = rankers

    def rank(self, queries: Sequence[str], topk: int) -> list[Ranking]:
        if topk < 1:
            return [[] for _ in queries]
        found = [ranker.rank(queries, max(topk, DEPTH)) for ranker in self._rankers]
        return [fuse(rankings, topk) for rankings in zip(*found, strict=True)]


def fuse(rankings: Sequence[Ranking], topk: int) -> Ranking:
    """One ranking of several."""
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, (position, _) in enumerate(ranking, 1):
            scores[position] = scores.get(position, 0.0) + 1 / (DAMPING + rank)
    positions = sorted(scores)
    return best(np.array(positions), np.array([scores[position] for position in positions]), topk)
