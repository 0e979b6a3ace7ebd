"""How an index finds passages: positions with scores; `IndexRetriever` makes them into documents.

`HybridRanker` fuses rankings by reciprocal rank (Cormack et al. 2009): ranks and not scores, since a BM25 score has no
upper limit and a different scale for every query, while a cosine lies within ±1.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from burnish.search.documents import Hit, Retriever
from burnish.search.passages import Passages

DAMPING = 60  # the paper's: how little the first ranks stand out from the next
DEPTH = 100  # passages of each ranking that take part

Ranking = list[tuple[int, float]]  # position and score, the best first


class Ranker(ABC):
    name: str

    @abstractmethod
    def rank(self, queries: Sequence[str], topk: int) -> list[Ranking]:
        """At most `topk` passages per query, the best first; of equal ones the lower position, where all passages are
        compared (bm25, flat), and not only some of them (hnsw, ivf)."""


class HybridRanker(Ranker):
    name = "hybrid"

    def __init__(self, *rankers: Ranker):
        self._rankers = rankers

    def rank(self, queries: Sequence[str], topk: int) -> list[Ranking]:
        if topk < 1:
            return [[] for _ in queries]
        found = [ranker.rank(queries, max(topk, DEPTH)) for ranker in self._rankers]
        return [fuse(rankings, topk) for rankings in zip(*found, strict=True)]


def fuse(rankings: Sequence[Ranking], topk: int) -> Ranking:
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, (position, _) in enumerate(ranking, 1):
            scores[position] = scores.get(position, 0.0) + 1 / (DAMPING + rank)
    positions = sorted(scores)
    return best(np.array(positions), np.array([scores[position] for position in positions]), topk)


class IndexRetriever(Retriever):
    def __init__(self, passages: Passages, ranker: Ranker):
        self.passages, self.ranker, self.name = passages, ranker, ranker.name

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        rankings = self.ranker.rank(queries, min(topk, len(self.passages)))
        return [[Hit(self.passages[position], score) for position, score in ranking] for ranking in rankings]

    def __len__(self) -> int:
        return len(self.passages)


def best(positions: np.ndarray, scores: np.ndarray, topk: int) -> Ranking:
    """The `topk` highest scores; of equal ones the lower position, also at the cut. `positions` ascend."""
    if len(scores) > topk:
        bar = np.partition(scores, len(scores) - topk)[len(scores) - topk]
        above = np.flatnonzero(scores > bar)
        level = np.flatnonzero(scores == bar)[: topk - len(above)]
        kept = np.sort(np.concatenate([above, level]))
        positions, scores = positions[kept], scores[kept]
    order = np.argsort(-scores, kind="stable")
    return [(int(positions[at]), float(scores[at])) for at in order]
