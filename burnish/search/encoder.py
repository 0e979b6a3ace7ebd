"""Texts to vectors, through a Hugging Face encoder folder. No code that comes with a folder is run.

Consumes the settings of `encoder_settings.py`; produces float32 rows, of length 1 where the similarity is cosine.
`store` puts an encoder into an index, so that queries are embedded by what embedded the passages.
"""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from transformers import AutoModel, AutoTokenizer
from transformers.utils import logging as hf_logging

from burnish.errors import ConfigError, ModelError, NotAvailable
from burnish.search.files import Checksum, sum_of, sync, writing
from burnish.search.manifest import ENCODER_FILE, DensePlan, Pooling

CPU_TOKENS, GPU_TOKENS = 1 << 11, 1 << 16  # padded tokens of one forward pass; a CPU is faster while they fit its cache
LOAD_ERRORS = (OSError, ValueError, KeyError, RuntimeError, SafetensorError)


class Encoder:
    """`encode(texts, prefix)` gives one row per text."""

    def __init__(self, folder: Path, plan: DensePlan, device: str = "cpu"):
        self.plan, self.device = plan, checked_device(device)
        tokenizer, model = load_pair(folder, AutoModel)
        self.tokenizer = with_padding(tokenizer, folder)
        self.model = model.to(self.device, torch.float32 if self.device.type == "cpu" else None).eval()

    def queries(self, texts: Sequence[str]) -> np.ndarray:
        return self._encode(texts, self.plan.query_prefix)

    def passages(self, texts: Sequence[str]) -> np.ndarray:
        return self._encode(texts, self.plan.passage_prefix)

    @torch.inference_mode()
    def _encode(self, texts: Sequence[str], prefix: str) -> np.ndarray:  # (texts, width)
        ids = self.tokenizer(
            [prefix + text for text in texts], truncation=True, max_length=self.plan.max_length
        ).input_ids
        rows: list[np.ndarray] = [np.empty(0, np.float32)] * len(ids)
        for batch in batches([len(row) for row in ids], self.device):
            inputs = self.tokenizer.pad({"input_ids": [ids[at] for at in batch]}, return_tensors="pt").to(self.device)
            hidden = self.model(**inputs).last_hidden_state  # (B, T, width)
            vectors = pool(hidden, inputs["attention_mask"], self.plan.pooling).float()
            if self.plan.similarity == "cosine":
                vectors = torch.nn.functional.normalize(vectors, dim=-1)
            for at, vector in zip(batch, vectors.cpu().numpy(), strict=True):
                rows[at] = vector
        return np.stack(rows)


def pool(hidden: torch.Tensor, mask: torch.Tensor, pooling: Pooling) -> torch.Tensor:
    """(B, T, width), (B, T) to (B, width); padding, on either side, does not count."""
    if pooling == "mean":
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1)
    if pooling == "cls":
        chosen = mask.argmax(1)
    else:
        chosen = mask.shape[1] - 1 - mask.flip(1).argmax(1)
    return hidden[torch.arange(len(hidden), device=hidden.device), chosen]


def batches(lengths: Sequence[int], device: torch.device) -> list[list[int]]:
    """Numbers of texts that go through the model together: alike in length, so that little is padding."""
    limit = CPU_TOKENS if device.type == "cpu" else GPU_TOKENS
    found: list[list[int]] = []
    for at in sorted(range(len(lengths)), key=lambda at: -lengths[at]):
        if not found or (len(found[-1]) + 1) * max(lengths[found[-1][0]], 1) > limit:
            found.append([])
        found[-1].append(at)
    return found


def checked_device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"--device {name}: no such device; cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"--device {name}: this machine has no CUDA device; take --device cpu")
    return device


def load_pair(folder: Path, kind: Any) -> tuple[Any, Any]:
    """Tokenizer and model of a folder; ModelError where it has no such, or weights that are not all there."""
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder}: no config.json in it; name the folder of a Hugging Face model")
    hf_logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        model, info = kind.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True, dtype="auto", output_loading_info=True
        )
    except LOAD_ERRORS as error:
        raise ModelError(f"{folder}: cannot be loaded as an encoder ({str(error)[:300]})") from error
    # A pooler is the head of another task: an encoder that lacks its weights lacks nothing.
    if lacking := sorted(name for name in info["missing_keys"] if "pooler" not in name or kind is not AutoModel):
        raise ModelError(f"{folder}: its weights lack {', '.join(lacking[:3])}; take a folder that has them")
    return tokenizer, model


def with_padding(tokenizer: Any, folder: Path) -> Any:
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise ModelError(f"{folder}: its tokenizer has neither a padding nor an end token; add one")
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def store(source: Path, target: Path) -> dict[str, Checksum]:
    """Put an encoder's weights (as safetensors) and tokenizer into `target`; the checksum of each file."""
    tokenizer, model = load_pair(source, AutoModel)
    unfinished = target.with_name(target.name + ".tmp")
    shutil.rmtree(unfinished, ignore_errors=True)
    with writing(target, SafetensorError):
        unfinished.mkdir(parents=True)
        model.save_pretrained(unfinished)
        _save_tokenizer(tokenizer, unfinished)
        for path in unfinished.iterdir():
            if not path.is_file() or not re.fullmatch(ENCODER_FILE, path.name):
                raise NotAvailable(f"an encoder with a file such as {path.name} ({source})", "Take another one")
            sync(path)
        sync(unfinished)
        shutil.rmtree(target, ignore_errors=True)
        unfinished.rename(target)
        sync(target.parent)
        return {path.name: sum_of(path) for path in sorted(target.iterdir())}


def _save_tokenizer(tokenizer: Any, folder: Path) -> None:
    try:
        tokenizer.save_pretrained(folder)
    except Exception as error:  # a plain one is what the package tokenizers raises where it cannot write
        raise OSError(str(error)) from error
