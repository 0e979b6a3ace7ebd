"""Encoders: pooling and padding, what a folder says of itself, folders that will not do; and reranking."""

import json
import resource
import shutil

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from burnish.errors import ConfigError, ModelError, NotAvailable
from burnish.search import encoder as encoders
from burnish.search.documents import Document, Hit, Retriever
from burnish.search.encoder import RERANK_DEPTH, Encoder, RerankedRetriever, Reranker, pool, store
from burnish.search.encoder_settings import BGE_QUERY, EncoderOptions, plan_dense
from tests.search.small import PASSAGES, write_encoder

TEXTS = [contents for _, contents in PASSAGES]


def planned(folder, **said):
    plan = plan_dense("dense", EncoderOptions(folder, **said))
    assert plan is not None
    return plan


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
@pytest.mark.parametrize("limit", [1, 40, 10_000])
def test_vectors_do_not_depend_on_what_else_is_in_the_batch(encoder, pooling, limit, monkeypatch):
    monkeypatch.setattr(encoders, "CPU_TOKENS", limit)
    tokenizer, model = AutoTokenizer.from_pretrained(encoder), AutoModel.from_pretrained(encoder).eval()
    rows = []
    for text in TEXTS:  # by the book: each text alone, so without padding
        with torch.inference_mode():
            hidden = model(**tokenizer(text, return_tensors="pt", truncation=True, max_length=64)).last_hidden_state[0]
        rows.append({"mean": hidden.mean(0), "cls": hidden[0], "last": hidden[-1]}[pooling])
    expected = torch.stack(rows).numpy()
    plain = Encoder(encoder, planned(encoder, pooling=pooling, similarity="dot")).passages(TEXTS)
    np.testing.assert_allclose(plain, expected, atol=1e-5)
    cosine = Encoder(encoder, planned(encoder, pooling=pooling)).passages(TEXTS)
    np.testing.assert_allclose(cosine, expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=1e-5)


def test_padding_on_either_side_does_not_count():
    hidden = torch.arange(10.0).view(1, 5, 2)
    for mask, mean, cls, last in [
        ([1, 1, 1, 0, 0], [2.0, 3.0], [0.0, 1.0], [4.0, 5.0]),
        ([0, 0, 1, 1, 1], [6.0, 7.0], [4.0, 5.0], [8.0, 9.0]),
    ]:
        for pooling, expected in (("mean", mean), ("cls", cls), ("last", last)):
            assert pool(hidden, torch.tensor([mask]), pooling)[0].tolist() == expected


def test_prefixes_go_before_queries_and_passages(encoder):
    prefixed = Encoder(encoder, planned(encoder, query_prefix="query: ", passage_prefix="passage: "))
    plain = Encoder(encoder, planned(encoder))
    np.testing.assert_allclose(prefixed.queries(["hamlet"]), plain.queries(["query: hamlet"]), atol=1e-6)
    np.testing.assert_allclose(prefixed.passages(["hamlet"]), plain.passages(["passage: hamlet"]), atol=1e-6)
    assert np.abs(prefixed.queries(["hamlet"]) - prefixed.passages(["hamlet"])).max() > 1e-3
    assert np.isfinite(plain.passages(["tragedy " * 500])).all(), "long texts are cut"


def test_a_stored_encoder_gives_the_same_vectors_or_is_refused(encoder, tmp_path, monkeypatch):
    sums = store(encoder, tmp_path / "kept")
    assert "config.json" in sums and "model.safetensors" in sums and "tokenizer.json" in sums
    given, kept = (Encoder(each, planned(encoder)).passages(TEXTS) for each in (encoder, tmp_path / "kept"))
    np.testing.assert_array_equal(given, kept)

    def save(self, target, original=encoders._save_tokenizer):
        original(self, target)
        (target / "modeling.py").write_text("")

    monkeypatch.setattr(encoders, "_save_tokenizer", save)
    with pytest.raises(NotAvailable, match="an encoder with a file such as modeling.py"):
        store(encoder, tmp_path / "kept")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("e5-base-v2", ("mean", "query: ", "passage: ", "cosine")),
        ("multilingual-e5-small", ("mean", "query: ", "passage: ", "cosine")),
        ("multilingual-e5-large-instruct", ("mean", "", "", "cosine")),
        ("bge-small-en-v1.5", ("cls", BGE_QUERY, "", "cosine")),
        ("bge-m3", ("cls", "", "", "cosine")),
        ("contriever", ("mean", "", "", "dot")),
        ("all-MiniLM-L6-v2", ("mean", "", "", "cosine")),
        ("some5-e55", ("mean", "", "", "cosine")),
    ],
)
def test_families_are_known_by_their_names(encoder, name, expected, tmp_path):
    plan = planned(shutil.copytree(encoder, tmp_path / name))
    assert (plan.pooling, plan.query_prefix, plan.passage_prefix, plan.similarity) == expected
    said = planned(tmp_path / name, pooling="last", query_prefix="", passage_prefix="p", similarity="dot")
    assert (said.pooling, said.query_prefix, said.passage_prefix, said.similarity) == ("last", "", "p", "dot")


