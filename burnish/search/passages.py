"""The passages of an index: read from a corpus (JSON lines), packed on disk in shards, read back by position.

A corpus is known by the SHA-256 of its (unpacked) bytes. A shard is a file with the ids and contents end to end, and
one with where each begins. An interrupted `pack` resumes after the last whole shard of the same bytes.
"""

import codecs
import gzip
import hashlib
import json
import mmap
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, islice, pairwise
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import numpy as np

from burnish.errors import DataError
from burnish.search.documents import Document
from burnish.search.files import BLOCK, new_file
from burnish.search.manifest import Fingerprint, Journal

FOLDER = "passages"
SHARD_CHARACTERS = 32 << 20  # what a shard of usual passages has: building one takes some 20 bytes per character
LINE_LIMIT = 16 << 20  # bytes of a line: a passage is a few hundred
ID_LIMIT = 1000


class BadCorpus(DataError):
    """What is wrong with a corpus, such as a line that is no passage: no index of it can ever be finished."""


class CorpusPosition(NamedTuple):
    offset: int = 0
    line: int = 0


def fingerprint(path: Path, progress: Callable[[int], None] | None = None) -> Fingerprint:
    """Read the whole file for its checksum; `progress` gets the bytes read."""
    digest, size, lines, last = hashlib.sha256(), 0, 0, b"\n"
    with _opened(path) as file:
        while block := file.read(BLOCK):
            digest.update(block)
            size += len(block)
            lines += block.count(b"\n")
            last = block[-1:]
            if progress is not None:
                progress(size)
    return Fingerprint(path.name, size, lines + (last != b"\n"), digest.hexdigest())


def digests(path: Path, offsets: Sequence[int]) -> Iterator[Any]:
    """The SHA-256 object of all bytes before each of the offsets, which ascend."""
    digest, at = hashlib.sha256(), 0
    with _opened(path) as file:
        for offset in offsets:
            while block := file.read(max(0, min(BLOCK, offset - at))):
                digest.update(block)
                at += len(block)
            yield digest.copy()


def read_corpus(
    path: Path,
    start: CorpusPosition = CorpusPosition(),  # noqa: B008 - immutable
    digest: Any = None,
) -> Iterator[tuple[Document, CorpusPosition]]:
    """The documents behind `start`, each with the place behind it; `digest` is fed what is read, blank lines too."""
    offset, line = start
    with _opened(path) as file:
        file.seek(offset)
        while text := file.readline(LINE_LIMIT + 1):
            offset, line = offset + len(text), line + 1
            if digest is not None:
                digest.update(text)
            if line == 1:
                text = text.removeprefix(codecs.BOM_UTF8)
            if len(text) > LINE_LIMIT:
                raise BadCorpus(f"{path}, line {line}: longer than {LINE_LIMIT >> 20} MiB; split it into passages")
            if text.strip():
                yield parse_line(text, f"{path}, line {line}"), CorpusPosition(offset, line)


def parse_line(line: bytes, where: str) -> Document:
    try:
        row = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise BadCorpus(f"{where}: not UTF-8 (byte {error.start}); save the corpus as UTF-8") from None
    except (ValueError, RecursionError) as error:
        hint = 'a line is one object such as {"id": "0", "contents": "\\"Title\\"\\ntext"}'
        raise BadCorpus(f"{where}: not JSON ({error}); {hint}") from None
    if not isinstance(row, dict):
        raise BadCorpus(f"{where}: a JSON {type(row).__name__}, not an object with id and contents")
    for key in ("id", "contents"):
        if key not in row:
            raise BadCorpus(f"{where}: no {key!r} (it has {', '.join(map(repr, row)) or 'nothing'}); add it")
    identity, contents = row["id"], row["contents"]
    if isinstance(identity, int) and not isinstance(identity, bool):
        identity = str(identity)
    if not isinstance(identity, str) or not 0 < len(identity) <= ID_LIMIT:
        raise BadCorpus(f"{where}: id {str(identity)[:40]!r} must be text of 1 to {ID_LIMIT} characters, or an integer")
    if not isinstance(contents, str) or not contents.strip():
        raise BadCorpus(f"{where}: contents must be text with something in it; fix or remove the line")
    for key, text in (("id", identity), ("contents", contents)):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            bad = f"half a character (\\u{ord(text[error.start]):04x} at {error.start})"
            raise BadCorpus(f"{where}: {key} holds {bad}; write the whole surrogate pair or remove it") from None
    return Document(identity, contents)


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """The unpacked bytes; what goes wrong with the file itself is a DataError."""
    try:
        with gzip.open(path) if path.name.endswith(".gz") else open(path, "rb") as file:
            yield cast(IO[bytes], file)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: not a whole gzip file ({error}); copy or pack it again") from None
    except OSError as error:
        raise DataError(f"cannot read the corpus {path}: {error.strerror or error}") from None


def part_name(number: int) -> str:
    return f"passages-{number:05d}"


def file_names(number: int) -> tuple[str, str]:
    return f"{FOLDER}/{number:05d}.bin", f"{FOLDER}/{number:05d}.npy"


class Shard(NamedTuple):
    """What the record of a shard says: how far the corpus had been read, and the SHA-256 of it up to there."""

    offset: int
    line: int
    sha256: str


def pack(corpus: Path, sha256: str, journal: Journal, per_shard: int, progress: Callable[[int], None]) -> int:
    """Write all shards that are not there yet; how many there are. `progress` gets the lines read. BadCorpus where the
    bytes that were packed are not those of `sha256`: the file changed while it was read."""
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
        text, starts, row = self._place(position)
        return text[int(starts[2 * row]) : int(starts[2 * row + 1])]

    def shards(self) -> list[range]:
        return [range(begin, end) for begin, end in pairwise(self._firsts)]

    def _place(self, position: int) -> tuple[mmap.mmap, np.ndarray, int]:
        number = bisect_right(self._firsts, position) - 1
        return *self._shards[number], position - self._firsts[number]


Step = Callable[[Journal, Passages, Callable[[int], None]], None]  # of a build; reports the passages done


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
