"""The verification of an export: what source and export compute for the same token sequences, and their weights.

A `Bench` loads and measures one model at a time; the `require_*` functions compare and raise a ModelError.
"""

import gc
import hashlib
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from burnish.data.chat import ChatRenderer
from burnish.errors import ConfigError, DataError, ModelError
from burnish.export.source import ExportRequest, ExportSource
from burnish.models.adapters import Adapter, apply_adapter
from burnish.models.device import pick_device
from burnish.models.facts import read_model_facts
from burnish.models.loading import load_unchanged, named, read_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LENGTHS = (2, 17, 64, 160)  # of the random sequences
SEED = 0
HEAD_PREFIX = "base_model.model."  # of the names of whole modules in an adapter
CHAT = [
    {"role": "user", "content": "What is 347+586? Think step by step."},
    {"role": "assistant", "content": "7+6=13, 4+8+1=13, 3+5+1=9, so the answer is 933."},
    {"role": "user", "content": "And 12*12?"},
]
TEXTS = ("", "The quick brown fox.", "  3.14159 + 2 = ?\n\n", "def f(x):\n\treturn x ** 2\n", "Zürich, 東京, Київ 🚀")


@dataclass(frozen=True)
class Difference:
    mean: float
    largest: float


# Equal weights are proven bit by bit; what they compute may still differ a little, since some processors round a sum by
# where its numbers lie in memory. This share of what rounding to the type may do is allowed for that.
SAME_SUMS = 0.01
# How far the rounding of weights to a type may move what the model computes. On a GPU, whose sums may be rounded in
# another order, also how far two runs may be apart.
ROUNDING = {"float32": Difference(1e-4, 1e-3), "float16": Difference(0.02, 0.2), "bfloat16": Difference(0.1, 1.0)}


class Bench:
    """Loads models of one export and measures them. Whoever calls `load` keeps the only reference."""

    def __init__(self, request: ExportRequest, source: ExportSource):
        self.values, self.trust_remote_code = source.values, request.trust_remote_code
        self.what = "values" if source.values else "log-probs"
        self.device = pick_device(request.device, key="--device")
        self._last: Callable[[], nn.Module | None] = lambda: None
        self.tokenizer = self.read_tokenizer(source.tokenizer)
        sizes = read_model_facts(source.model)
        self.probes = make_probes(self.tokenizer, sizes.vocab, sizes.context)

    @property
    def tokens(self) -> int:
        return sum(map(len, self.probes)) - (0 if self.values else len(self.probes))

    def read_tokenizer(self, folder: Path) -> "PreTrainedTokenizerBase":
        return read_tokenizer(folder, self.trust_remote_code)

    def load(self, folder: Path, dtype: str | None, adapter: Adapter | None = None) -> tuple[Any, list[str]]:
        """The model in `folder`, with an adapter on it, and the stored weights that it has no use for."""
        if self._last() is not None:  # a model that refers to itself stays in memory until it is collected
            gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        loaded = load_unchanged(folder, values=self.values, dtype=dtype, trust_remote_code=self.trust_remote_code)
        brought = adapter.tensors if adapter else {}
        if lacking := [name for name in loaded.missing if f"{HEAD_PREFIX}{name}" not in brought]:
            raise ModelError(
                f"{folder}: the weights lack {named(lacking)}; the folder is incomplete or of another model"
            )
        with self._memory():
            module = nn.Module.to(loaded.module, self.device)
            self._last = weakref.ref(module)
            return (apply_adapter(module, adapter) if adapter else module), loaded.unused

    def measure(self, module: nn.Module, what: Path, *, widen: bool = False) -> list[Tensor]:
        """What the model computes for the probes; with `widen` it becomes float32 first."""
        with self._memory():
            return measure(module.float() if widen else module, self.probes, values=self.values, what=what)

    def allowed(self, dtype: str, *, same_sums: bool) -> Difference:
        """How far apart two measurements may be. The same sums give almost the same bits, except on a GPU."""
        share = SAME_SUMS if same_sums and self.device.type == "cpu" else 1.0
        return Difference(share * ROUNDING[dtype].mean, share * ROUNDING[dtype].largest)

    @contextmanager
    def _memory(self) -> Iterator[None]:
        try:
            yield
        except torch.OutOfMemoryError as error:
            raise ConfigError(f"--device {self.device.type}: the GPU has too little memory free; use cpu") from error


