"""Reranking: each query against its own documents, in the order of a cross-encoder."""

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from burnish.errors import ModelError
from burnish.search import encoder
from burnish.search.documents import Document, Hit, Retriever
from burnish.search.rerank import DEPTH, RerankedRetriever, Reranker
from tests.search.small import PASSAGES, write_encoder


class Fixed(Retriever):
    name = "fixed"

    def __init__(self, found):
        self.found, self.asked = found, []

    def search(self, queries, topk):
        self.asked.append(topk)
        return [[Hit(Document(str(at), PASSAGES[at][1]), 9.0) for at in self.found[query]][:topk] for query in queries]

    def __len__(self):
        return len(PASSAGES)


class Sharing:
    """Scores a pair by the words that both hold, and remembers the pairs."""

    def scores(self, pairs):
        self.pairs = list(pairs)
        return [float(len(set(query.lower().split()) & set(text.lower().split()))) for query, text in pairs]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_encoder(tmp_path_factory.mktemp("models") / "cross", labels=1)


def test_each_query_is_read_with_its_own_documents():
    base, model = Fixed({"goethe scholar": [0, 6, 2], "white whale": [4, 3], "none": []}), Sharing()
    reranked = RerankedRetriever(base, model)
    found = reranked.search(["goethe scholar", "none", "white whale"], 2)
    assert [[hit.document.id for hit in hits] for hits in found] == [["2", "6"], [], ["3", "4"]]
    assert model.pairs == [("goethe scholar", PASSAGES[at][1]) for at in (0, 6, 2)] + [
        ("white whale", PASSAGES[at][1]) for at in (4, 3)
    ]
    assert [hit.score for hit in found[2]] == sorted((hit.score for hit in found[2]), reverse=True)
    assert base.asked == [DEPTH] and reranked.name == "fixed+rerank" and len(reranked) == len(PASSAGES)
    assert RerankedRetriever(base, model).search([], 3) == []


def test_equal_scores_keep_the_order_they_came_in():
    base = Fixed({"xyzzy": [5, 1, 3]})
    assert [hit.document.id for hit in RerankedRetriever(base, Sharing()).search(["xyzzy"], 3)[0]] == ["5", "1", "3"]


@pytest.mark.parametrize("limit", [1, 10_000])
def test_scores_are_those_of_the_model_pair_by_pair(folder, monkeypatch, limit):
    monkeypatch.setattr(encoder, "CPU_TOKENS", limit)
    pairs = [(query, text) for query in ("who wrote hamlet", "capital of denmark") for _, text in PASSAGES]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.inference_mode():
        expected = [model(**tokenizer(*pair, return_tensors="pt")).logits.item() for pair in pairs]
    assert Reranker(folder).scores(pairs) == pytest.approx(expected, abs=1e-5)
    assert len(set(expected)) > 5, "the model tells them apart"


def test_long_pairs_are_cut_and_none_are_none(folder):
    reranker = Reranker(folder)
    assert len(reranker.scores([("who " * 300, "tragedy " * 300), ("a", "b")])) == 2
    assert reranker.scores([]) == []


def test_models_that_do_not_rank_are_refused(tmp_path):
    with pytest.raises(ModelError, match="it has 3 labels; a cross-encoder for ranking has one"):
        Reranker(write_encoder(tmp_path / "three", labels=3))
    with pytest.raises(ModelError, match="its weights lack classifier"):
        Reranker(write_encoder(tmp_path / "encoder"))
    with pytest.raises(ModelError, match="no config.json in it"):
        Reranker(tmp_path)
