"""Where models are loaded and measured for the proof: one device, one set of probes, one model at a time."""

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from burnish.errors import ConfigError, ModelError
from burnish.export.check import EXACT, ROUNDING, Difference, make_probes, measure
from burnish.export.request import Request
from burnish.export.source import Source
from burnish.models.adapters import Adapter, apply_adapter
from burnish.models.device import pick_device
from burnish.models.facts import read_model_facts
from burnish.models.loading import load_unchanged, named, read_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

HEAD_PREFIX = "base_model.model."  # of the names of whole modules in an adapter


class Bench:
    """Loads models of one export and measures them. Whoever calls `load` keeps the only reference."""

    def __init__(self, request: Request, source: Source):
        self.values, self.trust_remote_code = source.values, request.trust_remote_code
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
        self._free()
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

    def measure(self, module: nn.Module, what: Path) -> list[Tensor]:
        with self._memory():
            return measure(module, self.probes, values=self.values, what=str(what))

    def allowed(self, dtype: str, *, same_sums: bool) -> Difference:
        """How far apart two measurements may be. The same sums give the same bits, but for the order of a GPU's."""
        return EXACT if same_sums and self.device.type == "cpu" else ROUNDING[dtype]

    def _free(self) -> None:
        """See the model before out of memory: one that refers to itself stays until it is collected."""
        if self._last() is not None:
            gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    @contextmanager
    def _memory(self) -> Iterator[None]:
        try:
            yield
        except torch.OutOfMemoryError as error:
            raise ConfigError(f"--device {self.device.type}: the GPU has too little memory free; use cpu") from error
