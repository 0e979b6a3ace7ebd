"""Texts to vectors, through a Hugging Face encoder folder. No code that comes with a folder is run.

Vectors are float32, of length 1 where the similarity is cosine.
"""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging as hf_logging

from burnish.errors import ConfigError, ModelError, NotAvailable
from burnish.search.documents import Hit, Retriever
from burnish.search.files import Checksum, sum_of, sync, writing
from burnish.search.manifest import ENCODER_FILE, DensePlan, Pooling

CPU_TOKENS, GPU_TOKENS = 1 << 11, 1 << 16  # padded tokens of one forward pass; a CPU is faster while they fit its cache
RERANK_DEPTH = 30  # hits per query that a cross-encoder reads
RERANK_LONGEST = 512  # tokens of query and passage together, where the model has no limit
LOAD_ERRORS = (OSError, ValueError, KeyError, RuntimeError, SafetensorError)


class Encoder:
    def __init__(self, folder: Path, plan: DensePlan, device: str = "cpu"):
        self.plan, self.device = plan, checked_device(device)
        self.tokenizer, self.model = load_for(self.device, folder, AutoModel)

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


class Reranker:
    def __init__(self, folder: Path, device: str = "cpu"):
        self.device = checked_device(device)
        self.tokenizer, self.model = load_for(self.device, folder, AutoModelForSequenceClassification)
        config = self.model.config
        if config.num_labels != 1:
            raise ModelError(
                f"--rerank {folder}: it has {config.num_labels} labels; a cross-encoder for ranking has one"
            )
        config.pad_token_id = self.tokenizer.pad_token_id
        positions = getattr(config, "max_position_embeddings", RERANK_LONGEST)
        self.max_length = min(self.tokenizer.model_max_length, positions, RERANK_LONGEST)

    @torch.inference_mode()
    def scores(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        if not pairs:
            return []
        # A passage is cut where the pair is too long; a query so long that nothing is left of the passage is cut too.
        encoded = self.tokenizer(
            [query for query, _ in pairs],
            [passage for _, passage in pairs],
            truncation="longest_first",
            max_length=self.max_length,
        )
        found = [0.0] * len(pairs)
        for batch in batches([len(row) for row in encoded["input_ids"]], self.device):
            rows = {name: [values[at] for at in batch] for name, values in encoded.items()}
            inputs = self.tokenizer.pad(rows, return_tensors="pt").to(self.device)
            logits = self.model(**inputs).logits[:, 0].float()
            for at, score in zip(batch, logits.tolist(), strict=True):
                found[at] = score
        return found


class RerankedRetriever(Retriever):
    def __init__(self, base: Retriever, reranker: Reranker):
        self.base, self.reranker = base, reranker
        self.name = f"{base.name}+rerank"

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        found = self.base.search(queries, max(topk, RERANK_DEPTH))
        pairs = [(query, hit.document.contents) for query, hits in zip(queries, found, strict=True) for hit in hits]
        scores = iter(self.reranker.scores(pairs))
        ranked = []
        for hits in found:
            fresh = [Hit(hit.document, next(scores)) for hit in hits]
            ranked.append(sorted(fresh, key=lambda hit: -hit.score)[:topk])  # equal ones stay as they were
        return ranked

    def __len__(self) -> int:
        return len(self.base)


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


def load_for(device: torch.device, folder: Path, kind: Any) -> tuple[Any, Any]:
    """Tokenizer, with a padding token, and model, on the device and in float32 on a CPU."""
    tokenizer, model = load_pair(folder, kind)
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise ModelError(f"{folder}: its tokenizer has neither a padding nor an end token; add one")
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer, model.to(device, torch.float32 if device.type == "cpu" else None).eval()


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
