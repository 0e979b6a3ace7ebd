"""BM25 over the words of title and text: the default.

The scores of every term in every passage are computed when the index is built (a sparse matrix, one column per term)
and mapped into memory. The build needs memory that does not grow with the corpus (bm25s would hold all terms as Python
lists): it counts the terms of each shard into files, then merges the shards, a range of terms at a time.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from burnish.errors import ConfigError, DataError, install_command
from burnish.search.files import ChecksummedFile, new_file
from burnish.search.manifest import RECORDS, Journal
from burnish.search.passages import BadCorpus, Passages
from burnish.search.ranker import Ranker, Ranking, best

FOLDER = "bm25"
DATA, INDICES, INDPTR, TERMS = (
    f"{FOLDER}/{name}" for name in ("data.npy", "indices.npy", "indptr.npy", "terms.json")
)  # scores; positions of passages; where each term's column begins; the terms in order
PART = "bm25"
BLOCK = 1 << 23  # scores that are merged at a time: some 300 MB of memory
# Lucene's, whose idf is never negative: a passage that holds a term of the query scores above 0.
K1, B = 1.2, 0.75


# bm25s would start jax, which takes most of a GPU's memory, for a function that is not used.
_hidden = {} if "jax" in sys.modules else {"jax": None}
sys.modules.update(_hidden)  # type: ignore[arg-type]
try:
    import bm25s
    import Stemmer
except ImportError as error:
    raise ConfigError(f"BM25 needs the package {error.name}; {install_command('search')}") from error
finally:
    for name in _hidden:
        del sys.modules[name]

_stemmer = Stemmer.Stemmer("english")


class BM25Ranker(Ranker):
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


def terms(text: str) -> list[str]:
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


@dataclass(frozen=True)
class ShardTerms:
    """The counted terms of one shard; those of each term together, in the order of the terms' text."""

    terms: list[str]
    holders: np.ndarray  # (terms,) how many passages hold each term
    pairs: np.ndarray  # (2, sum of holders) row of the passage in the shard; how often the term is in it
    lengths: np.ndarray  # (passages,) terms of each passage


def build_bm25(journal: Journal, passages: Passages, progress: Callable[[int], None], corpus: Path) -> None:
    """Count what is not counted, then merge. `progress` gets the passages counted; `corpus` is for an error message."""
    if journal.read(PART) is not None:
        return
    shards = passages.shards()
    for number, positions in enumerate(shards):
        if journal.read(_part(number)) is None:
            _write_counts(journal, number, count([passages[position].contents for position in positions]))
        progress(positions.stop)
    _merge(journal, [range_.start for range_ in shards], len(passages), corpus)


def count(texts: list[str]) -> ShardTerms:
    found = bm25s.tokenize(texts, stopwords="en", stemmer=_stemmer, show_progress=False)
    ids, vocabulary = found.ids, found.vocab  # of each text the numbers of its terms; the number of each term
    names = sorted(vocabulary)
    place = np.empty(len(names), np.int64)  # number of a term in the order of the text, by the tokeniser's number
    place[[vocabulary[name] for name in names]] = np.arange(len(names))
    lengths = np.array([len(row) for row in ids], np.int32)
    flat = np.fromiter((number for row in ids for number in row), np.int64, int(lengths.sum()))
    rows = np.repeat(np.arange(len(texts)), lengths)
    keys, times = np.unique(place[flat] * len(texts) + rows, return_counts=True)
    numbers, rows = np.divmod(keys, len(texts))
    pairs = np.stack([rows, times]).astype(np.int32)
    return ShardTerms(names, np.bincount(numbers, minlength=len(names)), pairs, lengths)


def _part(number: int) -> str:
    return f"{PART}-{number:05d}"


def _write_counts(journal: Journal, number: int, counts: ShardTerms) -> None:
    prefix = f"{RECORDS}/{_part(number)}"
    sums = {}
    for name in ("holders", "pairs", "lengths"):
        with new_file(journal.folder / f"{prefix}.{name}.npy") as file:
            np.save(file, getattr(counts, name), allow_pickle=False)
        sums[f"{prefix}.{name}.npy"] = file.sum()
    with new_file(journal.folder / f"{prefix}.terms") as file:
        file.write(json.dumps(counts.terms, ensure_ascii=False).encode())
    sums[f"{prefix}.terms"] = file.sum()
    journal.write(_part(number), sums, {})


