"""A corpus file, read as a stream: JSON lines, plain or gzipped, each `{"id": …, "contents": "\\"Title\\"\\ntext"}`.

Yields documents one by one, with the place behind each, so that reading can resume there. What is wrong with a line
is a BadCorpus with file and line. A corpus is known by the SHA-256 of its (unpacked) bytes; reading can feed it on.
"""

import codecs
import gzip
import hashlib
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from burnish.errors import DataError
from burnish.search.documents import Document
from burnish.search.files import BLOCK

LINE_LIMIT = 16 << 20  # bytes of a line: a passage is a few hundred
ID_LIMIT = 1000


class BadCorpus(DataError):
    """What is wrong with a corpus, such as a line that is no passage: no index of it can ever be finished."""


class CorpusPosition(NamedTuple):
    """How far a corpus has been read: unpacked bytes and lines."""

    offset: int = 0
    line: int = 0


@dataclass(frozen=True)
class Fingerprint:
    """Which corpus it is. The name is only for messages."""

    name: str
    bytes: int
    lines: int
    sha256: str

    def described(self) -> str:
        return f"{self.name} ({self.lines} lines, {self.bytes} bytes, sha256 {self.sha256[:12]}…)"


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
    """The documents behind `start`, each with the place behind it; `digest` is fed what is read. Blank lines are passed
    over."""
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
    """The document on a line; `where` names it in an error."""
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
