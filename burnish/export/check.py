"""The proof of an export: what source and export say about the same token sequences, and what they are made of.

`make_probes` gives fixed sequences (a rendered chat and seeded random tokens of several lengths), `measure` the
log-prob of every token in them (of a value model: the values), `fingerprints` a hash of every weight, `behaviour` what
a tokenizer makes of some texts. The `require_*` functions compare two of each and raise a ModelError.
"""

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jinja2.exceptions import TemplateError
from torch import Tensor

from burnish.errors import ModelError
from burnish.models.loading import named

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedTokenizerBase

LENGTHS = (2, 17, 64, 160)  # of the random sequences
SEED = 0
CHAT = [
    {"role": "user", "content": "What is 347+586? Think step by step."},
    {"role": "assistant", "content": "7+6=13, 4+8+1=13, 3+5+1=9, so the answer is 933."},
    {"role": "user", "content": "And 12*12?"},
]
TEXTS = ("", "The quick brown fox.", "  3.14159 + 2 = ?\n\n", "def f(x):\n\treturn x ** 2\n", "Zürich, 東京, Київ 🚀")


@dataclass(frozen=True)
class Difference:
    """How far two lists of log-probs are apart, over all tokens."""

    mean: float
    largest: float


EXACT = Difference(0.0, 0.0)
# How far a merged adapter may be from base and adapter: the sums are rounded in another order.
ROUNDING = {
    "float32": Difference(1e-4, 1e-3),
    "float16": Difference(0.02, 0.2),
    "bfloat16": Difference(0.1, 1.0),
}


def make_probes(tokenizer: "PreTrainedTokenizerBase", vocabulary: int, context: int | None) -> list[list[int]]:
    """Token sequences of at least two tokens that the model can read."""
    text = behaviour(tokenizer)["chat"]
    chat = list(tokenizer(text, add_special_tokens=False)["input_ids"])[:context]
    if max(chat, default=0) >= vocabulary:
        raise ModelError(f"the tokenizer gives the token {max(chat)}, but the model knows only {vocabulary} tokens")
    generator = torch.Generator().manual_seed(SEED)
    lengths = [min(length, context or length) for length in LENGTHS]
    random = [torch.randint(vocabulary, (length,), generator=generator).tolist() for length in lengths]
    return [probe for probe in (chat, *random) if len(probe) > 1]


@torch.no_grad()
def measure(module: "nn.Module", probes: list[list[int]], *, values: bool, what: str) -> list[Tensor]:
    """For each probe the log-prob of every token after the first (T-1,), or of a value model the values (T,)."""
    device = next(module.parameters()).device
    found = []
    for probe in probes:
        ids = torch.tensor([probe], device=device)
        logits = module(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits[0].float()  # (T, V)
        chosen = logits[:, 0] if values else logits[:-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
        if not chosen.isfinite().all():
            raise ModelError(
                f"{what}: its log-probs are not finite, so training diverged, the weights are damaged, or they are too "
                "large for the dtype; export an earlier checkpoint, or another --dtype"
            )
        found.append(chosen.cpu())
    return found


def fingerprints(module: "nn.Module") -> dict[str, str]:
    """A hash of every weight with its type and shape."""
    return {name: _hash(tensor) for name, tensor in module.state_dict().items()}


def behaviour(tokenizer: "PreTrainedTokenizerBase") -> dict[str, Any]:
    """What a tokenizer does: ids of some texts, the rendered chat, its special tokens."""
    chat = "\n\n".join(message["content"] for message in CHAT)
    if tokenizer.chat_template:
        try:
            chat = tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
        except (TemplateError, TypeError, KeyError, ValueError, AttributeError) as error:
            chat = f"not rendered: {error}"  # a template for other roles; it has to fail in the same way
    ids = [list(tokenizer(text)["input_ids"]) for text in (*TEXTS, chat)]
    return {"chat": chat, "ids": ids, "special tokens": tokenizer.special_tokens_map, "length": len(tokenizer)}


def difference(left: list[Tensor], right: list[Tensor]) -> Difference:
    apart = (torch.cat(left).double() - torch.cat(right).double()).abs()
    return Difference(float(apart.mean()), float(apart.max()))


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


def _hash(tensor: Tensor) -> str:
    data = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    return f"{tensor.dtype} {tuple(tensor.shape)} {hashlib.sha256(data.data).hexdigest()}"
