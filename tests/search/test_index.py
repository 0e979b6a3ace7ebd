"""Building an index: killed at any instant it resumes to the same files; what does not belong together is refused."""

import contextlib
import fcntl
import json
import os
import resource
import shutil
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from burnish.errors import ConfigError, DataError
from burnish.search import files
from burnish.search.encoder_settings import EncoderOptions
from burnish.search.index import LOCK, IndexOptions, build_index, open_index
from burnish.search.manifest import Journal, read_manifest
from tests.search.small import PASSAGES, write_corpus, write_encoder


class Killed(BaseException):
    """As good as kill -9: nothing of burnish catches it."""


def die(*_, **__):
    raise Killed


def die_at(function, options, monkeypatch):
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(function, die)
        build_index(options)


def raising(error):
    def fail(*_, **__):
        raise error

    return fail


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """What survives a power cut cannot be tested here, and waiting for the disk is most of the time."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def corpus(tmp_path):
    return write_corpus(tmp_path / "corpus.jsonl")


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != LOCK]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def assert_whole(folder: Path, corpus: Path, per_shard: int) -> None:
    """The index has the files of one that was built without an interruption."""
    build_index(IndexOptions(corpus, folder.with_name("whole"), per_shard=per_shard))
    assert contents(folder) == contents(folder.with_name("whole"))


def kill_at(monkeypatch, step: int) -> list[str]:
    """From now on the process dies at the `step`-th thing that it does to the disk: before it, or half-way in it."""
    done: list[str] = []

    def dying(name, original):
        def call(*words, **named):
            done.append(name)
            if len(done) == step:
                raise Killed
            return original(*words, **named)

        return call

    def write(self, data, original=files.ChecksummedFile.write):
        done.append("write")
        if len(done) == step:
            original(self, memoryview(data).cast("B")[: len(memoryview(data).cast("B")) // 2])
            raise Killed
        return original(self, data)

    monkeypatch.setattr(files.ChecksummedFile, "write", write)
    monkeypatch.setattr(files.os, "fsync", dying("fsync", os.fsync))
    for name in ("replace", "rename", "unlink"):
        monkeypatch.setattr(Path, name, dying(name, getattr(Path, name)))
    return done


def test_a_build_killed_before_any_write_ends_as_if_it_had_not_been(corpus, tmp_path, monkeypatch):
    build_index(IndexOptions(corpus, tmp_path / "whole", per_shard=4))
    whole = contents(tmp_path / "whole")
    for step in range(1, 400):
        folder = tmp_path / f"killed-{step}"
        with monkeypatch.context() as patched:
            done = kill_at(patched, step)
            with contextlib.suppress(Killed):
                build_index(IndexOptions(corpus, folder, per_shard=4))
        if len(done) < step:
            break
        build_index(IndexOptions(corpus, folder, per_shard=4))
        assert contents(folder) == whole, f"killed at step {step} ({done[-1]})"
    assert step > 40, "every file takes several steps"


def test_kills_one_after_the_other_and_a_dense_part(corpus, encoder, tmp_path, monkeypatch):
    def options(name):
        return IndexOptions(corpus, tmp_path / name, "both", EncoderOptions(encoder), per_shard=3)

    monkeypatch.setattr("burnish.search.dense.PER_PART", 3)
    build_index(options("whole"))
    for died in range(500):  # each dies a little later than the one before
        with monkeypatch.context() as patched, contextlib.suppress(Killed):
            kill_at(patched, 1 + died * 12)
            build_index(options("killed"))
            break
    assert 5 < died < 499
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    text = (tmp_path / "whole/manifest.json").read_text()
    assert set(json.loads(text)["files"]) == set(contents(tmp_path / "whole")) - {"manifest.json"}
    assert str(tmp_path) not in text, "no path of this machine is in it"


@pytest.mark.parametrize("died", ["passages-00002", "bm25-00001", "dense-00002"])
def test_what_is_packed_counted_and_embedded_is_not_done_again(corpus, encoder, tmp_path, monkeypatch, died):
    written: list[str] = []

    def write(self, part, *record, original=Journal.write):
        written.append(part)
        if part == died:
            raise Killed  # the files of this part are there, its record is not
        original(self, part, *record)

    monkeypatch.setattr("burnish.search.dense.PER_PART", 3)
    monkeypatch.setattr(Journal, "write", write)
    options = IndexOptions(corpus, tmp_path / "index", "both", EncoderOptions(encoder), per_shard=2)
    with pytest.raises(Killed):
        build_index(options)
    shards = [f"{kind}-{number:05}" for kind in ("passages", "bm25") for number in range(4)]
    everything = [*shards, "bm25", "encoder", *(f"dense-{number:05}" for number in range(3)), "dense"]
    begun = everything.index(died)
    assert written == everything[: begun + 1]
    with pytest.raises(DataError, match="the index is not finished; the same `burnish retriever index` command resum"):
        open_index(options.output)
    written.clear()
    died = ""
    build_index(options)
    assert written == everything[begun:] and not (options.output / "parts").exists()


def test_a_shard_ends_at_so_many_characters_too(tmp_path, monkeypatch):
    """Memory goes by what a shard holds, and passages may be long."""
    passages = [(str(at), f"word{at} " * (30 if at % 3 else 3)) for at in range(20)]
    corpus = write_corpus(tmp_path / "corpus.jsonl", passages)
    build_index(IndexOptions(corpus, tmp_path / "one"))
    monkeypatch.setattr("burnish.search.passages.SHARD_CHARACTERS", 400)
    reported: list[int] = []
    many = IndexOptions(corpus, tmp_path / "many", per_shard=4)
    manifest = build_index(many, lambda what, done, total, unit: reported.append(done) if unit == "lines" else None)
    sizes = [after - before for before, after in pairwise(reported)]
    assert min(sizes) >= 2 and max(sizes) <= 4 and manifest.shards == len(sizes) > 5, sizes
    one, many = open_index(tmp_path / "one"), open_index(tmp_path / "many")
    assert len(many) == 20
    queries = [f"word{at}" for at in range(20)]
    assert many.search(queries, 3) == one.search(queries, 3)
    assert [hits[0].document.contents for hits in many.search(queries, 1)] == [text for _, text in passages]


def test_a_part_that_was_damaged_meanwhile_is_made_again(corpus, tmp_path, monkeypatch):
    options = IndexOptions(corpus, tmp_path / "index", per_shard=2)
    die_at("burnish.search.bm25._merge", options, monkeypatch)
    (tmp_path / "index/passages/00001.bin").write_bytes(b"rubbish")
    (tmp_path / "index/parts/bm25-00000.pairs.npy").write_bytes(b"")
    (tmp_path / "index/parts/bm25-00002.json").write_text("{}")
    build_index(options)
    assert_whole(tmp_path / "index", corpus, 2)


def test_a_finished_index_is_not_built_again(corpus, tmp_path, monkeypatch):
    options = IndexOptions(corpus, tmp_path / "index")
    first = build_index(options)
    monkeypatch.setattr("burnish.search.index.pack", lambda *_: pytest.fail("it was built again"))
    assert build_index(options) == first == read_manifest(tmp_path / "index")
    (tmp_path / "index/bm25/data.npy").write_bytes(b"short")
    with pytest.raises(DataError, match=r"data.npy has 5 bytes instead of \d+; remove .*index and build the index ag"):
        build_index(options)


def test_another_corpus_or_other_options_are_named(corpus, encoder, tmp_path):
    folder = tmp_path / "index"
    build_index(IndexOptions(corpus, folder))
    other = write_corpus(tmp_path / "other.jsonl", PASSAGES[:3])
    with pytest.raises(ConfigError, match=r"the corpus was corpus.jsonl \(7 lines.* and is now other.jsonl \(3 lines"):
        build_index(IndexOptions(other, folder))
    with pytest.raises(ConfigError, match="kind was 'bm25' and is now 'both'.*pooling was 'not set' and is now 'mean'"):
        build_index(IndexOptions(corpus, folder, "both", EncoderOptions(encoder)))
    moved = corpus.rename(tmp_path / "moved.jsonl")
    assert build_index(IndexOptions(moved, folder)).passages == len(PASSAGES), "a moved corpus is the same"
    moved.rename(corpus)
    build_index(IndexOptions(corpus, tmp_path / "dense", "dense", EncoderOptions(encoder, query_prefix="q: ")))
    with pytest.raises(ConfigError, match="query_prefix was 'q: ' and is now ''. Choose another --out\\b"):
        build_index(IndexOptions(corpus, tmp_path / "dense", "dense", EncoderOptions(encoder)))
    copied = EncoderOptions(shutil.copytree(encoder, tmp_path / "copied"), query_prefix="q: ")
    assert build_index(IndexOptions(corpus, tmp_path / "dense", "dense", copied)).passages == len(PASSAGES)
    twin = write_encoder(tmp_path / "twin", seed=1)
    with pytest.raises(ConfigError, match="encoder_sha256 was"):
        build_index(IndexOptions(corpus, tmp_path / "dense", "dense", EncoderOptions(twin, query_prefix="q: ")))


@pytest.mark.parametrize(("blank", "first", "second"), [("", 3, 8), ("\n\n", 5, 10)])
def test_ids_that_are_there_twice_are_named_with_both_lines(blank, first, second, tmp_path):
    corpus = write_corpus(tmp_path / "corpus.jsonl", [*PASSAGES, ("c", "again")])
    corpus.write_text(blank + corpus.read_text())
    with pytest.raises(DataError) as error:
        build_index(IndexOptions(corpus, tmp_path / "index", per_shard=2))
    assert str(error.value) == f"{corpus}, line {second}: id 'c' is also that of line {first}; ids must differ"


def change_while_read(corpus: Path, monkeypatch, and_then=lambda: None) -> None:
    """The third shard and what follows is of another corpus, of the same length, with the same time."""
    from burnish.search import passages

    def chunk(documents, per_shard, *rest, original=passages.islice):
        read.append(per_shard)
        if len(read) == 3:
            before = corpus.stat()
            corpus.write_text(corpus.read_text().replace("Copenhagen", "Kopenhagen"))
            os.utime(corpus, ns=(before.st_atime_ns, before.st_mtime_ns))
        if len(read) == 4:
            and_then()
        return original(documents, per_shard, *rest)

    read: list[int] = []
    monkeypatch.setattr(passages, "islice", chunk)
    monkeypatch.setattr("burnish.search.passages._opened", partial(open, mode="rb", buffering=0))


@pytest.mark.parametrize("killed", [False, True])
def test_a_corpus_that_changes_while_it_is_read_never_gets_into_an_index(corpus, tmp_path, monkeypatch, killed):
    before = corpus.read_text()
    options = IndexOptions(corpus, tmp_path / "index", per_shard=2)
    with monkeypatch.context() as patched:
        change_while_read(corpus, patched, and_then=die if killed else lambda: None)
        with pytest.raises(Killed if killed else DataError) as error:
            build_index(options)
    assert killed or str(error.value).startswith(f"{corpus} changed while it was read; run the same command again")
    assert "Kopenhagen" in corpus.read_text()
    assert killed == (tmp_path / "index/plan.json").exists()
    corpus.write_text(before)
    build_index(options)
    assert_whole(tmp_path / "index", corpus, 2)
    assert open_index(tmp_path / "index", corpus=corpus).search(["copenhagen"], 1)[0][0].document.id == "e"


@pytest.mark.parametrize(
    ("facts", "name"),
    [({}, "passages/00000.bin"), ({"offset": "0", "line": 1, "sha256": ""}, "/etc/hostname"), (None, "../thesis.tex"),
     ([1], "passages/00000.bin"), (5, "passages/00000.bin"), (..., "/etc/hostname"), (..., "../thesis.tex")],
)  # fmt: skip
def test_records_are_not_believed_and_nothing_outside_is_removed(corpus, tmp_path, monkeypatch, facts, name):
    options, folder = IndexOptions(corpus, tmp_path / "index", per_shard=4), tmp_path / "index"
    (tmp_path / "thesis.tex").write_text("years of work")
    die_at("burnish.search.bm25._merge", options, monkeypatch)
    for part in ("passages-00000", "bm25-00001"):
        path = folder / f"parts/{part}.json"
        record = json.loads(path.read_text())
        if (folder / name).is_file():
            record["files"][name] = asdict(files.sum_of(folder / name))
        path.write_text(json.dumps({**record, "facts": record["facts"] if facts is ... else facts}))
    build_index(options)
    assert (tmp_path / "thesis.tex").exists()
    assert_whole(folder, corpus, 4)


def test_a_wrong_line_and_a_kill_while_tidying(corpus, tmp_path, monkeypatch):
    lines = corpus.read_text()
    corpus.write_text(lines + "rubbish\n")
    options = IndexOptions(corpus, tmp_path / "index", per_shard=2)
    die_at("pathlib.Path.unlink", options, monkeypatch)
    assert not (tmp_path / "index/parts").exists(), "the plan goes last: without it the folder is a stranger's"
    with pytest.raises(DataError, match="line 8: not JSON"):
        build_index(options)
    corpus.write_text(lines)
    assert build_index(options).passages == len(PASSAGES)


def test_corpora_and_folders_that_cannot_take_an_index(corpus, tmp_path, monkeypatch):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("")
    (tmp_path / "empty.jsonl").write_text("\n")
    for source, folder, message in [
        (corpus, corpus, "is a file; choose a folder"),
        (corpus, tmp_path / "home", r"holds other things \(thesis.tex\); choose a new or empty folder"),
        (tmp_path / "no.jsonl", tmp_path / "index", "cannot read the corpus .*no.jsonl: No such file"),
        (tmp_path / "empty.jsonl", tmp_path / "index", "empty.jsonl: no passages in it"),
    ]:
        with pytest.raises(DataError, match=message):
            build_index(IndexOptions(source, folder))
    (tmp_path / "busy").mkdir()
    with open(tmp_path / "busy" / LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="busy is being built by another process"):
            build_index(IndexOptions(corpus, tmp_path / "busy"))
    monkeypatch.setattr(fcntl, "flock", raising(OSError(38, "Function not implemented")))
    with pytest.raises(DataError, match=r"cannot be locked \(Function not implemented\); build on a file system that"):
        build_index(IndexOptions(corpus, tmp_path / "index"))


@pytest.mark.parametrize(("limit", "file"), [(20_000, "dense/encoder"), (1000, "dense/encoder"), (60_000, "vectors")])
def test_a_full_disk_in_the_dense_part(encoder, tmp_path, monkeypatch, limit, file):
    """The limit of a file's size is as good: every package meets a write that fails."""
    from burnish.search import dense

    passages = [(str(at), PASSAGES[at % 7][1]) for at in range(600)]
    options = IndexOptions(write_corpus(tmp_path / "corpus.jsonl", passages), tmp_path / "index", "dense",
                           EncoderOptions(encoder))  # fmt: skip
    function = "store" if file == "dense/encoder" else "_index"
    original = getattr(dense, function)

    def limited(*words):
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            return original(*words)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    with monkeypatch.context() as patched:
        patched.setattr(dense, function, limited)
        with pytest.raises(DataError, match=rf"cannot write .*{file}.*; free space or choose another folder"):
            build_index(options)
    assert build_index(options).passages == 600


