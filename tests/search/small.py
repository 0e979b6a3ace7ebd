"""Small things to index: a corpus of a few lines, and encoders with random weights and a vocabulary of its words."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

PASSAGES = [
    ("a", '"Hamlet"\nA tragedy written by William Shakespeare about the prince of Denmark.'),
    ("b", '"Macbeth"\nA tragedy written by William Shakespeare about a Scottish general.'),
    ("c", '"Faust"\nA play by Goethe in which a scholar bargains with the devil.'),
    ("d", '"Moby-Dick"\nA novel of Melville: Captain Ahab hunts the white whale.'),
    ("e", '"Copenhagen"\nThe capital of Denmark, on the coastal islands of Zealand and Amager.'),
    ("f", '"Köln"\nEine Stadt am Rhein – mit Dom; 科隆.'),
    ("g", '"Weimar"\nThe town where Goethe lived and wrote.'),
]
TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
TINY |= {"max_position_embeddings": 64}


def write_corpus(path: Path, passages: Iterable[tuple[str, str]] = PASSAGES) -> Path:
    path.write_text("".join(json.dumps({"id": i, "contents": c, "more": 1}) + "\n" for i, c in passages))
    return path


def write_encoder(folder: Path, *, labels: int = 0, seed: int = 0, **settings: Any) -> Path:
    """A BERT folder with random weights; with `labels` one that classifies pairs."""
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertForSequenceClassification, BertModel, PreTrainedTokenizerFast

    words = {word for _, text in PASSAGES for word in text.lower().replace('"', " ").split()}
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = {word: at for at, word in enumerate([*special, "query", "passage", ":", *sorted(words)])}
    rules = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    rules.normalizer, rules.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    rules.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=rules, model_max_length=64, **names)
    config = BertConfig(vocab_size=len(vocabulary), **{**TINY, **settings}, num_labels=labels or 2)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = BertForSequenceClassification(config) if labels else BertModel(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
