"""Corpus files and finished indexes: what is read back, and what is refused before it is used."""

import gzip
import json
import shutil

import pytest

from burnish.errors import ConfigError, DataError
from burnish.search.encoder_settings import EncoderOptions
from burnish.search.files import sum_of
from burnish.search.index import IndexOptions, build_index, open_index
from burnish.search.passages import CorpusPosition, fingerprint, read_corpus
from tests.search.small import PASSAGES, write_corpus, write_encoder


def test_documents_come_in_order_and_reading_resumes_anywhere_also_in_a_packed_corpus(tmp_path):
    path = write_corpus(tmp_path / "corpus.jsonl")
    everything = list(read_corpus(path))
    assert [(document.id, document.contents) for document, _ in everything] == PASSAGES
    assert [place.line for _, place in everything] == list(range(1, len(PASSAGES) + 1))
    for done, (_, place) in enumerate(everything, 1):
        assert list(read_corpus(path, place)) == everything[done:]
    plain, packed = write_corpus(tmp_path / "corpus.jsonl"), tmp_path / "corpus.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert list(read_corpus(packed)) == list(read_corpus(plain))
    third = list(read_corpus(plain))[2][1]
    assert list(read_corpus(packed, third)) == list(read_corpus(plain, third))
    known, other = fingerprint(plain), fingerprint(packed)
    assert (known.sha256, known.bytes, known.lines) == (other.sha256, other.bytes, other.lines)
    assert known.lines == len(PASSAGES) and known.bytes == plain.stat().st_size


def test_blank_lines_byte_order_marks_and_numbers_as_ids_are_fine(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"id": "0", "contents": "a"}\n{"id": "1", "contents": "\ufeffb"}\n', encoding="utf-8-sig")
    everything = list(read_corpus(path))
    assert [document.contents for document, _ in everything] == ["a", "\ufeffb"]
    assert list(read_corpus(path, everything[0][1])) == everything[1:]
    path.write_text("\n", encoding="utf-8-sig")
    assert list(read_corpus(path)) == []
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b'{"id": 7, "contents": "a"}\r\n\n  \n{"id": "8", "contents": "b"}')
    assert [(document.id, place.line) for document, place in read_corpus(path)] == [("7", 1), ("8", 4)]
    assert fingerprint(path).lines == 4


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"not json", "not JSON (Expecting value: line 1 column 1 (char 0)); a line is one object such as"),
        (b'{"id": "1", "contents": "a"} {}', "not JSON (Extra data"),
        (b"[" * 100_000, "not JSON (maximum recursion depth exceeded"),
        (b'["1", "a"]', "a JSON list, not an object with id and contents"),
        (b'{"id": "1", "text": "a"}', "no 'contents' (it has 'id', 'text'); add it"),
        (b'{"contents": "a"}', "no 'id' (it has 'contents')"),
        (b'{"id": "1", "contents": 3}', "contents must be text with something in it"),
        (b'{"id": "1", "contents": " \\n"}', "contents must be text with something in it"),
        (b'{"id": true, "contents": "a"}', "id 'True' must be text of 1 to 1000 characters"),
        (b'{"id": "", "contents": "a"}', "id '' must be text"),
        (b'{"id": "' + b"x" * 1001 + b'", "contents": "a"}', "must be text of 1 to 1000 characters"),
        (b'{"id": "1", "contents": "a \\ud83d b"}', "contents holds half a character (\\ud83d at 2)"),
        (b'{"id": "\\udc00", "contents": "a"}', "id holds half a character"),
        (b'{"id": "1", "contents": "\xff"}', "not UTF-8 (byte 25); save the corpus as UTF-8"),
    ],
)
def test_a_wrong_line_is_named_with_its_file_and_number(line, message, tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b'{"id": "0", "contents": "fine"}\n\n' + line + b"\n")
    with pytest.raises(DataError) as error:
        list(read_corpus(path))
    assert str(error.value).startswith(f"{path}, line 3: ") and message in str(error.value)


