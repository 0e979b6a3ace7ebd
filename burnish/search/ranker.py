"""How an index finds: positions of passages with scores, before they are made into documents.

A `Ranker` is one way (BM25, dense, a fusion of both); `IndexRetriever` reads the passages that it finds.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from burnish.search.documents import Hit, Retriever
from burnish.search.passages import Passages

Ranking = list[tuple[int, float]]  # position and score, the best first


class Ranker(ABC):
    """One way to find passages."""

    name: str

    @abstractmethod
    def rank(self, queries: Sequence[str], topk: int) -> list[Ranking]:
        """At most `topk` passages per query, the best first; of equal ones the lower position, where all passages are
        compared (bm25, flat), and not only some of them (hnsw, ivf)."""


class IndexRetriever(Retriever):
    """The passages that a ranker finds."""

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
