"""What an index is: its plan, fixed before the first passage is read, and its manifest, written when all is complete.

While it is built, a `Journal` has one record per part; a part whose files do not match it is built again. An index may
come from a stranger: every value is checked, and nothing in it is a path that is followed.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from burnish.errors import DataError
from burnish.search.files import Checksum, checked_json, is_whole, write_json

FORMAT, VERSION = "burnish-index", 1
PLAN, MANIFEST = "plan.json", "manifest.json"
# No code and no pickle: what `encoder.store` writes is text, safetensors and the models of tokenizers.
ENCODER_FILE = r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.(json|txt|model|jinja|safetensors)"
FILE_NAME = re.compile(
    r"passages/[0-9]{5,}\.(bin|npy)|bm25/((data|indices|indptr)\.npy|terms\.json)|dense/vectors\.faiss|"
    rf"dense/encoder/{ENCODER_FILE}"
)

RECORDS = "parts"
BUILD_FILE_NAME = re.compile(rf"{FILE_NAME.pattern}|{RECORDS}/[a-z0-9.-]+")

Kind = Literal["bm25", "dense", "both"]
Pooling = Literal["mean", "cls", "last"]
Similarity = Literal["cosine", "dot"]
Faiss = Literal["flat", "hnsw", "ivf"]

T = TypeVar("T")


@dataclass(frozen=True)
class Fingerprint:
    """Which corpus it is. The name is only for messages."""

    name: str
    bytes: int
    lines: int
    sha256: str

    def described(self) -> str:
        return f"{self.name} ({self.lines} lines, {self.bytes} bytes, sha256 {self.sha256[:12]}…)"


@dataclass(frozen=True)
class DensePlan:
    encoder: str  # name of the folder it came from
    encoder_sha256: str
    pooling: Pooling
    query_prefix: str
    passage_prefix: str
    similarity: Similarity
    max_length: int
    faiss: Faiss


@dataclass(frozen=True)
class IndexPlan:
    corpus: Fingerprint
    kind: Kind
    per_shard: int
    dense: DensePlan | None

    def differences(self, other: "IndexPlan") -> list[str]:
        """What `other` wants otherwise, in words; the corpus's name does not count."""
        found = []
        if self.corpus.sha256 != other.corpus.sha256:
            found.append(f"the corpus was {self.corpus.described()} and is now {other.corpus.described()}")
        mine, theirs = (
            {"kind": plan.kind, "per_shard": plan.per_shard, **(asdict(plan.dense) if plan.dense else {})}
            for plan in (self, other)
        )
        for flat in (mine, theirs):
            flat.pop("encoder", None)  # known by its checksum
        for key in sorted(mine.keys() | theirs.keys()):
            if mine.get(key) != theirs.get(key):
                found.append(f"{key} was {mine.get(key, 'not set')!r} and is now {theirs.get(key, 'not set')!r}")
        return found


@dataclass(frozen=True)
class Manifest:
    plan: IndexPlan
    passages: int
    files: dict[str, Checksum]

    @property
    def shards(self) -> int:
        return sum(name.startswith("passages/") and name.endswith(".bin") for name in self.files)


def write_versioned(path: Path, **content: Any) -> None:
    write_json(path, {"format": FORMAT, "version": VERSION, **content})


def read_plan(folder: Path) -> IndexPlan:
    return _plan(_versioned(folder / PLAN), folder / PLAN)


def read_manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST
    content = _versioned(path)
    passages, files = content.get("passages"), content.get("files")
    if not isinstance(passages, int) or isinstance(passages, bool) or passages < 1 or not isinstance(files, dict):
        raise DataError(f"{path}: no manifest of an index; build the index again")
    sums = {}
    for name, entry in files.items():
        if not FILE_NAME.fullmatch(name):
            raise DataError(
                f"{path}: an index has no file {name[:80]!r}; this one was not built by burnish: do not use it"
            )
        sums[name] = _checked(Checksum, entry, f"{path}: files.{name}")
    return Manifest(_plan(content, path), passages, sums)


def _versioned(path: Path) -> dict[str, Any]:
    content = checked_json(path)
    if content.get("format") != FORMAT:
        raise DataError(f"{path}: not a file of `burnish retriever index`")
    if content.get("version") != VERSION:
        raise DataError(
            f"{path}: version {content.get('version')!r}, this burnish reads {VERSION}; build the index again"
        )
    return content


def _plan(content: Mapping[str, Any], path: Path) -> IndexPlan:
    raw = content.get("plan")
    if not isinstance(raw, dict):
        raise DataError(f"{path}: no plan in it; build the index again")
    dense = raw.get("dense")
    parts = {
        "corpus": _checked(Fingerprint, raw.get("corpus"), f"{path}: plan.corpus"),
        "dense": None if dense is None else _checked(DensePlan, dense, f"{path}: plan.dense"),
    }
    plan = _checked(IndexPlan, {**raw, **parts}, f"{path}: plan")
    if plan.per_shard < 1 or (plan.dense is None) != (plan.kind == "bm25"):
        raise DataError(f"{path}: the plan contradicts itself; build the index again")
    return plan


def _checked(kind: type[T], raw: Any, where: str) -> T:
    """A dataclass of a JSON object, with the types that its fields declare."""
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    if not isinstance(raw, dict) or set(raw) != set(names):
        raise DataError(f"{where}: needs exactly {', '.join(names)}; build the index again")
    for name, wanted in get_type_hints(kind).items():
        value = raw[name]
        allowed = value in get_args(wanted) if get_origin(wanted) is Literal else isinstance(value, wanted)
        if not allowed or isinstance(value, bool) or (isinstance(value, int) and value < 0):
            raise DataError(f"{where}.{name}: {str(value)[:80]!r} cannot be; build the index again")
    return kind(**raw)


class Journal:
    def __init__(self, folder: Path):
        self.folder = folder
        self._known: dict[str, dict[str, Any]] = {}

    def read(self, part: str) -> dict[str, Any] | None:
        """The facts of a part, or None where it has to be made."""
        if part in self._known:
            return self._known[part]
        path = self._path(part)
        if not path.exists():
            return None
        try:
            record = checked_json(path)
            sums = {name: Checksum(**entry) for name, entry in record["files"].items()}
            facts = record["facts"]
        except (DataError, KeyError, TypeError, AttributeError):
            return None
        if not isinstance(facts, dict) or not all(BUILD_FILE_NAME.fullmatch(name) for name in sums):
            return None
        if not all(is_whole(self.folder / name, expected) for name, expected in sums.items()):
            return None
        self._known[part] = facts
        return facts

    def write(self, part: str, files: Mapping[str, Checksum], facts: dict[str, Any]) -> None:
        entries = {name: asdict(each) for name, each in files.items()}
        write_json(self._path(part), {"files": entries, "facts": facts})
        self._known[part] = facts

    def files(self, part: str) -> dict[str, Any]:
        return dict(checked_json(self._path(part))["files"])

    def _path(self, part: str) -> Path:
        return self.folder / RECORDS / f"{part}.json"