def test_files_that_cannot_be_read_and_lines_without_end_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("burnish.search.passages.LINE_LIMIT", 1 << 20)
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b'{"id": "0", "contents": "' + b"x" * (1 << 20))
    with pytest.raises(DataError, match="line 1: longer than 1 MiB; split it into passages"):
        list(read_corpus(path))
    with pytest.raises(DataError, match="cannot read the corpus .*missing.jsonl: No such file"):
        list(read_corpus(tmp_path / "missing.jsonl"))
    packed = tmp_path / "corpus.jsonl.gz"
    packed.write_bytes(gzip.compress(b'{"id": "0", "contents": "fine"}\n' * 1000)[:-20])
    with pytest.raises(DataError, match="corpus.jsonl.gz: not a whole gzip file"):
        list(read_corpus(packed, CorpusPosition()))
    packed.write_bytes(b"plain text")
    with pytest.raises(DataError, match="not a whole gzip file"):
        fingerprint(packed)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """An index with both parts, and its corpus. Read-only."""
    folder = tmp_path_factory.mktemp("made")
    corpus = write_corpus(folder / "corpus.jsonl")
    encoder = write_encoder(folder / "encoder")
    build_index(IndexOptions(corpus, folder / "index", "both", EncoderOptions(encoder), per_shard=3))
    return folder


@pytest.fixture
def index(made, tmp_path):
    return shutil.copytree(made / "index", tmp_path / "index")


def edit(index, change):
    path = index / "manifest.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_documents_come_back_as_they_were_and_another_corpus_is_refused(made, tmp_path):
    retriever = open_index(made / "index", mode="bm25", corpus=made / "corpus.jsonl")
    assert len(retriever) == len(PASSAGES) and retriever.name == "bm25"
    for query, (identity, contents) in [("hamlet", PASSAGES[0]), ("dom rhein", PASSAGES[5]), ("weimar", PASSAGES[6])]:
        hit = retriever.search([query], 1)[0][0]
        assert (hit.document.id, hit.document.contents) == (identity, contents) and hit.score > 0
    assert retriever.search([], 3) == []
    assert [len(hits) for hits in retriever.search(["xyzzy", "denmark", ""], 1000)] == [0, 2, 0]
    other = write_corpus(tmp_path / "other.jsonl", PASSAGES[:4])
    with pytest.raises(DataError) as error:
        open_index(made / "index", corpus=other)
    text = str(error.value)
    assert "is the index of another corpus: corpus.jsonl (7 lines" in text and f"not {other} (4 lines" in text


@pytest.mark.parametrize(
    ("mode", "name"), [(None, "hybrid"), ("bm25", "bm25"), ("dense", "dense"), ("hybrid", "hybrid")]
)
def test_each_way_to_find_answers_in_order(made, tmp_path, monkeypatch, mode, name):
    retriever = open_index(made / "index", mode=mode)
    assert retriever.name == name
    queries = [contents for _, contents in PASSAGES]
    found = retriever.search(queries, 2)
    assert [hits[0].document.id for hits in found] == [identity for identity, _ in PASSAGES]
    assert all(hits[0].score >= hits[-1].score for hits in found)
    if mode == "bm25":
        monkeypatch.setenv("HOME", str(tmp_path))
        write_encoder(tmp_path / "cross", labels=1)
        retriever = open_index(made / "index", mode=mode, rerank="~/cross")
        assert retriever.name == "bm25+rerank" and len(retriever) == len(PASSAGES)


def test_folders_without_an_index_and_unknown_modes(tmp_path, made):
    with pytest.raises(DataError, match="no such index folder; `burnish retriever index … --out"):
        open_index(tmp_path / "nowhere")
    with pytest.raises(DataError, match="no index in it"):
        open_index(tmp_path)
    with pytest.raises(ConfigError, match="--mode hybird: did you mean hybrid"):
        open_index(made / "index", mode="hybird")
    build_index(IndexOptions(made / "corpus.jsonl", tmp_path / "words"))
    assert open_index(tmp_path / "words").name == "bm25"
    with pytest.raises(ConfigError, match="--mode dense: .*words has bm25 alone; build one with --kind both"):
        open_index(tmp_path / "words", mode="dense")


