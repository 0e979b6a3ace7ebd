"""Small random models as HF folders, with a byte-level tokenizer: what `make nano` starts from and tests train."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, Qwen2Tokenizer

PAD, EOS, START = "<|pad|>", "<|end|>", "<|start|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|start|>' + message['role'] + '\\n' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant\\n' }}{% endif %}"
)


def byte_tokenizer(chat_template: str | None = CHAT_TEMPLATE, words: Sequence[str] = ()) -> Qwen2Tokenizer:
    """One token per byte of text: nothing is unknown, and every digit is its own token. `words` have one token each."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([PAD, EOS, START, *alphabet])}
    tokenizer = Qwen2Tokenizer(
        vocab=vocabulary,
        merges=[],
        unk_token=None,
        pad_token=PAD,
        eos_token=EOS,
        additional_special_tokens=[START],
        padding_side="left",
    )
    tokenizer.add_tokens(list(words))
    tokenizer.chat_template = chat_template
    return tokenizer


def write_tiny_model(
    folder: str | Path,
    *,
    model_type: str = "qwen2",
    hidden_size: int = 32,
    layers: int = 2,
    heads: int = 2,
    context: int = 512,
    chat_template: str | None = CHAT_TEMPLATE,
    words: Sequence[str] = (),
    seed: int = 0,
    **overrides: Any,
) -> Path:
    """Write a random-weight model folder and return its path. `overrides` go to the HF configuration."""
    folder, tokenizer = Path(folder), byte_tokenizer(chat_template, words)
    settings = dict(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=4 * hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    config = AutoConfig.for_model(model_type, **(settings | overrides))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
