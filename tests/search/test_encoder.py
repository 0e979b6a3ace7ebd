"""Encoders: pooling and padding, what a folder says of itself, and folders that will not do."""

import json
import resource
import shutil

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from burnish.errors import ConfigError, ModelError, NotAvailable
from burnish.search import encoder as encoders
from burnish.search.encoder import Encoder, batches, pool, store
from burnish.search.encoder_settings import BGE_QUERY, EncoderOptions, plan_dense
from tests.search.small import PASSAGES

TEXTS = [contents for _, contents in PASSAGES]


@pytest.fixture
def folder(encoder):
    return encoder


def planned(folder, **said):
    plan = plan_dense("dense", EncoderOptions(folder, **said))
    assert plan is not None
    return plan


def one_by_one(folder, texts, pooling):
    """The vectors by the book: each text alone, so without padding."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    rows = []
    for text in texts:
        with torch.inference_mode():
            hidden = model(**tokenizer(text, return_tensors="pt", truncation=True, max_length=64)).last_hidden_state[0]
        rows.append({"mean": hidden.mean(0), "cls": hidden[0], "last": hidden[-1]}[pooling])
    return torch.stack(rows).numpy()


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
@pytest.mark.parametrize("limit", [1, 40, 10_000])
def test_vectors_do_not_depend_on_what_else_is_in_the_batch(folder, pooling, limit, monkeypatch):
    monkeypatch.setattr(encoders, "CPU_TOKENS", limit)
    expected = one_by_one(folder, TEXTS, pooling)
    plain = Encoder(folder, planned(folder, pooling=pooling, similarity="dot")).passages(TEXTS)
    np.testing.assert_allclose(plain, expected, atol=1e-5)
    cosine = Encoder(folder, planned(folder, pooling=pooling)).passages(TEXTS)
    np.testing.assert_allclose(cosine, expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=1e-5)


def test_padding_on_either_side_does_not_count():
    hidden = torch.arange(10.0).view(1, 5, 2)
    for mask, mean, cls, last in [
        ([1, 1, 1, 0, 0], [2.0, 3.0], [0.0, 1.0], [4.0, 5.0]),
        ([0, 0, 1, 1, 1], [6.0, 7.0], [4.0, 5.0], [8.0, 9.0]),
    ]:
        for pooling, expected in (("mean", mean), ("cls", cls), ("last", last)):
            assert pool(hidden, torch.tensor([mask]), pooling)[0].tolist() == expected


def test_prefixes_go_before_queries_and_passages(folder):
    prefixed = Encoder(folder, planned(folder, query_prefix="query: ", passage_prefix="passage: "))
    plain = Encoder(folder, planned(folder))
    np.testing.assert_allclose(prefixed.queries(["hamlet"]), plain.queries(["query: hamlet"]), atol=1e-6)
    np.testing.assert_allclose(prefixed.passages(["hamlet"]), plain.passages(["passage: hamlet"]), atol=1e-6)
    assert np.abs(prefixed.queries(["hamlet"]) - prefixed.passages(["hamlet"])).max() > 1e-3


def test_long_texts_are_cut(folder):
    assert np.isfinite(Encoder(folder, planned(folder)).passages(["tragedy " * 500])).all()


def test_batches_hold_every_text_once_and_little_padding(monkeypatch):
    monkeypatch.setattr(encoders, "CPU_TOKENS", 20)
    lengths = [3, 9, 1, 30, 10, 2, 0]
    found = batches(lengths, torch.device("cpu"))
    assert sorted(at for batch in found for at in batch) == list(range(7))
    assert found == [[3], [4, 1], [0, 5, 2, 6]]


def test_a_stored_encoder_gives_the_same_vectors(folder, tmp_path):
    sums = store(folder, tmp_path / "kept")
    assert "config.json" in sums and "model.safetensors" in sums and "tokenizer.json" in sums
    given, kept = (Encoder(each, planned(folder)).passages(TEXTS) for each in (folder, tmp_path / "kept"))
    np.testing.assert_array_equal(given, kept)


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
def test_families_are_known_by_their_names(folder, name, expected, tmp_path):
    plan = planned(shutil.copytree(folder, tmp_path / name))
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
def test_what_sentence_transformers_wrote_is_read(folder, tmp_path, pooling, expected):
    modules = ("Transformer", "Pooling", "Normalize")
    target = sentence_transformer(folder, tmp_path / "e5-like", modules=modules, pooling=pooling)
    (target / "sentence_bert_config.json").write_text('{"max_seq_length": 32}')
    prompts = {"prompts": {"query": "ask: ", "document": "doc: "}}
    (target / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    plan = planned(target)
    assert (plan.pooling, plan.max_length, plan.query_prefix, plan.passage_prefix) == (expected, 32, "ask: ", "doc: ")
    assert planned(target, max_length=16).max_length == 16


@pytest.mark.parametrize(
    ("stored", "expected"),
    [("cosine", "cosine"), ("dot", "dot"), ("dot_product", "dot"), (None, "dot")],  # None: the family's
)
def test_the_similarity_that_sentence_transformers_wrote(folder, tmp_path, stored, expected):
    target = sentence_transformer(folder, tmp_path / "contriever")
    (target / "config_sentence_transformers.json").write_text(json.dumps({"similarity_fn_name": stored}))
    assert planned(target).similarity == expected
    assert planned(target, similarity="cosine").similarity == "cosine"


@pytest.mark.parametrize("stored", ["euclidean", "manhattan", ["dot"], 3])
def test_unknown_similarities(folder, tmp_path, stored):
    target = sentence_transformer(folder, tmp_path / "model")
    (target / "config_sentence_transformers.json").write_text(json.dumps({"similarity_fn_name": stored}))
    with pytest.raises(NotAvailable, match=r"the similarity .*There are cosine and dot: choose one with --similarity"):
        planned(target)
    assert planned(target, similarity="dot").similarity == "dot"


def test_more_tokens_than_the_encoder_has_positions(folder, tmp_path):
    assert planned(folder, max_length=64).max_length == 64
    with pytest.raises(ConfigError, match="--max-length 65: .*encoder reads 64 tokens at most"):
        planned(folder, max_length=65)
    target = shutil.copytree(folder, tmp_path / "roberta")
    config = json.loads((target / "config.json").read_text())
    change = {"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1}
    (target / "config.json").write_text(json.dumps(config | change))
    assert planned(target, max_length=512).max_length == 512
    with pytest.raises(ConfigError, match="reads 512 tokens at most"):
        planned(target, max_length=513)
    (target / "config.json").write_text(json.dumps({"model_type": "t5"}))
    assert planned(target, max_length=4096).max_length == 4096


def test_a_tokenizer_that_cannot_be_written_is_an_error_of_the_disk(folder, tmp_path):
    """The package tokenizers raises a plain Exception."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (900, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            encoders._save_tokenizer(tokenizer, tmp_path / "kept")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_an_encoder_with_files_that_an_index_does_not_have(folder, tmp_path, monkeypatch):
    def save(self, target, original=encoders._save_tokenizer):
        original(self, target)
        (target / "modeling.py").write_text("")

    monkeypatch.setattr(encoders, "_save_tokenizer", save)
    with pytest.raises(NotAvailable, match="an encoder with a file such as modeling.py"):
        store(folder, tmp_path / "kept")


