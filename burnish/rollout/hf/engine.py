"""The `hf` engine: the trainer's own transformers module, batched and KV-cached. Simple, and the reference in tests.

The module's `generate` draws from one global random state, so it is not called. Up to `max_num_seqs` requests in order
are one batch, which runs to its end. After `admit_any_time`, which serving asks for, a request starts before the next
step and joins those of about its length; the others run in separate batches that take turns. Models with a sliding
window admit as before.
"""

import asyncio
import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from burnish.config.rollout import RolloutConfig
from burnish.errors import NotAvailable, RolloutError
from burnish.rollout.admission import RequestState
from burnish.rollout.base import uniforms
from burnish.rollout.in_process import InProcessEngine, evaluating, sample

T = TypeVar("T")
SMALL = 1 << 14  # rows × width that are never worth a separate step


class LeftPaddedBatch:
    """A left-padded batch on a transformers module: one prefill, then one token for every row per step, until `rows`,
    which line up with the cache rows, is empty. Equal prompts are prefilled once. Rows that are done keep their place
    until half of the batch is done. Another batch may join between two steps: its cache rows are put below these, the
    narrower ones padded on the left. `grouped` says which rows are better kept apart."""

    def __init__(
        self, module: nn.Module, requests: Sequence[RequestState], version: int, prefill_tokens: int | None = None
    ):
        self.module = module
        self.rows = list(requests)
        self.version = version
        self.device = next(module.parameters()).device
        self.prefill_tokens = prefill_tokens
        accepted = inspect.signature(module.forward).parameters
        self._takes_positions = "position_ids" in accepted
        self._last_logits_only = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}
        self._cache: DynamicCache | None = None
        self._mask = torch.empty(0, 0)  # (B, P + generated)

    @torch.no_grad()
    def step(self) -> int:
        """Sample one token for each row that is not done; how many that were."""
        self._drop_done_rows()
        if not self.rows:
            return 0
        live = [i for i, request in enumerate(self.rows) if not request.done]
        requests = [self.rows[i] for i in live]
        logits = self._decode() if self._cache is not None else self._prefill()  # (B, V)
        noise = uniforms([r.sampling.seed for r in requests], [len(r.token_ids) for r in requests])
        ids, log_probs = sample(logits[live], [r.sampling for r in requests], torch.from_numpy(noise))
        for request, token_id, log_prob in zip(requests, ids.tolist(), log_probs.tolist(), strict=True):
            if math.isnan(log_prob):
                raise RolloutError(f"the model's logits are NaN or infinite, first for request {request.request_id}")
            request.accept(token_id, log_prob, self.version)
        self._drop_done_rows()
        return len(live)

    @property
    def live(self) -> list[RequestState]:
        return [request for request in self.rows if not request.done]

    @property
    def joinable(self) -> bool:
        """Whether rows of another width can join these: not where a layer keeps only a window of them."""
        return self._cache is not None and all(type(layer) is DynamicLayer for layer in self._cache.layers)

    def join(self, other: "LeftPaddedBatch") -> None:
        """Take over the rows of another batch; both have made a step."""
        for batch in (self, other):
            assert batch._cache is not None
            batch._drop_done_rows(all_of_them=True)
            # The columns on the left that only rows which have gone needed: a batch that is joined may never end.
            empty = batch._mask.shape[1] - max(request.width for request in batch.rows) + 1  # the newest has none yet
            batch._mask = batch._mask[:, empty:]
            for layer in batch._cache.layers:
                layer.keys, layer.values = layer.keys[:, :, empty:], layer.values[:, :, empty:]
        width = max(self._mask.shape[1], other._mask.shape[1])
        self._mask = torch.cat([_widened(batch._mask, width, dim=1) for batch in (self, other)])
        for own, new in zip(self._cache.layers, other._cache.layers, strict=True):  # type: ignore[union-attr]
            own.keys = torch.cat([_widened(keys, width, dim=2) for keys in (own.keys, new.keys)])
            own.values = torch.cat([_widened(values, width, dim=2) for values in (own.values, new.values)])
        self.rows += other.rows

    def _drop_done_rows(self, all_of_them: bool = False) -> None:
        keep = [i for i, request in enumerate(self.rows) if not request.done]
        if self._cache is None or all_of_them or 2 * len(keep) <= len(self.rows):
            self._select(keep)
            self.rows = [self.rows[i] for i in keep]

    def _select(self, indices: list[int]) -> None:
        if self._cache is not None:
            picked = torch.tensor(indices, dtype=torch.long, device=self.device)
            self._cache.batch_select_indices(picked)
            self._mask = self._mask[picked]

    def _prefill(self) -> Tensor:
        """Fill the cache with every row's prompt; the logits after it (B, V)."""
        unique = list(dict.fromkeys(tuple(request.prompt_ids) for request in self.rows))
        width = max(map(len, unique))
        ids = torch.zeros(len(unique), width, dtype=torch.long)
        mask = torch.zeros(len(unique), width, dtype=torch.long)
        for i, prompt in enumerate(unique):
            ids[i, width - len(prompt) :] = torch.tensor(prompt)
            mask[i, width - len(prompt) :] = 1
        ids, self._mask = ids.to(self.device), mask.to(self.device)
        positions = (self._mask.cumsum(dim=1) - 1).clamp_(min=0)
        at_once = max(1, self.prefill_tokens // width) if self.prefill_tokens else len(unique)
        parts = [
            self._forward(ids[i : i + at_once], self._mask[i : i + at_once], positions[i : i + at_once], None)
            for i in range(0, len(unique), at_once)
        ]
        self._cache, *others = [cache for _, cache in parts]
        for index, layer in enumerate(self._cache.layers if others else []):  # one cache out of prefills of equal width
            layer.keys = torch.cat([layer.keys, *(cache.layers[index].keys for cache in others)])
            layer.values = torch.cat([layer.values, *(cache.layers[index].values for cache in others)])
        place = {prompt: i for i, prompt in enumerate(unique)}
        rows = [place[tuple(request.prompt_ids)] for request in self.rows]
        self._select(rows)
        return torch.cat([logits for logits, _ in parts])[rows]

    def _decode(self) -> Tensor:
        """Feed each row's newest token; the logits after it (B, V). What rows that are done give is not read."""
        ids = torch.tensor([[0 if request.done else request.token_ids[-1]] for request in self.rows])
        done = torch.tensor([[request.done] for request in self.rows], device=self.device)
        # A row that is done stays at position 0: continuing could run past the model's last position.
        positions = self._mask.sum(dim=1, keepdim=True).masked_fill_(done, 0)  # (B, 1)
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(self.rows), 1)], dim=1)
        logits, self._cache = self._forward(ids.to(self.device), self._mask, positions, self._cache)
        return logits

    def _forward(
        self, ids: Tensor, mask: Tensor, positions: Tensor, cache: DynamicCache | None
    ) -> tuple[Tensor, DynamicCache]:
        where = {"position_ids": positions} if self._takes_positions else {}
        out = self.module(
            input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True, **where, **self._last_logits_only
        )
        after = getattr(out, "past_key_values", None)
        layers = getattr(after, "layers", None)
        # Anything but keys and values per token cannot be left-padded and cut by rows.
        if not layers or any(type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers):
            kind = sorted({type(layer).__name__ for layer in layers}) if layers else type(after).__name__
            raise NotAvailable(
                f"rollout with the cache of {type(self.module).__name__} ({kind})",
                "Use a decoder with an ordinary key-value cache",
            )
        return out.logits[:, -1], after


