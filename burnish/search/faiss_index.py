"""FAISS: vectors to an index, and an index searched. The only file that knows the package.

| kind | finds | memory | notes |
|---|---|---|---|
| flat | exactly the nearest | 4 bytes × width per passage | compares with all |
| hnsw | nearly always the nearest | some 260 bytes more per passage | a graph; slow to build |
| ivf | mostly the nearest | as flat | looks into the nearest 1/16 of the cells |

All compare by inner product: of vectors of length 1 that is the cosine.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from burnish.errors import ConfigError, DataError, install_command
from burnish.search.manifest import Faiss

try:
    import faiss
except ImportError as error:
    raise ConfigError(f"dense retrieval needs the package faiss-cpu; {install_command('dense')}") from error

CLASSES = {"flat": faiss.IndexFlatIP, "hnsw": faiss.IndexHNSWFlat, "ivf": faiss.IndexIVFFlat}
LINKS = 32  # neighbours of a vector in the graph
EFFORT_BUILD, EFFORT_SEARCH = 200, 256  # candidates that are looked at
PER_CELL = 39  # training vectors that FAISS wants per cell, at the least
SAMPLE = 64  # training vectors per cell that are taken
PROBED = 16  # one cell of so many is looked into


def make(kind: Faiss, width: int, total: int, sample: np.ndarray) -> Any:
    """An empty index for `total` vectors; `sample` (n, width) are some of them, for the cells of ivf."""
    if kind == "flat":
        return faiss.IndexFlatIP(width)
    if kind == "hnsw":
        graph = faiss.IndexHNSWFlat(width, LINKS, faiss.METRIC_INNER_PRODUCT)
        graph.hnsw.efConstruction, graph.hnsw.efSearch = EFFORT_BUILD, EFFORT_SEARCH
        return graph
    count = cells(total)
    divided = faiss.IndexIVFFlat(faiss.IndexFlatIP(width), width, count, faiss.METRIC_INNER_PRODUCT)
    divided.cp.seed = 0
    divided.nprobe = max(1, -(-count // PROBED))
    divided.train(sample)
    return divided


def cells(total: int) -> int:
    """Cells of an ivf index: about four times the root of the vectors."""
    return max(1, min(int(4 * total**0.5), total // PER_CELL))


def save(index: Any, path: Path) -> None:
    faiss.write_index(index, str(path))


def load(path: Path, kind: Faiss, total: int) -> Any:
    """The index in a file; DataError where it is none, of another kind, or has another number of vectors."""
    try:
        index = faiss.read_index(str(path))
    except RuntimeError as error:
        raise DataError(f"{path}: not a FAISS index ({str(error)[:200]}); build the index again") from None
    if type(index) is not CLASSES[kind] or index.metric_type != faiss.METRIC_INNER_PRODUCT:
        found = f"{type(index).__name__} with metric {index.metric_type}"
        raise DataError(f"{path}: {found}, not {CLASSES[kind].__name__} with inner product; build the index again")
    if index.ntotal != total:
        raise DataError(f"{path}: {index.ntotal} vectors for {total} passages; build the index again")
    return index


def nearest(index: Any, queries: np.ndarray, topk: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Positions and scores for each query; fewer than `topk` where the index finds fewer."""
    if queries.shape[1] != index.d:
        raise DataError(f"the encoder makes vectors of {queries.shape[1]}, the index has {index.d}; build it again")
    scores, positions = index.search(queries, topk)
    for row_scores, row in zip(scores, positions, strict=True):
        found = (row >= 0) & (row < index.ntotal)
        yield row[found], row_scores[found]
