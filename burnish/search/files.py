"""Files that are either whole or not there, and their checksums: `new_file` for our own, `writing` and `put_in_place`
for what other packages write.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from burnish.errors import DataError

BLOCK = 1 << 20
JSON_LIMIT = 64 << 20  # bytes of a manifest or a record; more is not one of ours


@dataclass(frozen=True)
class Checksum:
    bytes: int
    sha256: str


class ChecksummedFile:
    def __init__(self, file: BinaryIO):
        self._file, self._digest, self._bytes = file, hashlib.sha256(), 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._file.write(view)
        self._digest.update(view)
        self._bytes += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        return self._bytes

    def sum(self) -> Checksum:
        return Checksum(self._bytes, self._digest.hexdigest())


@contextmanager
def new_file(path: Path) -> Iterator[ChecksummedFile]:
    unfinished = path.with_name(path.name + ".tmp")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(unfinished, "wb") as file:
            yield ChecksummedFile(file)
        put_in_place(unfinished, path)


@contextmanager
def writing(path: Path, *others: type[Exception]) -> Iterator[None]:
    """DataError where `path` cannot be written; `others` are what a package raises then besides OSError."""
    errors: tuple[type[Exception], ...] = (OSError, *others)
    try:
        yield
    except errors as error:
        reason = getattr(error, "strerror", None) or str(error)[-200:]
        raise DataError(f"cannot write {path}: {reason}; free space or choose another folder") from None


def put_in_place(unfinished: Path, path: Path) -> None:
    """Give a file that has been written its name, once its bytes are on the disk."""
    sync(unfinished)
    unfinished.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Force a file to disk, or a folder's names: a rename survives a power cut only with its folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, content: dict[str, Any]) -> None:
    with new_file(path) as file:
        file.write(json.dumps(content, indent=1, ensure_ascii=False).encode() + b"\n")


def checked_json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > JSON_LIMIT:
            raise DataError(f"{path}: {path.stat().st_size} bytes are too many for this file; build the index again")
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON ({error}); build the index again") from None
    if not isinstance(content, dict):
        raise DataError(f"{path}: not a JSON object; build the index again")
    return content


def sum_of(path: Path) -> Checksum:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return Checksum(file.tell(), digest.hexdigest())


def is_whole(path: Path, expected: Checksum) -> bool:
    try:
        return path.stat().st_size == expected.bytes and sum_of(path) == expected
    except OSError:
        return False