def make_probes(tokenizer: "PreTrainedTokenizerBase", vocabulary: int, context: int | None) -> list[list[int]]:
    text = behaviour(tokenizer)["chat"]
    chat = list(tokenizer(text, add_special_tokens=False)["input_ids"])[:context]
    if max(chat, default=0) >= vocabulary:
        raise ModelError(f"the tokenizer gives the token {max(chat)}, but the model knows only {vocabulary} tokens")
    generator = torch.Generator().manual_seed(SEED)
    lengths = [min(length, context or length) for length in LENGTHS]
    random = [torch.randint(vocabulary, (length,), generator=generator).tolist() for length in lengths]
    return [probe for probe in (chat, *random) if len(probe) > 1]


@torch.no_grad()
def measure(module: nn.Module, probes: list[list[int]], *, values: bool, what: Path) -> list[Tensor]:
    """For each probe the log-prob of every token after the first (T-1,), or of a value model the values (T,)."""
    device = next(module.parameters()).device
    found = []
    for probe in probes:
        ids = torch.tensor([probe], device=device)
        logits = module(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits[0].float()  # (T, V)
        chosen = logits[:, 0] if values else logits[:-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
        if not chosen.isfinite().all():
            raise _not_finite(what, "its log-probs")
        found.append(chosen.cpu())
    return found


def fingerprints(module: nn.Module) -> dict[str, str]:
    return {name: hash_of(tensor) for name, tensor in module.state_dict().items()}


def hash_of(tensor: Tensor) -> str:
    data = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    return f"{tensor.dtype} {tuple(tensor.shape)} {hashlib.sha256(data.data).hexdigest()}"


def behaviour(tokenizer: "PreTrainedTokenizerBase") -> dict[str, Any]:
    """What a tokenizer does: ids of some texts, the rendered chat, its special tokens."""
    chat = "\n\n".join(message["content"] for message in CHAT)
    if tokenizer.chat_template:
        try:
            chat = ChatRenderer(tokenizer).text(CHAT)
        except DataError as error:
            chat = f"not rendered: {error}"  # a template for other roles; it has to fail in the same way
    ids = [list(tokenizer(text)["input_ids"]) for text in (*TEXTS, chat)]
    return {"chat": chat, "ids": ids, "special tokens": tokenizer.special_tokens_map, "length": len(tokenizer)}


def difference(left: list[Tensor], right: list[Tensor]) -> Difference:
    apart = (torch.cat(left).double() - torch.cat(right).double()).abs()
    return Difference(float(apart.mean()), float(apart.max()))


def count_zeros(tensors: Iterable[Tensor]) -> int:
    return sum(int((tensor == 0).sum()) for tensor in tensors)


def note_on_zeros(count: int, total: int, dtype: str) -> list[str]:
    text = f"{count:,} weights ({100 * count / total:.2g}%) are too small for {dtype} and became 0"
    return [text] if count > 0 else []


def require_finite(tensors: Iterable[tuple[str, Tensor]], what: Path) -> None:
    if wrong := [name for name, tensor in tensors if not tensor.isfinite().all()]:
        raise _not_finite(what, f"weights of {named(wrong)}")


def require_near(found: Difference, allowed: Difference, what: str) -> None:
    if found.mean > allowed.mean or found.largest > allowed.largest:
        raise ModelError(
            f"the export was not put in place: {what} differ by {found.mean:.3g} on average and {found.largest:.3g} at "
            f"most, where {allowed.mean:g} and {allowed.largest:g} are allowed"
        )


def require_same_weights(source: dict[str, str], export: dict[str, str]) -> None:
    if different := sorted(name for name in source.keys() | export.keys() if source.get(name) != export.get(name)):
        raise ModelError(f"the export was not put in place: read again, {named(different)} is not what was written")


def require_same_tokenizer(source: "PreTrainedTokenizerBase", export: "PreTrainedTokenizerBase") -> None:
    before, after = behaviour(source), behaviour(export)
    if different := [name for name in before if before[name] != after[name]]:
        raise ModelError(f"the export was not put in place: its tokenizer gives other {', '.join(different)}")


def _not_finite(what: Path, which: str) -> ModelError:
    return ModelError(
        f"{what}: {which} are not finite, so training diverged, the weights are damaged, or they are too large for the "
        "dtype; export an earlier checkpoint, or another --dtype"
    )