def test_the_vectors_are_on_disk_before_they_are_recorded(corpus, encoder, tmp_path, monkeypatch):
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.readlink(f"/proc/self/fd/{handle}")))
    folder = tmp_path / "index"
    build_index(IndexOptions(corpus, folder, "dense", EncoderOptions(encoder)))
    for name, record in (("dense/vectors.faiss.tmp", "dense.json"), ("dense/encoder.tmp/config.json", "encoder.json")):
        file, recorded = synced.index(str(folder / name)), synced.index(str(folder / f"parts/{record}.tmp"))
        assert str(folder / "dense") in synced[file:recorded]


def test_a_full_disk_is_reported_and_progress_reaches_its_end_in_every_phase(corpus, tmp_path, monkeypatch):
    options = IndexOptions(corpus, tmp_path / "index", per_shard=3)
    with monkeypatch.context() as patched:
        patched.setattr("burnish.search.bm25.np.save", raising(OSError(28, "No space left on device")))
        with pytest.raises(DataError, match="cannot write .*: No space left on device; free space or choose another"):
            build_index(options)
    assert build_index(options).passages == len(PASSAGES), "it resumes"
    reported: list[tuple[str, int, int, str]] = []
    build_index(IndexOptions(corpus, tmp_path / "other", per_shard=3), lambda *report: reported.append(report))
    for what in ("packing", "counting words"):
        assert [(done, total) for name, done, total, _ in reported if name == what] == [(0, 7), (3, 7), (6, 7), (7, 7)]
