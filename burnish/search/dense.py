"""Dense retrieval: passages whose vectors are nearest to the query's, by inner product (cosine: of length 1).

`dense_step` embeds a corpus shard by shard. The encoder goes into the index first: queries must be embedded by the same
weights. Any query finds passages, near or not; only a blank one finds none.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoModel

from burnish.errors import ConfigError, DataError, install_command
from burnish.search.encoder import Encoder, checked_device, load_pair, store
from burnish.search.files import new_file, put_in_place, sum_of, writing
from burnish.search.manifest import RECORDS, DensePlan, Faiss, Journal
from burnish.search.passages import Passages, Step
from burnish.search.ranker import Ranker, Ranking, best

try:
    import faiss
except ImportError as error:
    raise ConfigError(f"dense retrieval needs the package faiss-cpu; {install_command('dense')}") from error

VECTORS = "dense/vectors.faiss"
ENCODER = "dense/encoder"
PART, ENCODER_PART = "dense", "encoder"
PER_PART = 4096  # passages that a kill may cost: on a CPU they take minutes
CHUNK = 256  # passages embedded between two reports of progress


CLASSES = {"flat": faiss.IndexFlatIP, "hnsw": faiss.IndexHNSWFlat, "ivf": faiss.IndexIVFFlat}
LINKS = 32  # neighbours of a vector in the graph
EFFORT_BUILD, EFFORT_SEARCH = 200, 256  # candidates that are looked at
PER_CELL = 39  # training vectors that FAISS wants per cell, at the least
SAMPLE = 64  # training vectors per cell that are taken
PROBED = 16  # one cell of so many is looked into


class DenseRanker(Ranker):
    name = "dense"

    def __init__(self, folder: Path, plan: DensePlan, total: int, device: str):
        self._index = load(folder / VECTORS, plan.faiss, total)
        self._encoder = Encoder(folder / ENCODER, plan, device)

    def rank(self, queries: Sequence[str], topk: int) -> list[Ranking]:
        asked = [at for at, query in enumerate(queries) if query.strip()]
        rankings: list[Ranking] = [[] for _ in queries]
        if not asked or topk < 1:
            return rankings
        vectors = self._encoder.queries([queries[at] for at in asked])
        for at, (positions, scores) in zip(asked, nearest(self._index, vectors, topk), strict=True):
            ascending = np.argsort(positions)
            rankings[at] = best(positions[ascending], scores[ascending], topk)
        return rankings


def dense_step(plan: DensePlan, source: Path, device: str) -> Step:
    """A function that embeds what is not embedded, then indexes all. An encoder that does not load is an error here."""
    checked_device(device)
    load_pair(source, AutoModel)

    def build(journal: Journal, passages: Passages, progress: Callable[[int], None]) -> None:
        if journal.read(PART) is not None:
            return
        folder = journal.folder / ENCODER
        if journal.read(ENCODER_PART) is None:
            stored = store(source, folder)
            journal.write(ENCODER_PART, {f"{ENCODER}/{name}": each for name, each in stored.items()}, {})
        encoder, files = Encoder(folder, plan, device), []
        for number, begin in enumerate(range(0, len(passages), PER_PART)):
            positions = range(begin, min(begin + PER_PART, len(passages)))
            part = f"{PART}-{number:05d}"
            files.append(f"{RECORDS}/{part}.npy")
            if journal.read(part) is None:
                rows = []
                for at in range(0, len(positions), CHUNK):
                    chunk = positions[at : at + CHUNK]
                    rows.append(encoder.passages([passages[position].contents for position in chunk]))
                    progress(chunk.stop)
                with new_file(journal.folder / files[-1]) as file:
                    np.save(file, np.concatenate(rows), allow_pickle=False)
                journal.write(part, {files[-1]: file.sum()}, {})
            progress(positions.stop)
        _index(journal, files, len(passages), plan)

    return build


def _index(journal: Journal, files: list[str], total: int, plan: DensePlan) -> None:
    """All vectors, in the order of the passages, into one FAISS file. Needs the memory that searching it needs."""
    vectors = [np.load(journal.folder / file, mmap_mode="r", allow_pickle=False) for file in files]
    step = max(1, total // (SAMPLE * cells(total)))  # evenly over the corpus
    sample = np.concatenate([shard[::step] for shard in vectors]) if plan.faiss == "ivf" else np.empty((0, 0))
    index = make(plan.faiss, vectors[0].shape[1], total, sample)
    for shard in vectors:
        index.add(np.ascontiguousarray(shard))
    path = journal.folder / VECTORS
    unfinished = path.with_name(path.name + ".tmp")
    with writing(path, RuntimeError):  # FAISS's for a disk that is full
        faiss.write_index(index, str(unfinished))
        known = sum_of(unfinished)
        put_in_place(unfinished, path)
    journal.write(PART, {VECTORS: known}, {})


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
    return max(1, min(int(4 * total**0.5), total // PER_CELL))


def load(path: Path, kind: Faiss, total: int) -> Any:
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
