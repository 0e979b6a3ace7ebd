"""Building an index: `build_index(IndexOptions(corpus, folder))` makes the folder that `open_index` opens.

The corpus is packed shard by shard, then counted for BM25, then embedded. Each part is recorded when it is whole on
disk, so the same call resumes after a kill at any instant; the manifest comes last. A finished index is left as it is,
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
from burnish.search.files import Checksum
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
    write_manifest,
    write_plan,
)
from burnish.search.open_index import check_files
from burnish.search.passages import FOLDER as PASSAGES
from burnish.search.passages import Passages, check_ids, pack, part_name

PER_SHARD = 50_000
LOCK = ".lock"

Progress = Callable[[str, int, int, str], None]  # what is done, how far, out of how much, of what
Step = Callable[[Journal, Passages, Callable[[int], None]], None]  # reports the passages done


@dataclass(frozen=True)
class IndexOptions:
    """What `burnish retriever index` is asked for."""

    corpus: Path
    output: Path
    kind: Kind = "bm25"
    encoder: EncoderOptions = field(default_factory=EncoderOptions)
    device: str = "cpu"
    per_shard: int = PER_SHARD  # passages that are held in memory at a time, at most


def build_index(options: IndexOptions, progress: Progress = lambda *report: None) -> Manifest:
    """Build the index, or finish it; returns its manifest."""
    folder = options.output
    if folder.exists() and not folder.is_dir():
        raise DataError(f"--output {folder} is a file; choose a folder")
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
        write_manifest(folder, manifest)
        _tidy(folder)
    return manifest


def _build(plan: IndexPlan, options: IndexOptions, progress: Progress) -> Manifest:
    steps: list[tuple[str, Step]] = []  # first of all: a missing package, or an encoder that does not load, is an error
    if plan.kind != "dense":
        from burnish.search.bm25_build import build_bm25

        steps.append(("counting words", partial(build_bm25, corpus=options.corpus)))
    if plan.dense is not None:
        from burnish.search.dense import dense_step

        assert options.encoder.folder is not None
        steps.append(("embedding", dense_step(plan.dense, options.encoder.folder, options.device)))
    journal, known = Journal(options.output), plan.corpus
    shards = pack(
        options.corpus,
        known.sha256,
        journal,
        plan.per_shard,
        lambda done: progress("packing", done, known.lines, "lines"),
    )
    passages = Passages(journal.folder, shards)
    check_ids(passages, options.corpus)
    for what, step in steps:
        progress(what, 0, len(passages), "passages")
        step(journal, passages, lambda done, what=what: progress(what, done, len(passages), "passages"))  # type: ignore[misc]
    parts = [part_name(number) for number in range(shards)]
    parts += ["bm25"] if plan.kind != "dense" else []
    parts += ["encoder", "dense"] if plan.dense else []
    files = {name: Checksum(**entry) for part in parts for name, entry in journal.files(part).items()}
    return Manifest(plan, len(passages), files)


def _take_up(folder: Path, plan: IndexPlan) -> bool:
    """Write the plan into an empty folder, or check that the folder has this plan; whether it is finished already.
    DataError for a folder with anything else."""
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


def _tidy(folder: Path) -> None:
    """Remove what only the build needed; the plan last, since without it the rest would be foreign files."""
    shutil.rmtree(folder / RECORDS, ignore_errors=True)
    (folder / PLAN).unlink(missing_ok=True)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One build per folder at a time. The lock goes with the process, however it ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR, 0o644)
    except OSError as error:
        raise DataError(f"--output {folder}: {error.strerror or error}; choose a folder that can be written") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise DataError(
            f"{folder} is being built by another process; wait for it, or choose another --output"
        ) from None
    except OSError as error:
        os.close(handle)
        raise DataError(
            f"--output {folder}: it cannot be locked ({error.strerror or error}); build on a file system that has "
            "locks, such as a local disk: an index can be moved"
        ) from None
    try:
        yield
    finally:
        os.close(handle)
