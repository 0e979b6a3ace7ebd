"""BM25 over the words of title and text: the default. Consumes what `bm25_build.py` has written.

Terms are words of two letters or more in lower case, without English stop words, stemmed: the same for passages and
queries, through bm25s and PyStemmer.

The scores of every term in every passage that holds it are computed when the index is built (a sparse matrix, one
column per term), so a query adds up a few columns. They are mapped into memory, not read. A query without a known term
finds nothing.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from burnish.errors import ConfigError, DataError, install_command
from burnish.search.ranker import Ranker, Ranking, best

FOLDER = "bm25"
DATA, INDICES, INDPTR, TERMS = (
    f"{FOLDER}/{name}" for name in ("data.npy", "indices.npy", "indptr.npy", "terms.json")
)  # scores; positions of passages; where each term's column begins; the terms in order
FILES = (DATA, INDICES, INDPTR, TERMS)
# Lucene's, whose idf is never negative: a passage that holds a term of the query scores above 0.
K1, B = 1.2, 0.75


@contextmanager
def _without(package: str) -> Iterator[None]:
    """Imports inside find no such package, unless it is in use already."""
    if package in sys.modules:
        yield
        return
    sys.modules[package] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[package]


try:
    with _without("jax"):  # bm25s would start it, which takes most of a GPU's memory, for a function that is not used
        import bm25s
    import Stemmer
except ImportError as error:
    raise ConfigError(f"BM25 needs the package {error.name}; {install_command('search')}") from error

_stemmer = Stemmer.Stemmer("english")


class BM25Ranker(Ranker):
    """Finds passages that share words with the query."""

    name = "bm25"

    def __init__(self, folder: Path, total: int):
        try:
            names = json.loads((folder / TERMS).read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise DataError(f"cannot read {folder / TERMS} ({error}); build the index again") from None
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise DataError(f"{folder / TERMS}: not a list of terms; build the index again")
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
        rankings: list[Ranking] = []
        for query in queries:
            known = [self._number[term] for term in terms(query) if term in self._number]
            scores = self._bm25.get_scores_from_ids(known) if known and topk > 0 else np.empty(0)  # (passages,)
            positions = np.flatnonzero(scores > 0)
            rankings.append(best(positions, scores[positions], topk))
        return rankings


def count_terms(texts: Sequence[str]) -> tuple[list[list[int]], dict[str, int]]:
    """For each text the numbers of its terms, repeated as they are; and the number of each term."""
    found = bm25s.tokenize(list(texts), stopwords="en", stemmer=_stemmer, show_progress=False)
    return found.ids, found.vocab


def terms(text: str) -> list[str]:
    """The terms of one text, in order."""
    found: list[str] = bm25s.tokenize(text, stopwords="en", stemmer=_stemmer, return_ids=False, show_progress=False)[0]
    return found


def _array(folder: Path, name: str, dtype: Any) -> np.ndarray:
    try:
        array: np.ndarray = np.load(folder / name, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {folder / name} ({error}); build the index again") from None
    if array.dtype != dtype or array.ndim != 1:
        raise DataError(f"{folder / name}: {array.dtype} {array.shape}, not a row of {np.dtype(dtype)}; build again")
    return array
