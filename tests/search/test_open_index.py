"""Opening an index: what is damaged, unfinished, of another corpus or made to deceive is refused before it is used."""

import json
import shutil

import pytest

from burnish.errors import ConfigError, DataError
from burnish.search.encoder_settings import EncoderOptions
from burnish.search.files import sum_of
from burnish.search.index import IndexOptions, build_index, open_index
from tests.search.small import PASSAGES, write_corpus, write_encoder


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
    with pytest.raises(DataError) as told:
        open_index(made / "index", corpus=other)
    text = str(told.value)
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
    with pytest.raises(DataError, match="no such index folder; `burnish retriever index --corpus"):
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
