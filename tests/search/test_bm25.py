"""BM25: the scores of bm25s, from a matrix that is built in shards; files that do not fit; and rank fusion."""

import json
import os
import subprocess
import sys

import bm25s
import numpy as np
import pytest
import Stemmer

from burnish.errors import DataError, install_command
from burnish.search import bm25
from burnish.search.bm25 import K1, B, BM25Ranker, terms
from burnish.search.index import IndexOptions, build_index
from burnish.search.ranker import HybridRanker, Ranker, best, fuse
from tests.search.small import PASSAGES, write_corpus


def built(tmp_path, passages=PASSAGES, per_shard=3):
    corpus = write_corpus(tmp_path / "corpus.jsonl", passages)
    build_index(IndexOptions(corpus, tmp_path / "index", per_shard=per_shard))
    return BM25Ranker(tmp_path / "index", len(passages))


def generated(count):
    rng = np.random.default_rng(0)
    words = [f"w{int(n)}" for n in rng.zipf(1.3, 40 * count) % 500]
    return [(str(at), " ".join(words[40 * at : 40 * at + int(rng.integers(1, 40))])) for at in range(count)]


@pytest.mark.parametrize(("per_shard", "block"), [(7, 1), (64, 50), (1000, 1 << 23)])
def test_scores_are_those_of_bm25s_however_the_build_is_cut(tmp_path, monkeypatch, per_shard, block):
    monkeypatch.setattr(bm25, "BLOCK", block)
    passages = generated(150)
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
