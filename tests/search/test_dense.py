"""Dense retrieval: exact neighbours, what the approximate kinds find of them, and files that do not fit."""

import sys

import faiss
import numpy as np
import pytest

from burnish.cli.main import main
from burnish.errors import DataError, install_command
from burnish.search import dense
from burnish.search.dense import DenseRanker
from burnish.search.encoder_settings import EncoderOptions
from burnish.search.index import IndexOptions, build_index
from burnish.search.manifest import read_manifest
from tests.search.small import PASSAGES, write_corpus

WORDS = sorted({word for _, text in PASSAGES for word in text.replace('"', " ").split()})


def built(folder, encoder, passages=PASSAGES, **said):
    corpus = write_corpus(folder / "corpus.jsonl", passages)
    said = {"kind": "dense", "encoder": EncoderOptions(encoder, **said)}
    build_index(IndexOptions(corpus, folder / "index", per_shard=50, **said))
    manifest = read_manifest(folder / "index")
    assert manifest.plan.dense is not None
    return DenseRanker(folder / "index", manifest.plan.dense, manifest.passages, "cpu")


def many(count):
    rng = np.random.default_rng(0)
    return [(str(at), " ".join(rng.choice(WORDS, 12))) for at in range(count)]


@pytest.mark.parametrize("kind", ["flat", "hnsw", "ivf"])
def test_a_passage_is_nearest_to_itself_in_every_kind_of_index(tmp_path, encoder, kind):
    passages = many(150)
    ranker = built(tmp_path, encoder, passages, faiss=kind)
    found = ranker.rank([text for _, text in passages[:40]], 3)
    assert [row[0][0] for row in found] == list(range(40))
    assert all(row[0][1] == pytest.approx(1, abs=1e-5) and row[0][1] >= row[1][1] >= row[2][1] for row in found)
    if kind == "flat":  # finds what comparing with all finds
        queries = ["tragedy Denmark", "white whale"]
        scores = ranker._encoder.queries(queries) @ ranker._encoder.passages([text for _, text in passages]).T
        for row, ranking in zip(scores, ranker.rank(queries, 10), strict=True):
            assert [position for position, _ in ranking] == np.argsort(-row, kind="stable")[:10].tolist()
            assert [score for _, score in ranking] == pytest.approx(np.sort(row)[::-1][:10].tolist(), abs=1e-5)


@pytest.mark.parametrize("kind", ["flat", "hnsw", "ivf"])
def test_fewer_passages_than_asked_for_blank_queries_and_equal_passages(tmp_path, encoder, kind):
    ranker, everything = built(tmp_path, encoder, PASSAGES[:3], faiss=kind), [0, 1, 2]
    found = ranker.rank(["hamlet", "", " \n", "faust"], 10)
    assert [sorted(at for at, _ in row) for row in found] == [everything, [], [], everything]
    assert ranker.rank(["", " "], 3) == [[], []] and ranker.rank([], 3) == [] and ranker.rank(["a"], 0) == [[]]
    if kind == "flat":
        (tmp_path / "equal").mkdir()
        ranker = built(tmp_path / "equal", encoder, [(str(at), PASSAGES[at % 2][1]) for at in range(6)])
        assert [position for position, _ in ranker.rank([PASSAGES[1][1]], 6)[0]] == [1, 3, 5, 0, 2, 4]


def test_files_that_do_not_fit(tmp_path, encoder):
    ranker = built(tmp_path, encoder)
    path = tmp_path / "index/dense/vectors.faiss"
    with pytest.raises(DataError, match="7 vectors for 8 passages; build the index again"):
        dense.load(path, "flat", 8)
    with pytest.raises(DataError, match="IndexFlatIP with metric 0, not IndexHNSWFlat with inner product; build"):
        dense.load(path, "hnsw", 7)
    with pytest.raises(DataError, match="the encoder makes vectors of 3, the index has 32"):
        list(dense.nearest(ranker._index, np.zeros((1, 3), np.float32), 1))
    for other in (faiss.IndexFlatL2(32), faiss.IndexHNSWFlat(32, 4, faiss.METRIC_L2), faiss.IndexLSH(32, 8)):
        faiss.write_index(other, str(path))
        with pytest.raises(DataError, match=r"Index\w+ with metric \d, not Index\w+ with inner product"):
            dense.load(path, "hnsw" if isinstance(other, faiss.IndexHNSWFlat) else "flat", 0)
    path.write_bytes(b"rubbish")
    with pytest.raises(DataError, match="not a FAISS index"):
        dense.load(path, "flat", 7)


@pytest.mark.parametrize(("kind", "recall"), [("hnsw", 0.97), ("ivf", 0.3)])
def test_what_the_approximate_kinds_find_of_the_nearest(kind, recall, tmp_path):
    rng = np.random.default_rng(0)
    vectors, queries = (rng.standard_normal((count, 48)).astype(np.float32) for count in (3000, 100))
    exact = np.argsort(-queries @ vectors.T, axis=1)[:, :10]
    index = dense.make(kind, 48, len(vectors), vectors)
    index.add(vectors)
    faiss.write_index(index, str(tmp_path / "vectors.faiss"))
    found = dense.nearest(dense.load(tmp_path / "vectors.faiss", kind, 3000), queries, 10)
    shares = [len(set(row) & set(positions)) / 10 for row, (positions, _) in zip(exact, found, strict=True)]
    assert np.mean(shares) >= recall


def test_without_faiss_the_extra_is_named_before_any_work(tmp_path, encoder, monkeypatch, capsys):
    corpus = write_corpus(tmp_path / "corpus.jsonl")
    monkeypatch.setitem(sys.modules, "faiss", None)
    monkeypatch.delitem(sys.modules, "burnish.search.dense", raising=False)
    monkeypatch.delattr("burnish.search.dense", raising=False)
    flags = ["--corpus", str(corpus), "--output", str(tmp_path / "index"), "--encoder", str(encoder)]
    assert main(["retriever", "index", *flags]) == 2
    assert f"dense retrieval needs the package faiss-cpu; {install_command('dense')}" in capsys.readouterr().err
    assert not (tmp_path / "index/passages").exists()
