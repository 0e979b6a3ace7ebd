"""The vectors of a corpus: embedded shard by shard, each kept in a file that a killed build finds again, then indexed.

The encoder itself goes into the index first: queries must be embedded by the same weights.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from transformers import AutoModel

from burnish.search import faiss_index
from burnish.search.dense import ENCODER, VECTORS
from burnish.search.encoder import Encoder, checked_device, load_pair, store
from burnish.search.files import new_file, put_in_place, sum_of, writing
from burnish.search.journal import RECORDS, Journal
from burnish.search.manifest import DensePlan
from burnish.search.passages import Passages

PART, ENCODER_PART = "dense", "encoder"
PER_PART = 4096  # passages that a kill may cost: on a CPU they take minutes
CHUNK = 256  # passages that are embedded between two words of progress


class DenseBuild:
    """`DenseBuild(…)(journal, passages, progress)` embeds what is not embedded, then indexes all."""

    def __init__(self, plan: DensePlan, source: Path, device: str):
        self._plan, self._source, self._device = plan, source, device
        checked_device(device)
        load_pair(source, AutoModel)

    def __call__(self, journal: Journal, passages: Passages, progress: Callable[[int], None]) -> None:
        if journal.read(PART) is not None:
            return
        encoder = self._encoder(journal)
        shards = _ranges(len(passages), PER_PART)
        for number, positions in enumerate(shards):
            if journal.read(_part(number)) is None:
                _embed(journal, number, passages, positions, encoder, progress)
            progress(positions.stop)
        _index(journal, len(shards), len(passages), self._plan)

    def _encoder(self, journal: Journal) -> Encoder:
        """The encoder out of the index, put there first."""
        folder = journal.folder / ENCODER
        if journal.read(ENCODER_PART) is None:
            stored = store(self._source, folder)
            journal.write(ENCODER_PART, {f"{ENCODER}/{name}": each for name, each in stored.items()}, {})
        return Encoder(folder, self._plan, self._device)


def _ranges(total: int, size: int) -> list[range]:
    """All positions, `size` at a time."""
    return [range(begin, min(begin + size, total)) for begin in range(0, total, size)]


def _part(number: int) -> str:
    return f"{PART}-{number:05d}"


def _file(number: int) -> str:
    return f"{RECORDS}/{_part(number)}.npy"


def _embed(
    journal: Journal,
    number: int,
    passages: Passages,
    positions: range,
    encoder: Encoder,
    progress: Callable[[int], None],
) -> None:
    rows = []
    for at in range(0, len(positions), CHUNK):
        chunk = positions[at : at + CHUNK]
        rows.append(encoder.passages([passages[position].contents for position in chunk]))
        progress(chunk.stop)
    with new_file(journal.folder / _file(number)) as file:
        np.save(file, np.concatenate(rows), allow_pickle=False)
    journal.write(_part(number), {_file(number): file.sum()}, {})


def _index(journal: Journal, shards: int, total: int, plan: DensePlan) -> None:
    """All vectors, in the order of the passages, into one FAISS file. Needs the memory that searching it needs."""
    vectors = [np.load(journal.folder / _file(number), mmap_mode="r", allow_pickle=False) for number in range(shards)]
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