@pytest.mark.parametrize("name", ["passages/00001.bin", "passages/00000.npy", "bm25/data.npy", "bm25/terms.json",
                                  "dense/vectors.faiss", "dense/encoder/model.safetensors"])  # fmt: skip
def test_damage_to_any_file_is_noticed(index, name):
    path = index / name
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(DataError, match=f"{name} has {len(whole) - 1} bytes instead of {len(whole)}"):
        open_index(index, mode="bm25")
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(DataError, match=f"{name} has been changed"):
        open_index(index, mode="bm25")
    path.unlink()
    with pytest.raises(DataError, match=f"{name} is missing"):
        open_index(index, mode="bm25")


@pytest.mark.parametrize(
    "name",
    ["../secret", "/etc/passwd", "passages/../../secret", "bm25/../manifest.json", "x", "", "bm25/more.npy"]
    + [f"dense/encoder/{name}" for name in ("modeling.py", "pytorch_model.bin", "../x.json", ".hidden.json")],
)
def test_no_file_outside_the_index_is_ever_opened(index, name):
    (index.parent / "secret").write_text("s")
    known = sum_of(index.parent / "secret")
    edit(index, lambda m: m["files"].update({name: {"bytes": known.bytes, "sha256": known.sha256}}))
    with pytest.raises(DataError, match="an index has no file .*was not built by burnish: do not use it"):
        open_index(index)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(format="other"), "not a file of `burnish retriever index`"),
        (lambda m: m.update(version=2), "version 2, this burnish reads 1; build the index again"),
        (lambda m: m.update(passages=-1), "no manifest of an index"),
        (lambda m: m.update(passages=True), "no manifest of an index"),
        (lambda m: m.update(passages=6), "manifest.json: 6 passages, and the files hold 7; build the index again"),
        (lambda m: m.update(passages=10**12), "1000000000000 passages, and the files hold 7"),
        (lambda m: m["files"].pop("passages/00001.bin"), "lacks passages/00001.bin"),
        (lambda m: [m["files"].pop(f"passages/0000{at}.bin") for at in range(3)], "lacks passages/00000.bin"),
        (lambda m: m.update(files=[]), "no manifest of an index"),
        (lambda m: m["files"].pop("bm25/data.npy"), "lacks bm25/data.npy"),
        (lambda m: m["files"]["bm25/data.npy"].update(bytes="9"), r"files.bm25/data.npy.bytes: '9' cannot be"),
        (lambda m: m["files"].update({"bm25/data.npy": 3}), "needs exactly bytes, sha256"),
        (lambda m: m.pop("plan"), "no plan in it"),
        (lambda m: m["plan"].update(kind="all"), "plan.kind: 'all' cannot be"),
        (lambda m: m["plan"].update(per_shard=0), "the plan contradicts itself"),
        (lambda m: m["plan"].update(dense=None), "the plan contradicts itself"),
        (lambda m: m["plan"].update(more=1), "plan: needs exactly corpus, kind, per_shard, dense"),
        (lambda m: m["plan"]["dense"].update(max_length=-3), "plan.dense.max_length: '-3' cannot be"),
        (lambda m: m["plan"]["dense"].update(pooling="eval"), "plan.dense.pooling: 'eval' cannot be"),
        (lambda m: m["plan"]["corpus"].update(name=None), "plan.corpus.name: 'None' cannot be"),
    ],
)
def test_a_manifest_that_cannot_be_is_refused(index, change, message):
    edit(index, change)
    with pytest.raises(DataError, match=message):
        open_index(index, mode="bm25")


def test_a_manifest_that_is_none_and_a_file_added_to_the_encoder(index):
    (index / "dense/encoder/modeling_evil.py").write_text("raise SystemExit")
    with pytest.raises(DataError, match="holds modeling_evil.py, which is not part of the index; remove it"):
        open_index(index)
    for text in ("", "[]", "{", "[" * 100_000, "\x00", '{"format": "burnish-index", "version": 1}'):
        (index / "manifest.json").write_text(text)
        with pytest.raises(DataError, match="manifest.json: "):
            open_index(index)