def test_folders_that_ask_for_more_than_there_is(folder, tmp_path):
    with pytest.raises(NotAvailable, match="an encoder with the module Dense"):
        planned(sentence_transformer(folder, tmp_path / "a", modules=("Transformer", "Pooling", "Dense")))
    both = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}
    with pytest.raises(NotAvailable, match="There are mean, cls and last: choose one with --pooling"):
        planned(sentence_transformer(folder, tmp_path / "b", pooling=both))
    with pytest.raises(ModelError, match="leaves the folder"):
        planned(sentence_transformer(folder, tmp_path / "c", path="../elsewhere"))


def test_mistakes_in_options(folder, tmp_path):
    with pytest.raises(ConfigError, match="--kind dense needs --encoder FOLDER"):
        plan_dense("dense", EncoderOptions())
    with pytest.raises(ConfigError, match="--encoder and its flags go with --kind dense"):
        plan_dense("bm25", EncoderOptions(folder))
    with pytest.raises(ModelError, match="no config.json in it"):
        planned(tmp_path)
    with pytest.raises(ConfigError, match="--device gpu9: no such device"):
        Encoder(folder, planned(folder), "gpu9")


def test_weights_that_are_not_there_are_not_made_up(folder, tmp_path):
    from safetensors.torch import load_file, save_file

    target = shutil.copytree(folder, tmp_path / "holes")
    weights = load_file(target / "model.safetensors")
    weights.pop("encoder.layer.1.output.dense.weight")
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match="its weights lack encoder.layer.1.output.dense.weight"):
        Encoder(target, planned(target))
    (target / "model.safetensors").write_bytes(b"rubbish")
    with pytest.raises(ModelError, match="cannot be loaded"):
        Encoder(target, planned(target))
