"""`open_index(folder)`: the retriever over an index that `burnish retriever index` has built.

Every file is read once for its checksum before it is used. Which way to find is the index's own (hybrid where it has
both), or `mode`; `rerank` names a cross-encoder that puts the hits in order.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from burnish.config.nearest import nearest
from burnish.errors import ConfigError, DataError
from burnish.search.corpus import fingerprint
from burnish.search.documents import Retriever
from burnish.search.files import Checksum, is_whole
from burnish.search.manifest import MANIFEST, PLAN, Manifest, read_manifest
from burnish.search.passages import Passages, file_names
from burnish.search.ranker import HybridRanker, IndexRetriever, Ranker

MODES = ("bm25", "dense", "hybrid")
HAS = {"bm25": ("bm25",), "dense": ("dense",), "both": MODES}  # kind of an index → its modes; the last is its own
READERS = 2  # threads that check files


def open_index(
    folder: Path,
    *,
    mode: str | None = None,
    rerank: str | None = None,
    device: str = "cpu",
    corpus: Path | None = None,
) -> Retriever:
    """Open an index. With `corpus`, DataError where that is not the one it was built from."""
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
        from burnish.search.rerank import RerankedRetriever, Reranker

        retriever = RerankedRetriever(retriever, Reranker(Path(rerank).expanduser(), device))
    return retriever


def _finished(folder: Path) -> Manifest:
    if not folder.is_dir():
        raise DataError(
            f"{folder}: no such index folder; `burnish retriever index --corpus … --output {folder}` makes it"
        )
    if (folder / MANIFEST).exists():
        return read_manifest(folder)
    if (folder / PLAN).exists():
        raise DataError(f"{folder}: the index is not finished; the same `burnish retriever index` command resumes it")
    raise DataError(f"{folder}: no index in it (no {MANIFEST}); `burnish retriever index` makes one")


def check_mode(mode: str | None, kind: str, folder: Path) -> str:
    """The way to find; ConfigError where the index cannot."""
    if mode is None:
        return HAS[kind][-1]
    if mode not in MODES:
        near = nearest(mode, MODES)
        raise ConfigError(f"--mode {mode}: {f'did you mean {near}? ' if near else ''}There are {', '.join(MODES)}")
    if mode not in HAS[kind]:
        raise ConfigError(f"--mode {mode}: {folder} has {kind} alone; build one with --kind both --encoder FOLDER")
    return mode


def check_files(folder: Path, manifest: Manifest) -> None:
    """DataError where a file is missing, truncated or changed."""
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
