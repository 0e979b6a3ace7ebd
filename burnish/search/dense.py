"""Dense retrieval: passages whose vectors are nearest to the query's.

`dense_step` embeds a corpus shard by shard, each kept in a file from which an interrupted build resumes, then indexes
the vectors. The encoder itself goes into the index first: queries must be embedded by the same weights. `DenseRanker`
searches the vectors. Any query finds passages, near or not; only a blank one finds none.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from transformers import AutoModel

from burnish.search import faiss_index
from burnish.search.encoder import Encoder, checked_device, load_pair, store
from burnish.search.files import new_file, put_in_place, sum_of, writing
from burnish.search.manifest import RECORDS, DensePlan, Journal
from burnish.search.passages import Passages
from burnish.search.ranker import Ranker, Ranking, best

VECTORS = "dense/vectors.faiss"
ENCODER = "dense/encoder"
Step = Callable[[Journal, Passages, Callable[[int], None]], None]  # reports the passages done

PART, ENCODER_PART = "dense", "encoder"
PER_PART = 4096  # passages that a kill may cost: on a CPU they take minutes
CHUNK = 256  # passages embedded between two reports of progress


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
    step = max(1, total // (faiss_index.SAMPLE * faiss_index.cells(total)))  # evenly over the corpus
    sample = np.concatenate([shard[::step] for shard in vectors]) if plan.faiss == "ivf" else np.empty((0, 0))
    index = faiss_index.make(plan.faiss, vectors[0].shape[1], total, sample)
    for shard in vectors:
        index.add(np.ascontiguousarray(shard))
    path = journal.folder / VECTORS
    unfinished = path.with_name(path.name + ".tmp")
    with writing(path, RuntimeError):  # FAISS's for a disk that is full
        faiss_index.save(index, unfinished)
        known = sum_of(unfinished)
        put_in_place(unfinished, path)
    journal.write(PART, {VECTORS: known}, {})
