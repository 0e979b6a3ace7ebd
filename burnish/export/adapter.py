"""An adapter alone: its settings, weights and tokenizer, checked on its base."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from burnish.export import Facts
from burnish.export.check import (
    Bench,
    count_zeros,
    difference,
    hash_of,
    note_on_zeros,
    require_finite,
    require_near,
    require_same_tokenizer,
    require_same_weights,
)
from burnish.export.place import copy_tokenizer, writing
from burnish.export.source import DTYPES, ExportRequest, ExportSource, Tell
from burnish.models.adapters import ADAPTER_WEIGHTS, Adapter, read_adapter
from burnish.models.folder import ADAPTER_CONFIG


def export_adapter(request: ExportRequest, source: ExportSource, adapter: Adapter, folder: Path, tell: Tell) -> Facts:
    """Write the adapter into `folder`; a ModelError unless it does to its base what the source's did."""
    bench = Bench(request, source)
    tell(f"measuring {adapter.folder} on its base {source.model}")
    model, _ = bench.load(source.model, source.dtype, adapter)
    before = bench.measure(model, adapter.folder)
    del model
    tensors = adapter_tensors(adapter, request.dtype)
    require_finite(tensors.items(), adapter.folder)
    settings = adapter.settings | {"inference_mode": True}
    if request.base is not None:  # named in place of theirs, a folder by its full path
        is_folder = Path(request.base).expanduser().is_dir()
        base = str(source.model.resolve()) if is_folder else request.base
        settings |= {"base_model_name_or_path": base, "revision": None}
    tell("writing")
    with writing(request.out):
        write_adapter(tensors, settings, folder)
        copy_tokenizer(source.tokenizer, bench.tokenizer, folder)
    tell("reading the export again")
    written = read_adapter(folder)
    hashes = [{name: hash_of(t) for name, t in ts.items()} for ts in (tensors, adapter_tensors(written, None))]
    require_same_weights(*hashes)
    model, _ = bench.load(source.model, source.dtype, written)
    found = difference(before, bench.measure(model, folder))
    allowed = bench.allowed(request.dtype or source.dtype, same_sums=request.dtype is None)
    require_near(found, allowed, f"the {bench.what} of source and export")
    require_same_tokenizer(bench.tokenizer, bench.read_tokenizer(folder))
    dtype = ", ".join(sorted({DTYPES.get(tensor.dtype, tensor.dtype) for tensor in written.tensors.values()}))
    parameters = sum(tensor.numel() for tensor in tensors.values())
    zeros = count_zeros(tensors.values()) - count_zeros(adapter_tensors(adapter, None).values())
    return Facts(
        kind=f"LoRA adapter of {written.base}",
        parameters=parameters,
        dtype=dtype,
        tokens=bench.tokens,
        found=found,
        allowed=allowed,
        notes=note_on_zeros(zeros, parameters, dtype),
    )


def adapter_tensors(adapter: Adapter, dtype: str | None) -> dict[str, Tensor]:
    """Its weights, as they are or as `dtype`."""
    tensors = load_file(adapter.folder / ADAPTER_WEIGHTS)
    if dtype is None:
        return tensors
    return {name: t.to(getattr(torch, dtype)) if t.is_floating_point() else t for name, t in tensors.items()}


def write_adapter(tensors: dict[str, Tensor], settings: dict[str, object], folder: Path) -> None:
    (folder / ADAPTER_CONFIG).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    save_file(tensors, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
