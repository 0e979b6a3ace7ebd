"""The passages of an index: packed on disk in shards, read back by position.

`pack` streams a corpus into shards: a file with the ids and contents end to end, and one with where each begins. A
interrupted `pack` resumes after the last whole shard of the same bytes. `Passages` maps the files into memory and hands
out documents.
"""

import hashlib
import mmap
from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate, islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from burnish.errors import DataError
from burnish.search.corpus import BadCorpus, CorpusPosition, digests, read_corpus
from burnish.search.documents import Document
from burnish.search.files import new_file
from burnish.search.manifest import Journal

FOLDER = "passages"
SHARD_CHARACTERS = 32 << 20  # what a shard of usual passages has: building one takes some 20 bytes per character


def part_name(number: int) -> str:
    return f"passages-{number:05d}"


def file_names(number: int) -> tuple[str, str]:
    """The text of a shard and where its pieces begin."""
    return f"{FOLDER}/{number:05d}.bin", f"{FOLDER}/{number:05d}.npy"


class Shard(NamedTuple):
    """What the record of a shard says: how far the corpus had been read, and the SHA-256 of it up to there."""

    offset: int
    line: int
    sha256: str


def pack(corpus: Path, sha256: str, journal: Journal, per_shard: int, progress: Callable[[int], None]) -> int:
    """Write all shards that are not there yet; returns how many there are. `progress` gets the lines read.

    BadCorpus where the bytes that were packed are not those of `sha256`: the file changed while it was read.
    """
    number, place, digest = _packed_before(corpus, journal)
    progress(place.line)
    documents = read_corpus(corpus, place, digest)
    while True:
        chunk, characters = list[Document](), 0  # at most `per_shard`, and not many more than SHARD_CHARACTERS
        for document, after in islice(documents, per_shard):
            chunk.append(document)
            place = after
            characters += len(document.contents)
            if characters >= SHARD_CHARACTERS:
                break
        if not chunk:
            break
        shard = Shard(place.offset, place.line, digest.hexdigest())
        _write_shard(journal, number, chunk, shard)
        number += 1
        progress(place.line)
    if digest.hexdigest() != sha256:
        raise BadCorpus(f"{corpus} changed while it was read; run the same command again when it is whole")
    if number == 0:
        raise BadCorpus(f"{corpus}: no passages in it; a corpus has one JSON object per line")
    return number


def _packed_before(corpus: Path, journal: Journal) -> tuple[int, CorpusPosition, Any]:
    """Shards that are there and were packed from the bytes that the corpus has now; where they end, and the SHA-256
    object of all before. The file may have been another for a while, between two builds or in the middle of one."""
    known: list[Shard] = []
    while (facts := journal.read(part_name(len(known)))) is not None and set(facts) == set(Shard._fields):
        if not all(isinstance(facts[name], kind) for name, kind in Shard.__annotations__.items()):
            break
        known.append(Shard(**facts))
    place, digest = CorpusPosition(), hashlib.sha256()
    for number, (shard, read) in enumerate(zip(known, digests(corpus, [each.offset for each in known]), strict=True)):
        if read.hexdigest() != shard.sha256:
            return number, place, digest
        place, digest = CorpusPosition(shard.offset, shard.line), read
    return len(known), place, digest


def _write_shard(journal: Journal, number: int, documents: list[Document], shard: Shard) -> None:
    pieces = [piece.encode() for document in documents for piece in (document.id, document.contents)]
    starts = np.zeros(len(pieces) + 1, np.int64)
    np.cumsum([len(piece) for piece in pieces], out=starts[1:])
    text_name, starts_name = file_names(number)
    with new_file(journal.folder / text_name) as text:
        text.write(b"".join(pieces))
    with new_file(journal.folder / starts_name) as file:
        np.save(file, starts, allow_pickle=False)
    journal.write(part_name(number), {text_name: text.sum(), starts_name: file.sum()}, shard._asdict())


class Passages:
    """`passages[position]` is a document. The files are mapped, so memory does not grow with the corpus."""

    def __init__(self, folder: Path, shards: int):
        self._shards = [_open(folder, number) for number in range(shards)]
        counts = [len(starts) // 2 for _, starts in self._shards]
        self._firsts = [0, *accumulate(counts)]  # position of the first passage of each shard, and after the last

    def __len__(self) -> int:
        return self._firsts[-1]

    def __getitem__(self, position: int) -> Document:
        text, starts, row = self._place(position)
        begin, middle, end = (int(at) for at in starts[2 * row : 2 * row + 3])
        return Document(text[begin:middle].decode(), text[middle:end].decode())

    def identity(self, position: int) -> bytes:
        """The id of a passage, without its text."""
        text, starts, row = self._place(position)
        return text[int(starts[2 * row]) : int(starts[2 * row + 1])]

    def shards(self) -> list[range]:
        """The positions of each shard."""
        return [range(begin, end) for begin, end in pairwise(self._firsts)]

    def _place(self, position: int) -> tuple[mmap.mmap, np.ndarray, int]:
        number = bisect_right(self._firsts, position) - 1
        return *self._shards[number], position - self._firsts[number]


def _open(folder: Path, number: int) -> tuple[mmap.mmap, np.ndarray]:
    text_name, starts_name = file_names(number)
    try:
        starts = np.load(folder / starts_name, mmap_mode="r", allow_pickle=False)
        with open(folder / text_name, "rb") as file:
            text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise DataError(f"{folder}: the passages {text_name} cannot be read ({error}); build the index again") from None
    right = starts.dtype == np.int64 and starts.ndim == 1 and len(starts) > 2 and len(starts) % 2 == 1
    if not right or starts[0] != 0 or starts[-1] != len(text) or (np.diff(starts) < 0).any():
        raise DataError(f"{folder}: {starts_name} does not fit {text_name}; build the index again")
    return text, starts


def check_ids(passages: Passages, corpus: Path) -> None:
    """BadCorpus where two passages have the same id. Needs 16 bytes per passage, not the ids themselves."""
    keys = np.empty(len(passages), np.uint64)
    for position in range(len(passages)):
        digest = hashlib.blake2b(passages.identity(position), digest_size=8).digest()
        keys[position] = int.from_bytes(digest, "little")
    order = np.argsort(keys, kind="stable")
    for at in np.flatnonzero(keys[order[1:]] == keys[order[:-1]]):
        first, second = int(order[at]), int(order[at + 1])
        if passages.identity(first) == passages.identity(second):
            # Not the positions: blank lines are skipped.
            lines = [next(islice(read_corpus(corpus), position, None))[1].line for position in (first, second)]
            shared = passages[second].id
            raise BadCorpus(
                f"{corpus}, line {lines[1]}: id {shared!r} is also that of line {lines[0]}; ids must differ"
            )
