"""`build_index(IndexOptions(corpus, folder))` makes the folder that `open_index(folder)` opens.

Each part is recorded when it is whole on disk, so the same call resumes after a kill at any instant; the manifest comes
last. Before an index is used, every file is read once for its checksum.
"""

import fcntl
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from burnish.config.nearest import nearest
from burnish.errors import ConfigError, DataError
from burnish.search.documents import Retriever
from burnish.search.encoder_settings import EncoderOptions, plan_dense
from burnish.search.files import Checksum, is_whole
from burnish.search.manifest import (
    MANIFEST,
    PLAN,
    RECORDS,
    IndexPlan,
    Journal,
    Kind,
    Manifest,
    read_manifest,
    read_plan,
    write_versioned,
)
from burnish.search.passages import FOLDER as PASSAGES
from burnish.search.passages import BadCorpus, Passages, Step, check_ids, file_names, fingerprint, pack, part_name
from burnish.search.ranker import HybridRanker, IndexRetriever, Ranker

PER_SHARD = 50_000
LOCK = ".lock"
MODES = ("bm25", "dense", "hybrid")
HAS = {"bm25": ("bm25",), "dense": ("dense",), "both": MODES}  # kind of an index → its modes; the last is its own
READERS = 2  # threads that check files

Progress = Callable[[str, int, int, str], None]  # what is done, how far, out of how much, of what


@dataclass(frozen=True)
class IndexOptions:
    corpus: Path
    output: Path
    kind: Kind = "bm25"
    encoder: EncoderOptions = field(default_factory=EncoderOptions)
    device: str = "cpu"
    per_shard: int = PER_SHARD  # passages that are held in memory at a time, at most


def build_index(options: IndexOptions, progress: Progress = lambda *report: None) -> Manifest:
    folder = options.output
    if folder.exists() and not folder.is_dir():
        raise DataError(f"--out {folder} is a file; choose a folder")
    try:
        size = options.corpus.stat().st_size
    except OSError as error:
        raise DataError(f"cannot read the corpus {options.corpus}: {error.strerror or error}") from None
    corpus = fingerprint(options.corpus, lambda done: progress("checking the corpus", done >> 20, size >> 20, "MiB"))
    plan = IndexPlan(corpus, options.kind, options.per_shard, plan_dense(options.kind, options.encoder))
    with _locked(folder):
        if _take_up(folder, plan):
            manifest = read_manifest(folder)
            check_files(folder, manifest)
            return manifest
        try:
            manifest = _build(plan, options, progress)
        except BadCorpus:  # nothing is left: the same folder can be used once the corpus is fixed
            shutil.rmtree(folder / PASSAGES, ignore_errors=True)
            _tidy(folder)
            raise
        write_versioned(folder / MANIFEST, **asdict(manifest))
        _tidy(folder)
    return manifest


def _build(plan: IndexPlan, options: IndexOptions, progress: Progress) -> Manifest:
    steps: list[tuple[str, Step]] = []  # first of all: a missing package, or an encoder that does not load, is an error
    if plan.kind != "dense":
        from burnish.search.bm25 import build_bm25

        steps.append(("counting words", partial(build_bm25, corpus=options.corpus)))
    if plan.dense is not None:
        from burnish.search.dense import dense_step

        assert options.encoder.folder is not None
        steps.append(("embedding", dense_step(plan.dense, options.encoder.folder, options.device)))
    journal, known = Journal(options.output), plan.corpus
    reads = partial(progress, "packing")
    shards = pack(options.corpus, known.sha256, journal, plan.per_shard, lambda done: reads(done, known.lines, "lines"))
    passages = Passages(journal.folder, shards)
    check_ids(passages, options.corpus)
    for what, step in steps:
        progress(what, 0, len(passages), "passages")
        step(journal, passages, lambda done, what=what: progress(what, done, len(passages), "passages"))  # type: ignore[misc]
    parts = [part_name(number) for number in range(shards)]
    parts += {"bm25": ["bm25"], "dense": ["encoder", "dense"], "both": ["bm25", "encoder", "dense"]}[plan.kind]
    files = {name: Checksum(**entry) for part in parts for name, entry in journal.files(part).items()}
    return Manifest(plan, len(passages), files)


def _take_up(folder: Path, plan: IndexPlan) -> bool:
    """Write the plan into an empty folder, or check that the folder has it (else DataError); whether it is finished."""
    if (folder / MANIFEST).exists():
        known, finished = read_manifest(folder).plan, True
    elif (folder / PLAN).exists():
        known, finished = read_plan(folder), False
    else:
        foreign = sorted(path.name for path in folder.iterdir() if path.name not in (LOCK, f"{PLAN}.tmp"))
        if foreign:
            raise DataError(f"{folder} holds other things ({', '.join(foreign[:3])}); choose a new or empty folder")
        write_versioned(folder / PLAN, plan=asdict(plan))
        return False
    if found := known.differences(plan):
        raise ConfigError(f"{folder} holds another index: {'; '.join(found)}. Choose another --out, or remove it")
    if finished:
        _tidy(folder)
    return finished


