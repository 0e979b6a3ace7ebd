"""Retrieval by words (the scores of bm25s, built in shards), by vectors, and by both; files that do not fit."""

import json
import os
import subprocess
import sys

import bm25s
import faiss
import numpy as np
import pytest
import Stemmer

from burnish.cli.main import main
from burnish.errors import DataError, install_command
from burnish.search import bm25, dense
from burnish.search.bm25 import K1, B, BM25Ranker, terms
from burnish.search.dense import DenseRanker
from burnish.search.encoder_settings import EncoderOptions
from burnish.search.index import IndexOptions, build_index
from burnish.search.manifest import read_manifest
from burnish.search.ranker import HybridRanker, Ranker, best, fuse
from tests.search.small import PASSAGES, write_corpus


def built(tmp_path, passages=PASSAGES, per_shard=3):
    corpus = write_corpus(tmp_path / "corpus.jsonl", passages)
    build_index(IndexOptions(corpus, tmp_path / "index", per_shard=per_shard))
    return BM25Ranker(tmp_path / "index", len(passages))


@pytest.mark.parametrize(("per_shard", "block"), [(7, 1), (64, 50), (1000, 1 << 23)])
def test_scores_are_those_of_bm25s_however_the_build_is_cut(tmp_path, monkeypatch, per_shard, block):
    monkeypatch.setattr(bm25, "BLOCK", block)
    rng = np.random.default_rng(0)
    words = [f"w{int(n)}" for n in rng.zipf(1.3, 40 * 150) % 500]
    passages = [(str(at), " ".join(words[40 * at : 40 * at + int(rng.integers(1, 40))])) for at in range(150)]
    ranker = built(tmp_path, passages, per_shard)
    plain = bm25s.BM25(k1=K1, b=B, method="lucene")
    stemmer = Stemmer.Stemmer("english")
    plain.index(
        bm25s.tokenize([text for _, text in passages], stemmer=stemmer, show_progress=False), show_progress=False
    )
    for query in ("w1 w2", "w3 w3 w77", "w1", "w499 w250 w10"):
        known = [term for term in terms(query) if term in plain.vocab_dict]
        expected = plain.get_scores(known)
        found = ranker.rank([query], len(passages))[0]
        assert len(found) == np.count_nonzero(expected)
        assert [score for _, score in found] == pytest.approx(np.sort(expected[expected > 0])[::-1].tolist(), rel=1e-5)
        for position, score in found:
            assert score == pytest.approx(expected[position], rel=1e-5)


def test_words_find_their_passages_in_any_form(tmp_path):
    ranker = built(tmp_path)
    first = lambda query: PASSAGES[ranker.rank([query], 1)[0][0][0]][0]  # noqa: E731
    assert first("who hunted WHALES?") == "d"
    assert first("tragedies about generals") == "b"
    assert first("hamlet") == "a", "the title counts"
    assert first("Köln") == "f" and first("科隆") == "f"
    unknown = ["", "   ", "the of and", "xyzzy", "?!", "é", "\x00", "a" * 100_000]
    assert ranker.rank(unknown, 5) == [[]] * len(unknown)
    found = ranker.rank(["denmark", "goethe devil"], 7)
    assert [sorted(position for position, _ in row) for row in found] == [[0, 4], [2, 6]], "only what shares a word"
    assert found[1][0][0] == 2 and ranker.rank(["denmark"], 0) == [[]]


def test_of_equal_passages_the_first_comes_first_also_at_the_cut(tmp_path):
    ranker = built(tmp_path, [(str(at), "same words here" if at % 2 else "other text") for at in range(40)])
    assert [position for position, _ in ranker.rank(["words"], 5)[0]] == [1, 3, 5, 7, 9]
    scores = np.array([1.0, 3.0, 1.0, 2.0, 1.0, 3.0])
    assert [at for at, _ in best(np.arange(10, 16), scores, 4)] == [11, 15, 13, 10]
    assert [at for at, _ in best(np.arange(10, 16), scores, 6)] == [11, 15, 13, 10, 12, 14]


def test_a_corpus_without_words_is_refused_and_leaves_nothing_behind(tmp_path):
    with pytest.raises(DataError, match="corpus.jsonl: no passage holds a word of two letters or more"):
        built(tmp_path, [("0", "? !"), ("1", "a b c"), ("2", "of the")])
    assert [path.name for path in (tmp_path / "index").rglob("*")] == [".lock"]
    mostly = built(tmp_path, [("0", "?"), ("1", "!"), ("2", "-"), ("3", "word")])  # a shard without words is fine
    assert [position for position, _ in mostly.rank(["words"], 3)[0]] == [3]


