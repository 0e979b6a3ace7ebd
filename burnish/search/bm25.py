"""BM25 over the words of title and text: the embedded default. Consumes what `bm25_build.py` has written.

The scores of every term in every passage that holds it are computed when the index is built (a sparse matrix, one
column per term), so a query adds up a few columns. They are mapped into memory, not read. A query without a known term
finds nothing.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from burnish.errors import DataError
from burnish.search.ranker import Ranker, Ranking, best
from burnish.search.tokens import bm25s, terms

FOLDER = "bm25"
DATA, INDICES, INDPTR, TERMS = (
    f"{FOLDER}/{name}" for name in ("data.npy", "indices.npy", "indptr.npy", "terms.json")
)  # scores; positions of passages; where each term's column begins; the terms in order
FILES = (DATA, INDICES, INDPTR, TERMS)
# Lucene's, whose idf is never negative: a passage that holds a term of the query scores above 0.
K1, B = 1.2, 0.75


class BM25Ranker(Ranker):
    """Finds passages that share words with the query."""

    name = "bm25"

    def __init__(self, folder: Path, total: int):
        names = _read_terms(folder / TERMS)
        self._number = {term: number for number, term in enumerate(names)}
        data, indices = _array(folder, DATA, np.float32), _array(folder, INDICES, np.int32)
        indptr = np.array(_array(folder, INDPTR, np.int64))
        columns = indptr.shape == (len(names) + 1,) and indptr[0] == 0 and not (np.diff(indptr) < 0).any()
        if not columns or not len(data) == len(indices) == indptr[-1]:
            raise DataError(f"{folder}: the files of {FOLDER} do not fit each other; build the index again")
        if len(indices) and (indices.min() < 0 or indices.max() >= total):
            raise DataError(f"{folder}: {INDICES} names passages beyond the {total} there are; build the index again")
        self._bm25 = bm25s.BM25(k1=K1, b=B, method="lucene", backend="numpy")
        self._bm25.scores = {"data": data, "indices": indices, "indptr": indptr, "num_docs": total}
        self._bm25.nonoccurrence_array = None

    def rank(self, queries: Sequence[str], topk: int) -> list[Ranking]:
        return [self._rank(query, topk) for query in queries]

    def _rank(self, query: str, topk: int) -> Ranking:
        known = [self._number[term] for term in terms(query) if term in self._number]
        if not known or topk < 1:
            return []
        scores = self._bm25.get_scores_from_ids(known)  # (passages,)
        positions = np.flatnonzero(scores > 0)
        return best(positions, scores[positions], topk)


def _read_terms(path: Path) -> list[str]:
    try:
        names = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"cannot read {path} ({error}); build the index again") from None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise DataError(f"{path}: not a list of terms; build the index again")
    return names


def _array(folder: Path, name: str, dtype: Any) -> np.ndarray:
    try:
        array: np.ndarray = np.load(folder / name, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {folder / name} ({error}); build the index again") from None
    if array.dtype != dtype or array.ndim != 1:
        raise DataError(f"{folder / name}: {array.dtype} {array.shape}, not a row of {np.dtype(dtype)}; build again")
    return array
