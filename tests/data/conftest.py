"""Tokenizers of several kinds and small files, for the data tests."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from burnish.config.data import DataConfig
from burnish.errors import DataError
from burnish.models.tiny import byte_tokenizer
from tests.config.conftest import refused as refused_as

refused = partial(refused_as, error=DataError)

# Like the templates of chat models: a newline after the end of a turn.
NEWLINE_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|start|>' + message['role'] + '\\n' + message['content'] + '<|end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant\\n' }}{% endif %}"
)


@pytest.fixture(scope="session")
def tokenizer():
    """One token per byte, with a chat template."""
    return byte_tokenizer()


@pytest.fixture(scope="session")
def plain_tokenizer():
    return byte_tokenizer(chat_template=None)


@pytest.fixture(scope="session")
def merging_tokenizer():
    """Joins two newlines to one token, as real vocabularies do, and adds a begin-of-sequence token on its own."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    specials = ["<|pad|>", "<|end|>", "<|start|>", "<|begin|>"]
    vocabulary = {token: i for i, token in enumerate([*specials, *alphabet, "ĊĊ"])}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[("Ċ", "Ċ")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", vocabulary["<|begin|>"])]
    )
    names = {"pad_token": "<|pad|>", "eos_token": "<|end|>", "bos_token": "<|begin|>"}
    made = PreTrainedTokenizerFast(tokenizer_object=backend, **names, additional_special_tokens=["<|start|>"])
    made.chat_template = NEWLINE_TEMPLATE
    return made


@pytest.fixture
def data_config() -> DataConfig:
    return DataConfig()


@pytest.fixture
def write_jsonl(tmp_path: Path) -> Callable[..., str]:
    def write(rows: list[dict[str, Any]], name: str = "rows.jsonl") -> str:
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    return write


@pytest.fixture
def write_python(tmp_path: Path) -> Callable[..., str]:
    def write(text: str, name: str = "mine.py") -> str:
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write