def _merge(journal: Journal, bases: list[int], total: int, corpus: Path) -> None:
    counts = []
    for shard in range(len(bases)):
        prefix = journal.folder / RECORDS / _part(shard)
        held, passage_lengths = (np.load(f"{prefix}.{name}.npy", allow_pickle=False) for name in ("holders", "lengths"))
        pairs = np.load(f"{prefix}.pairs.npy", mmap_mode="r" if held.sum() else None, allow_pickle=False)
        counts.append(ShardTerms(json.loads(Path(f"{prefix}.terms").read_bytes()), held, pairs, passage_lengths))
    names = sorted(set().union(*(each.terms for each in counts)))
    if not names:
        raise BadCorpus(
            f"{corpus}: no passage holds a word of two letters or more that is no stop word (the, of, and …), so BM25 "
            "has nothing to find; use --kind dense"
        )
    number_of = {name: number for number, name in enumerate(names)}
    numbers = [np.array([number_of[name] for name in each.terms], np.int64) for each in counts]
    del number_of
    holders = np.zeros(len(names), np.int64)
    for each, own in zip(counts, numbers, strict=True):
        holders[own] += each.holders
        each.terms.clear()
    lengths = np.concatenate([each.lengths for each in counts])
    weights = np.log1p((total - holders + 0.5) / (holders + 0.5))
    dampers = K1 * (1 - B + B * lengths / lengths.mean())
    indptr = np.concatenate([[0], np.cumsum(holders)])

    folder = journal.folder
    with new_file(folder / DATA) as data, new_file(folder / INDICES) as indices:
        _header(data, np.float32, int(indptr[-1]))
        _header(indices, np.int32, int(indptr[-1]))
        low = 0
        while low < len(names):  # a range of terms with about BLOCK scores, one term at least
            high = int(np.searchsorted(indptr, indptr[low] + BLOCK, side="right")) - 1
            high = min(max(high, low + 1), len(names))
            found, times = _columns(counts, numbers, bases, low, high, indptr)
            scores = np.repeat(weights[low:high], holders[low:high]) * times / (dampers[found] + times)
            data.write(scores.astype(np.float32))
            indices.write(found)
            low = high
    with new_file(folder / INDPTR) as pointers:
        np.save(pointers, indptr, allow_pickle=False)
    with new_file(folder / TERMS) as terms:
        terms.write(json.dumps(names, ensure_ascii=False).encode())
    sums = {DATA: data.sum(), INDICES: indices.sum(), INDPTR: pointers.sum(), TERMS: terms.sum()}
    journal.write(PART, sums, {})


def _header(file: ChecksummedFile, dtype: type, length: int) -> None:
    described = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": (length,)}
    np.lib.format.write_array_header_1_0(file, described)


def _columns(
    counts: list[ShardTerms], numbers: list[np.ndarray], bases: list[int], low: int, high: int, indptr: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Positions of passages and counts of the terms from `low` to `high`, term by term; within one, they ascend."""
    size = int(indptr[high] - indptr[low])
    found, times = np.empty(size, np.int32), np.empty(size, np.int32)
    heads = (indptr[low:high] - indptr[low]).copy()  # where the next passage of each term goes
    for each, own, base in zip(counts, numbers, bases, strict=True):
        first, last = np.searchsorted(own, [low, high])
        holders, terms = each.holders[first:last], own[first:last] - low
        begin = int(each.holders[:first].sum())
        pairs = np.array(each.pairs[:, begin : begin + int(holders.sum())])
        within = np.cumsum(holders) - holders
        target = np.repeat(heads[terms] - within, holders) + np.arange(pairs.shape[1])
        found[target] = pairs[0] + base
        times[target] = pairs[1]
        heads[terms] += holders
    return found, times
