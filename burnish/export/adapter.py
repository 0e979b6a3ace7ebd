"""An adapter alone: its settings, weights and tokenizer, checked on its base."""

from pathlib import Path

import torch

from burnish.errors import ModelError
from burnish.export.bench import Bench
from burnish.export.check import difference, require_near, require_same_tokenizer
from burnish.export.place import writing
from burnish.export.report import Facts
from burnish.export.request import Request, Tell
from burnish.export.source import DTYPES, Source
from burnish.export.write import adapter_tensors, copy_tokenizer, write_adapter
from burnish.models.adapters import Adapter, read_adapter
from burnish.models.loading import named


def export_adapter(request: Request, source: Source, adapter: Adapter, folder: Path, tell: Tell) -> Facts:
    """Write the adapter into `folder`; a ModelError unless it does to its base what the source's did."""
    bench = Bench(request, source)
    tell(f"measuring {adapter.folder} on its base {source.model}")
    model, _ = bench.load(source.model, source.dtype, adapter)
    before = bench.measure(model, adapter.folder)
    del model
    tell("writing")
    with writing(request.out):
        write_adapter(adapter, _name_of_base(request, source, adapter), request.dtype, folder)
        copy_tokenizer(source.tokenizer, bench.tokenizer, folder)
    tell("reading the export again")
    written = read_adapter(folder)
    _require_same_tensors(adapter, written, request.dtype)
    model, _ = bench.load(source.model, source.dtype, written)
    found = difference(before, bench.measure(model, folder))
    allowed = bench.allowed(request.dtype or source.dtype, same_sums=request.dtype is None)
    require_near(found, allowed, f"the {'values' if source.values else 'log-probs'} of source and export")
    require_same_tokenizer(bench.tokenizer, bench.read_tokenizer(folder))
    tensors = written.tensors.values()
    return Facts(
        kind=f"LoRA adapter of {written.base}",
        parameters=sum(torch.Size(tensor.shape).numel() for tensor in tensors),
        dtype=", ".join(sorted({DTYPES.get(tensor.dtype, tensor.dtype) for tensor in tensors})),
        tokens=bench.tokens,
        found=found,
        allowed=allowed,
    )


def _name_of_base(request: Request, source: Source, adapter: Adapter) -> str | None:
    """The name stays; a base given with --base is named in its place, a folder by its full path."""
    if request.base is None:
        return adapter.base
    return str(source.model.resolve()) if Path(request.base).expanduser().is_dir() else request.base


def _require_same_tensors(adapter: Adapter, written: Adapter, dtype: str | None) -> None:
    before, after = adapter_tensors(adapter, dtype), adapter_tensors(written, None)
    different = [name for name in before.keys() | after.keys() if not _same(before.get(name), after.get(name))]
    if different:
        raise ModelError(f"the export was not put in place: {named(sorted(different))} is not what was written")


def _same(left: torch.Tensor | None, right: torch.Tensor | None) -> bool:
    return left is not None and right is not None and left.dtype == right.dtype and torch.equal(left, right)
