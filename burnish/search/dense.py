"""Dense retrieval: passages whose vectors are nearest to the query's. Consumes what `dense_build.py` has written.

Any query finds passages, near or not; only a blank one finds none.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from burnish.search import faiss_index
from burnish.search.encoder import Encoder
from burnish.search.manifest import DensePlan
from burnish.search.ranker import Ranker, Ranking, best

VECTORS = "dense/vectors.faiss"
ENCODER = "dense/encoder"


class DenseRanker(Ranker):
    """Finds passages that mean what the query means, as the encoder sees it."""

    name = "dense"

    def __init__(self, folder: Path, plan: DensePlan, total: int, device: str):
        self._index = faiss_index.load(folder / VECTORS, plan.faiss, total)
        self._encoder = Encoder(folder / ENCODER, plan, device)

    def rank(self, queries: Sequence[str], topk: int) -> list[Ranking]:
        asked = [at for at, query in enumerate(queries) if query.strip()]
        rankings: list[Ranking] = [[] for _ in queries]
        if not asked or topk < 1:
            return rankings
        vectors = self._encoder.queries([queries[at] for at in asked])
        for at, (positions, scores) in zip(asked, faiss_index.nearest(self._index, vectors, topk), strict=True):
            ascending = np.argsort(positions)
            rankings[at] = best(positions[ascending], scores[ascending], topk)
        return rankings