class HFEngine(InProcessEngine):
    name = "hf"

    def __init__(
        self,
        module: nn.Module,
        tokenizer: Any,
        *,
        max_num_seqs: int = 1024,
        max_model_len: int | None = None,
        max_num_batched_tokens: int | None = None,
    ):
        super().__init__(module, tokenizer, max_model_len)
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self._joins = False  # whether requests join a running batch
        self._waiting: list[RequestState] = []  # not yet in a batch
        self._stats = dict.fromkeys(("requests", "aborted", "prompt_tokens", "generated_tokens", "batches"), 0)

    @classmethod
    def from_config(
        cls, module: nn.Module, tokenizer: Any, config: RolloutConfig, logs: Path | None = None
    ) -> "HFEngine":
        cls.check_dtype(module, config)
        return cls(
            module,
            tokenizer,
            max_num_seqs=config.max_num_seqs,
            max_model_len=config.max_model_len,
            max_num_batched_tokens=config.max_num_batched_tokens,
        )

    def _enter(self, request: RequestState) -> None:
        self._waiting.append(request)
        self._stats["requests"] += 1
        self._stats["prompt_tokens"] += len(request.prompt_ids)

    def _leave(self, request: RequestState) -> None:
        if not request.token_ids and request in self._waiting:  # aborted or given up before it was admitted
            self._waiting.remove(request)

    def _abandon(self) -> None:
        self._waiting = []

    async def _drive(self, number: int) -> None:
        try:
            await self._settle()
            while self._waiting:
                await self._run()
                await self._settle()
        finally:  # only a cancelled driver leaves requests behind; their callers are being cancelled too
            if number == self._drivers:
                for request in self._active.values():
                    request.future.cancel()
                self._waiting = []

    async def _run(self) -> None:
        with evaluating(self.module):
            batches = self._begin(self.max_num_seqs)
            while batches:
                await asyncio.sleep(0)
                if self._joins:
                    batches = [batch for batch in batches if batch.live]
                    if all(batch.joinable for batch in batches):  # with those that waited, where that wastes little
                        batches += self._begin(self.max_num_seqs - sum(len(batch.live) for batch in batches))
                        groups = grouped((batch for batch in batches if batch.live), lambda batch: batch.live)
                        batches = [self._joined(group) for group in groups]
                for batch in batches:
                    self._step(batch)
                batches = [batch for batch in batches if batch.rows]

    def _begin(self, room: int) -> list[LeftPaddedBatch]:
        """Start those that wait, as far as there is room."""
        ready = sorted((r for r in self._waiting if not r.done), key=lambda r: r.order)
        requests, self._waiting = ready[:room], ready[room:]
        groups = grouped(requests, lambda request: [request]) if self._joins else [requests]
        return [self._start(group) for group in groups if group]

    def _start(self, requests: list[RequestState]) -> LeftPaddedBatch:
        """A separate batch, one step old: their prompts are read and their first tokens sampled."""
        self._stats["batches"] += 1
        batch = LeftPaddedBatch(self.module, requests, self.version, self.max_num_batched_tokens)
        self._step(batch)
        return batch

    def _step(self, batch: LeftPaddedBatch) -> None:
        try:
            with self._computing(f"a step of {len(batch.rows)} sequences"):
                self._stats["generated_tokens"] += batch.step()
        except Exception as error:  # noqa: BLE001 (rises at every caller of the batch)
            self._fail(batch.rows, error)
            batch.rows = []

    def _joined(self, batches: list[LeftPaddedBatch]) -> LeftPaddedBatch:
        first, *others = batches
        try:
            for other in others:
                first.join(other)
        except Exception as error:  # noqa: BLE001 (as in `_step`; half joined, none can continue)
            self._fail([request for batch in batches for request in batch.rows], error)
            first.rows = []
        return first

    def abort(self, request_id: str) -> None:
        request = self._active.get(request_id)
        if request is not None and not request.done:
            self._stats["aborted"] += 1
            request.finish("abort", None, self.version)

    def admit_any_time(self) -> None:
        self._joins = True

    def stats(self) -> dict[str, float]:
        return dict(self._stats)


def grouped(items: Iterable[T], rows: Callable[[T], list[RequestState]]) -> list[list[T]]:
    """Items, each with some rows, in groups that may share a batch: small, or at most half of it padding."""
    groups: list[list[T]] = []
    together: list[RequestState] = []
    for item in sorted(items, key=lambda item: max(request.width for request in rows(item))):
        together = [*together, *rows(item)]
        widths = [request.width for request in together]
        if groups and max(widths) * len(widths) <= max(SMALL, 2 * sum(widths)):
            groups[-1].append(item)
        else:
            groups.append([item])
            together = rows(item)
    return groups


def _widened(tensor: Tensor, width: int, dim: int) -> Tensor:
    missing = width - tensor.shape[dim]
    return F.pad(tensor, [*[0, 0] * (tensor.ndim - 1 - dim), missing, 0]) if missing else tensor
