"""Reranking: a cross-encoder reads a query together with a passage and says how well they fit.

Takes the first hits of another retriever, each query with its own, and puts them in the order of the cross-encoder's
scores; those are the scores of the hits then.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification

from burnish.errors import ModelError
from burnish.search.documents import Hit, Retriever
from burnish.search.encoder import batches, checked_device, load_pair, with_padding

DEPTH = 30  # hits per query that are read
LONGEST = 512  # tokens of query and passage together, where the model has no limit


class Reranker:
    """`scores(pairs)`: one number per (query, passage); a higher one is a better match."""

    def __init__(self, folder: Path, device: str = "cpu"):
        self.device = checked_device(device)
        tokenizer, model = load_pair(folder, AutoModelForSequenceClassification)
        if model.config.num_labels != 1:
            raise ModelError(
                f"--rerank {folder}: it has {model.config.num_labels} labels; a cross-encoder for ranking has one"
            )
        self.tokenizer = with_padding(tokenizer, folder)
        model.config.pad_token_id = self.tokenizer.pad_token_id
        self.model = model.to(self.device, torch.float32 if self.device.type == "cpu" else None).eval()
        self.max_length = min(
            tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", LONGEST), LONGEST
        )

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
    """Another retriever's hits in the order of a cross-encoder."""

    def __init__(self, base: Retriever, reranker: Reranker):
        self.base, self.reranker = base, reranker
        self.name = f"{base.name}+rerank"

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        found = self.base.search(queries, max(topk, DEPTH))
        pairs = [(query, hit.document.contents) for query, hits in zip(queries, found, strict=True) for hit in hits]
        scores = iter(self.reranker.scores(pairs))
        ranked = []
        for hits in found:
            fresh = [Hit(hit.document, next(scores)) for hit in hits]
            ranked.append(sorted(fresh, key=lambda hit: -hit.score)[:topk])  # equal ones stay as they were
        return ranked

    def __len__(self) -> int:
        return len(self.base)
