"""Small helpers that users' files import from `verl.utils`."""

from typing import Any

from verl import _coverage


def __getattr__(name: str) -> Any:
    if name in ("hf_tokenizer", "hf_processor"):  # transformers is imported only where they are asked for
        from verl.utils import tokenizer

        return getattr(tokenizer, name)
    if name in ("as_torch_index", "group_mean_std"):
        from verl.utils import groupwise

        return getattr(groupwise, name)
    raise AttributeError(_coverage.absent(f"verl.utils.{name}"))