def _tidy(folder: Path) -> None:
    """Remove what only the build needed; the plan last, since without it the rest would be foreign files."""
    shutil.rmtree(folder / RECORDS, ignore_errors=True)
    (folder / PLAN).unlink(missing_ok=True)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One build per folder at a time. The lock goes with the process, however it ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("a")
    except OSError as error:
        raise DataError(f"--out {folder}: {error.strerror or error}; choose a folder that can be written") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            busy = "is being built by another process; wait for it, or choose another --out"
            raise DataError(f"{folder} {busy}") from None
        except OSError as error:
            fix = "build on a file system that has locks, such as a local disk: an index can be moved"
            raise DataError(f"--out {folder}: it cannot be locked ({error.strerror or error}); {fix}") from None
        yield


def open_index(
    folder: Path,
    *,
    mode: str | None = None,
    rerank: str | None = None,
    device: str = "cpu",
    corpus: Path | None = None,
) -> Retriever:
    """`mode` is the index's own where it is not given (hybrid where it has both); `rerank` names a cross-encoder. With
    `corpus`, DataError where that is not the one it was built from."""
    manifest = _finished(folder)
    mode = check_mode(mode, manifest.plan.kind, folder)
    if corpus is not None:
        known, given = manifest.plan.corpus, fingerprint(corpus)
        if known.sha256 != given.sha256:
            raise DataError(
                f"{folder} is the index of another corpus: {known.described()}, not "
                f"{corpus.parent / given.described()}; build an index of this corpus, or leave it out"
            )
    check_files(folder, manifest)
    passages = Passages(folder, manifest.shards)
    if len(passages) != manifest.passages:
        problem = f"{folder / MANIFEST}: {manifest.passages} passages, and the files hold {len(passages)}"
        raise DataError(f"{problem}; build the index again")
    retriever: Retriever = IndexRetriever(passages, _ranker(mode, folder, manifest, device))
    if rerank is not None:
        from burnish.search.encoder import RerankedRetriever, Reranker

        retriever = RerankedRetriever(retriever, Reranker(Path(rerank).expanduser(), device))
    return retriever


def _finished(folder: Path) -> Manifest:
    if not folder.is_dir():
        raise DataError(f"{folder}: no such index folder; `burnish retriever index … --out {folder}` makes it")
    if (folder / MANIFEST).exists():
        return read_manifest(folder)
    if (folder / PLAN).exists():
        raise DataError(f"{folder}: the index is not finished; the same `burnish retriever index` command resumes it")
    raise DataError(f"{folder}: no index in it (no {MANIFEST}); `burnish retriever index` makes one")


def check_mode(mode: str | None, kind: str, folder: Path) -> str:
    if mode is None:
        return HAS[kind][-1]
    if mode not in MODES:
        near = nearest(mode, MODES)
        raise ConfigError(f"--mode {mode}: {f'did you mean {near}? ' if near else ''}There are {', '.join(MODES)}")
    if mode not in HAS[kind]:
        raise ConfigError(f"--mode {mode}: {folder} has {kind} alone; build one with --kind both --encoder FOLDER")
    return mode


def check_files(folder: Path, manifest: Manifest) -> None:
    needed = [name for number in range(max(1, manifest.shards)) for name in file_names(number)]
    if manifest.plan.kind != "dense":
        needed += [f"bm25/{name}" for name in ("data.npy", "indices.npy", "indptr.npy", "terms.json")]
    if manifest.plan.dense:
        needed += ["dense/vectors.faiss", "dense/encoder/config.json"]
    for name in needed:
        if name not in manifest.files:
            raise DataError(f"{folder / MANIFEST} lacks {name}; build the index again")

    strangers = sorted(
        path.name for path in (folder / "dense/encoder").glob("*") if f"dense/encoder/{path.name}" not in manifest.files
    )
    if strangers:
        raise DataError(f"{folder / 'dense/encoder'} holds {strangers[0]}, which is not part of the index; remove it")

    def check(entry: tuple[str, Checksum]) -> None:
        name, expected = entry
        if not is_whole(folder / name, expected):
            there = (folder / name).stat().st_size if (folder / name).is_file() else None
            found = "is missing" if there is None else f"has {there} bytes instead of {expected.bytes}"
            found = "has been changed (its checksum differs)" if there == expected.bytes else found
            raise DataError(f"{folder / name} {found}; remove {folder} and build the index again")

    with ThreadPoolExecutor(READERS) as pool:
        list(pool.map(check, manifest.files.items()))


def _ranker(mode: str, folder: Path, manifest: Manifest, device: str) -> Ranker:
    if mode == "bm25":
        from burnish.search.bm25 import BM25Ranker

        return BM25Ranker(folder, manifest.passages)
    if mode == "dense":
        from burnish.search.dense import DenseRanker

        assert manifest.plan.dense is not None
        return DenseRanker(folder, manifest.plan.dense, manifest.passages, device)

    return HybridRanker(*(_ranker(part, folder, manifest, device) for part in ("bm25", "dense")))