def test_files_that_do_not_fit_pickled_objects_and_odd_terms_are_refused(tmp_path):
    built(tmp_path)
    folder = tmp_path / "index" / "bm25"
    for file, content in [
        ("indptr.npy", np.array([0, 5], np.int64)),
        ("data.npy", np.zeros(3, np.float32)),
        ("indices.npy", np.zeros(3, np.int64)),
        ("data.npy", np.zeros((2, 2), np.float32)),
    ]:
        whole = (folder / file).read_bytes()
        np.save(folder / file, content)
        with pytest.raises(DataError, match="build"):
            BM25Ranker(tmp_path / "index", len(PASSAGES))
        (folder / file).write_bytes(whole)
    terms_before = (folder / "terms.json").read_text()
    for content in ("{}", "[1]", "nope", json.dumps(json.loads(terms_before)[1:])):
        (folder / "terms.json").write_text(content)
        with pytest.raises(DataError, match="build the index again"):
            BM25Ranker(tmp_path / "index", len(PASSAGES))
    (folder / "terms.json").write_text(terms_before)
    with pytest.raises(DataError, match="names passages beyond the 6 there are"):
        BM25Ranker(tmp_path / "index", len(PASSAGES) - 1)
    np.save(folder / "data.npy", np.array([print], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="cannot read .*data.npy"):
        BM25Ranker(tmp_path / "index", len(PASSAGES))


def test_without_its_packages_the_extra_is_named_and_jax_is_left_alone(tmp_path):
    # bm25s starts jax where it is installed, and it takes most of a GPU's memory.
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text("raise SystemExit('jax was started')\n")
    program = (
        "import burnish.search.bm25, sys; assert 'jax' not in sys.modules\n"
        "del sys.modules['burnish.search.bm25']; sys.modules['bm25s'] = None\nimport burnish.search.bm25\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.stderr.endswith(f"ConfigError: BM25 needs the package bm25s; {install_command('search')}\n")


class Fixed(Ranker):
    name = "fixed"

    def __init__(self, *positions):
        self.positions, self.asked = positions, []

    def rank(self, queries, topk):
        self.asked.append(topk)
        return [[(at, 100.0 - rank) for rank, at in enumerate(self.positions[:topk])] if q else [] for q in queries]


def test_fusion_adds_reciprocal_ranks_of_more_than_is_handed_out():
    rankings = [[(4, 9.0), (2, 1.0)], [(2, 0.3), (7, 0.2)]]
    assert dict(fuse(rankings, 10)) == pytest.approx({4: 1 / 61, 2: 1 / 62 + 1 / 61, 7: 1 / 62})
    assert [at for at, _ in fuse(rankings, 2)] == [2, 4]
    assert HybridRanker(Fixed(1, 2, 3), Fixed(4, 5, 3)).rank(["q"], 1)[0][0][0] == 3, "what both find comes first"
    found = HybridRanker(Fixed(), Fixed(8, 3)).rank(["q", ""], 5)
    assert [[at for at, _ in row] for row in found] == [[8, 3], []]
    assert [at for at, _ in HybridRanker(Fixed(8), Fixed(3)).rank(["q"], 1)[0]] == [3]
    first, second = Fixed(*range(500)), Fixed(*range(500, 0, -1))
    ranker = HybridRanker(first, second)
    assert len(ranker.rank(["q"], 3)[0]) == 3 and len(ranker.rank(["q"], 200)[0]) == 200
    assert first.asked == second.asked == [100, 200] and ranker.rank(["q"], 0) == [[]]


def built_dense(folder, encoder, passages=PASSAGES, **said):
    corpus = write_corpus(folder / "corpus.jsonl", passages)
    said = {"kind": "dense", "encoder": EncoderOptions(encoder, **said)}
    build_index(IndexOptions(corpus, folder / "index", per_shard=50, **said))
    manifest = read_manifest(folder / "index")
    assert manifest.plan.dense is not None
    return DenseRanker(folder / "index", manifest.plan.dense, manifest.passages, "cpu")


@pytest.mark.parametrize("kind", ["flat", "hnsw", "ivf"])
def test_a_passage_is_nearest_to_itself_in_every_kind_of_index(tmp_path, encoder, kind):
    words = sorted({word for _, text in PASSAGES for word in text.replace('"', " ").split()})
    rng = np.random.default_rng(0)
    passages = [(str(at), " ".join(rng.choice(words, 12))) for at in range(150)]
    ranker = built_dense(tmp_path, encoder, passages, faiss=kind)
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
    ranker, everything = built_dense(tmp_path, encoder, PASSAGES[:3], faiss=kind), [0, 1, 2]
    found = ranker.rank(["hamlet", "", " \n", "faust"], 10)
    assert [sorted(at for at, _ in row) for row in found] == [everything, [], [], everything]
    assert ranker.rank(["", " "], 3) == [[], []] and ranker.rank([], 3) == [] and ranker.rank(["a"], 0) == [[]]
    if kind == "flat":
        (tmp_path / "equal").mkdir()
        ranker = built_dense(tmp_path / "equal", encoder, [(str(at), PASSAGES[at % 2][1]) for at in range(6)])
        assert [position for position, _ in ranker.rank([PASSAGES[1][1]], 6)[0]] == [1, 3, 5, 0, 2, 4]


def test_files_that_do_not_fit(tmp_path, encoder):
    ranker = built_dense(tmp_path, encoder)
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
