"""Building an index: `build_index(IndexOptions(corpus, folder))` makes the folder that `open_index` opens.

The corpus is packed shard by shard, then counted for BM25, then embedded. Each part is recorded when it is whole on
disk, so the same call goes on after a kill at any instant; the manifest comes last. A finished index is left as it is,
and another corpus or other options for the same folder are an error.
"""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from burnish.errors import ConfigError, DataError
from burnish.search.corpus import BadCorpus, fingerprint
from burnish.search.encoder_settings import EncoderOptions, plan_dense
from burnish.search.files import Sum
from burnish.search.journal import RECORDS, Journal
from burnish.search.manifest import (
    MANIFEST,
    PLAN,
    Kind,
    Manifest,
    Plan,
    read_manifest,
    read_plan,
    write_manifest,
    write_plan,
)
from burnish.search.open_index import check_files
from burnish.search.passages import FOLDER as PASSAGES
from burnish.search.passages import Passages, check_ids, pack, part_name

PER_SHARD = 50_000
LOCK = ".lock"

Progress = Callable[[str, int, int, str], None]  # what is done, how far, out of how much, of what
Step = Callable[[Journal, Passages, Callable[[int], None]], None]  # tells how many passages are done


@dataclass(frozen=True)
class IndexOptions:
    """What `burnish retriever index` is asked for."""

    corpus: Path
    output: Path
    kind: Kind = "bm25"
    encoder: EncoderOptions = field(default_factory=EncoderOptions)
    device: str = "cpu"
    per_shard: int = PER_SHARD  # passages that are held in memory at a time, at most


def _silent(what: str, done: int, total: int, unit: str) -> None:
    pass


def build_index(options: IndexOptions, progress: Progress = _silent) -> Manifest:
    """Build the index, or finish it; returns its manifest."""
    folder = options.output
    if folder.exists() and not folder.is_dir():
        raise DataError(f"--output {folder} is a file; choose a folder")
    size = _size(options.corpus)
    corpus = fingerprint(options.corpus, lambda done: progress("checking the corpus", done >> 20, size >> 20, "MiB"))
    plan = Plan(corpus, options.kind, options.per_shard, plan_dense(options.kind, options.encoder))
    with _locked(folder):
        if _take_up(folder, plan):
            manifest = read_manifest(folder)
            check_files(folder, manifest)
            return manifest
        try:
            manifest = _built(plan, options, progress)
        except BadCorpus:  # nothing of it is left: the same folder is good for the mended corpus
            shutil.rmtree(folder / PASSAGES, ignore_errors=True)
            _tidy(folder)
            raise
        write_manifest(folder, manifest)
        _tidy(folder)
    return manifest


def _built(plan: Plan, options: IndexOptions, progress: Progress) -> Manifest:
    steps = list(_steps(plan, options))
    journal = Journal(options.output)
    passages = _packed(plan, journal, options.corpus, progress)
    for what, step in steps:
        progress(what, 0, len(passages), "passages")
        step(journal, passages, partial(_tell, progress, what, len(passages)))
    return Manifest(plan, len(passages), _sums(journal, plan, passages))


def _tell(progress: Progress, what: str, total: int, done: int) -> None:
    progress(what, done, total, "passages")


def _packed(plan: Plan, journal: Journal, corpus: Path, progress: Progress) -> Passages:
    """The passages of the corpus, in the index."""
    known = plan.corpus
    shards = pack(
        corpus, known.sha256, journal, plan.per_shard, lambda done: progress("packing", done, known.lines, "lines")
    )
    passages = Passages(journal.folder, shards)
    check_ids(passages, corpus)
    return passages


def _steps(plan: Plan, options: IndexOptions) -> Iterator[tuple[str, Step]]:
    """What is made of the passages. A missing package, or an encoder that will not load, is told here: first."""
    if plan.kind != "dense":
        from burnish.search.bm25_build import build_bm25

        yield "counting words", partial(build_bm25, corpus=options.corpus)
    if plan.dense is not None:
        from burnish.search.dense_build import DenseBuild

        assert options.encoder.folder is not None
        yield "embedding", DenseBuild(plan.dense, options.encoder.folder, options.device)


def _take_up(folder: Path, plan: Plan) -> bool:
    """Begin an empty folder with the plan, or go on with one of this plan; whether it is finished already. DataError
    for a folder with anything else."""
    if (folder / MANIFEST).exists():
        known, finished = read_manifest(folder).plan, True
    elif (folder / PLAN).exists():
        known, finished = read_plan(folder), False
    else:
        foreign = sorted(path.name for path in folder.iterdir() if path.name not in (LOCK, f"{PLAN}.tmp"))
        if foreign:
            raise DataError(f"{folder} holds other things ({', '.join(foreign[:3])}); choose a new or empty folder")
        write_plan(folder, plan)
        return False
    if found := known.differences(plan):
        raise ConfigError(f"{folder} holds another index: {'; '.join(found)}. Choose another --output, or remove it")
    if finished:
        _tidy(folder)
    return finished


def _sums(journal: Journal, plan: Plan, passages: Passages) -> dict[str, Sum]:
    """The checksums of all files that stay."""
    parts = [part_name(number) for number in range(len(passages.shards()))]
    parts += ["bm25"] if plan.kind != "dense" else []
    parts += ["encoder", "dense"] if plan.dense else []
    return {name: Sum(**entry) for part in parts for name, entry in journal.files(part).items()}


def _tidy(folder: Path) -> None:
    """Remove what only the building needed; the plan last, since without it the rest would be in somebody's way."""
    shutil.rmtree(folder / RECORDS, ignore_errors=True)
    (folder / PLAN).unlink(missing_ok=True)


def _size(corpus: Path) -> int:
    try:
        return corpus.stat().st_size
    except OSError as error:
        raise DataError(f"cannot read the corpus {corpus}: {error.strerror or error}") from None


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One build per folder at a time. The lock goes with the process, however it ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR, 0o644)
    except OSError as error:
        raise DataError(f"--output {folder}: {error.strerror or error}; choose a folder that can be written") from None
    try:
        _take(handle, folder)
        yield
    finally:
        os.close(handle)


def _take(handle: int, folder: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        busy = f"{folder} is being built by another process; wait for it, or choose another --output"
        raise DataError(busy) from None
    except OSError as error:
        raise DataError(
            f"--output {folder}: it cannot be locked ({error.strerror or error}); build on a file system that has "
            "locks, such as a local disk: an index can be moved"
        ) from None