def sentence_transformer(folder, target, *, modules=("Transformer", "Pooling"), pooling=None, path="1_Pooling"):
    shutil.copytree(folder, target)
    listed = [{"idx": at, "type": f"sentence_transformers.models.{name}", "path": path if name == "Pooling" else ""}
              for at, name in enumerate(modules)]  # fmt: skip
    (target / "modules.json").write_text(json.dumps(listed))
    (target / "1_Pooling").mkdir()
    (target / "1_Pooling/config.json").write_text(json.dumps(pooling or {"pooling_mode_cls_token": True}))
    return target


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_lasttoken": True}, "last"),
        ({"pooling_mode": "lasttoken"}, "last"),
    ],
)
def test_what_sentence_transformers_wrote_is_read(encoder, tmp_path, pooling, expected):
    modules = ("Transformer", "Pooling", "Normalize")
    target = sentence_transformer(encoder, tmp_path / "e5-like", modules=modules, pooling=pooling)
    (target / "sentence_bert_config.json").write_text('{"max_seq_length": 32}')
    prompts = {"prompts": {"query": "ask: ", "document": "doc: "}}
    (target / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    plan = planned(target)
    assert (plan.pooling, plan.max_length, plan.query_prefix, plan.passage_prefix) == (expected, 32, "ask: ", "doc: ")
    assert planned(target, max_length=16).max_length == 16


@pytest.mark.parametrize(
    ("stored", "expected"),
    [("cosine", "cosine"), ("dot", "dot"), ("dot_product", "dot"), (None, "dot")]  # None: the family's
    + [(unknown, None) for unknown in ("euclidean", "manhattan", ["dot"], 3)],
)
def test_the_similarity_that_sentence_transformers_wrote(encoder, tmp_path, stored, expected):
    target = sentence_transformer(encoder, tmp_path / "contriever")
    (target / "config_sentence_transformers.json").write_text(json.dumps({"similarity_fn_name": stored}))
    assert planned(target, similarity="cosine").similarity == "cosine"
    if expected:
        assert planned(target).similarity == expected
    else:
        with pytest.raises(NotAvailable, match=r"the similarity .*There are cosine and dot: choose one with --simil"):
            planned(target)


def test_more_tokens_than_the_encoder_has_positions(encoder, tmp_path):
    assert planned(encoder, max_length=64).max_length == 64
    with pytest.raises(ConfigError, match="--max-length 65: .*encoder reads 64 tokens at most"):
        planned(encoder, max_length=65)
    target = shutil.copytree(encoder, tmp_path / "roberta")
    config = json.loads((target / "config.json").read_text())
    change = {"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1}
    (target / "config.json").write_text(json.dumps(config | change))
    assert planned(target, max_length=512).max_length == 512
    with pytest.raises(ConfigError, match="reads 512 tokens at most"):
        planned(target, max_length=513)
    (target / "config.json").write_text(json.dumps({"model_type": "t5"}))
    assert planned(target, max_length=4096).max_length == 4096


def test_a_tokenizer_that_cannot_be_written_is_an_error_of_the_disk(encoder, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (900, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            encoders._save_tokenizer(tokenizer, tmp_path / "kept")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_folders_and_options_that_will_not_do(encoder, tmp_path):
    both = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}
    dense = sentence_transformer(encoder, tmp_path / "a", modules=("Transformer", "Pooling", "Dense"))
    two = sentence_transformer(encoder, tmp_path / "b", pooling=both)
    outside = sentence_transformer(encoder, tmp_path / "c", path="../elsewhere")
    for call, error, message in [
        (lambda: planned(dense), NotAvailable, "an encoder with the module Dense"),
        (lambda: planned(two), NotAvailable, "There are mean, cls and last: choose one with --pooling"),
        (lambda: planned(outside), ModelError, "leaves the folder"),
        (lambda: plan_dense("dense", EncoderOptions()), ConfigError, "--kind dense needs --encoder FOLDER"),
        (lambda: plan_dense("bm25", EncoderOptions(encoder)), ConfigError, "--encoder and its flags go with --kind de"),
        (lambda: planned(tmp_path), ModelError, "no config.json in it"),
        (lambda: Encoder(encoder, planned(encoder), "gpu9"), ConfigError, "--device gpu9: no such device"),
    ]:
        with pytest.raises(error, match=message):
            call()


def test_weights_that_are_not_there_are_not_made_up(encoder, tmp_path):
    from safetensors.torch import load_file, save_file

    target = shutil.copytree(encoder, tmp_path / "holes")
    weights = load_file(target / "model.safetensors")
    weights.pop("encoder.layer.1.output.dense.weight")
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match="its weights lack encoder.layer.1.output.dense.weight"):
        Encoder(target, planned(target))
    (target / "model.safetensors").write_bytes(b"rubbish")
    with pytest.raises(ModelError, match="cannot be loaded"):
        Encoder(target, planned(target))


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


def test_each_query_is_read_with_its_own_documents():
    base, model = Fixed({"goethe scholar": [0, 6, 2], "white whale": [4, 3], "none": []}), Sharing()
    reranked = RerankedRetriever(base, model)
    found = reranked.search(["goethe scholar", "none", "white whale"], 2)
    assert [[hit.document.id for hit in hits] for hits in found] == [["2", "6"], [], ["3", "4"]]
    assert model.pairs == [("goethe scholar", PASSAGES[at][1]) for at in (0, 6, 2)] + [
        ("white whale", PASSAGES[at][1]) for at in (4, 3)
    ]
    assert [hit.score for hit in found[2]] == sorted((hit.score for hit in found[2]), reverse=True)
    assert base.asked == [RERANK_DEPTH] and reranked.name == "fixed+rerank" and len(reranked) == len(PASSAGES)
    assert RerankedRetriever(base, model).search([], 3) == []
    equal = RerankedRetriever(Fixed({"xyzzy": [5, 1, 3]}), model).search(["xyzzy"], 3)
    assert [hit.document.id for hit in equal[0]] == ["5", "1", "3"], "equal ones stay in order"


@pytest.mark.parametrize("limit", [1, 10_000])
def test_scores_are_those_of_the_model_pair_by_pair(tmp_path, monkeypatch, limit):
    cross = write_encoder(tmp_path / "cross", labels=1)
    monkeypatch.setattr(encoders, "CPU_TOKENS", limit)
    pairs = [(query, text) for query in ("who wrote hamlet", "capital of denmark") for _, text in PASSAGES]
    tokenizer = AutoTokenizer.from_pretrained(cross)
    model = AutoModelForSequenceClassification.from_pretrained(cross).eval()
    with torch.inference_mode():
        expected = [model(**tokenizer(*pair, return_tensors="pt")).logits.item() for pair in pairs]
    assert Reranker(cross).scores(pairs) == pytest.approx(expected, abs=1e-5)
    assert len(set(expected)) > 5, "the model tells them apart"
    assert len(Reranker(cross).scores([("who " * 300, "tragedy " * 300), ("a", "b")])) == 2, "long pairs are cut"
    assert Reranker(cross).scores([]) == []


def test_models_that_do_not_rank_are_refused(tmp_path):
    with pytest.raises(ModelError, match="it has 3 labels; a cross-encoder for ranking has one"):
        Reranker(write_encoder(tmp_path / "three", labels=3))
    with pytest.raises(ModelError, match="its weights lack classifier"):
        Reranker(write_encoder(tmp_path / "encoder"))
    with pytest.raises(ModelError, match="no config.json in it"):
        Reranker(tmp_path)
