"""The tokenizer of a model folder, as burnish loads it."""

from typing import Any

from burnish.models.loading import load_tokenizer


def hf_tokenizer(
    name_or_path: str, correct_pad_token: bool = True, correct_gemma2: bool = True, trust_remote_code: bool = False
) -> Any:
    """It always has a pad token."""
    return load_tokenizer(name_or_path, trust_remote_code)


def hf_processor(name_or_path: str, **kwargs: Any) -> None:
    """None: burnish trains on text."""
