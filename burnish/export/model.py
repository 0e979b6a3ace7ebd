"""A whole model: load, measure, merge its adapter, write, read back, compare.

Source and export are never in memory together: `_write` and `_read_back` each load one model, and hand on only what
they found out about it.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from burnish.errors import ModelError
from burnish.export.bench import Bench
from burnish.export.check import (
    Difference,
    difference,
    fingerprints,
    require_near,
    require_same_tokenizer,
    require_same_weights,
)
from burnish.export.generation import generation_config
from burnish.export.place import as_size, writing
from burnish.export.report import Facts
from burnish.export.request import Request, Tell
from burnish.export.source import Source
from burnish.export.write import copy_tokenizer, write_model
from burnish.models.adapters import merge
from burnish.models.loading import named

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Findings:
    """What is known of a model once it is out of memory again."""

    kind: str
    parameters: int
    dtype: str
    outputs: list[Tensor]  # log-probs, or values, of each probe
    weights: dict[str, str]  # hashes
    effect: Difference | None = None  # of an adapter on its base
    notes: list[str] = field(default_factory=list)


def export_model(request: Request, source: Source, folder: Path, tell: Tell) -> Facts:
    """Write the model of `source`, its adapter merged, into `folder`; a ModelError unless it proves to be the same."""
    bench = Bench(request, source)
    dtype = request.dtype or source.dtype
    in_float32 = None
    if dtype != source.dtype and dtype != "float32":
        tell(f"measuring {source.folder} in float32, for comparison")
        model, _ = bench.load(source.model, "float32", source.adapter)
        in_float32 = bench.measure(model, source.folder)
        del model
    before = _write(bench, request, source, dtype, folder, tell)
    tell("reading the export again")
    after = _read_back(bench, folder)
    found, allowed = difference(before.outputs, after.outputs), bench.allowed(dtype, same_sums=not source.adapter)
    _require_same(before, after)
    require_near(found, allowed, f"the {'values' if source.values else 'log-probs'} of source and export")
    require_same_tokenizer(bench.tokenizer, bench.read_tokenizer(folder))
    return Facts(
        kind=after.kind,
        parameters=after.parameters,
        dtype=after.dtype,
        tokens=bench.tokens,
        found=found,
        allowed=allowed,
        from_float32=difference(in_float32, after.outputs) if in_float32 else None,
        effect=before.effect,
        notes=before.notes + _lost_in_rounding(before.effect, found, after.dtype),
    )


def _write(bench: Bench, request: Request, source: Source, dtype: str, folder: Path, tell: Tell) -> Findings:
    """Load the source in the type of the export, measure it unmerged, merge it and write it."""
    tell(f"reading {source.model} ({as_size(source.bytes_as(request))} as {dtype})")
    model, unused = bench.load(source.model, dtype, source.adapter)
    notes = [f"left out, because the architecture has no place for it: {named(unused)}"] if unused else []
    outputs, effect = bench.measure(model, source.folder), None
    if source.adapter:
        if not source.values:  # a base that was no value model has no head to compare with
            with model.disable_adapter():
                effect = difference(outputs, bench.measure(model, source.model))
        tell("merging the adapter")
        model = merge(model, source.adapter)
    generation = None
    if model.can_generate():
        generation, changed = generation_config(source, model.config, bench.tokenizer)
        notes += changed
    tell("writing")
    with writing(request.out):
        write_model(model, generation, folder, request, source)
        copy_tokenizer(source.tokenizer, bench.tokenizer, folder)
    return _findings(model, outputs, effect, notes)


def _read_back(bench: Bench, folder: Path) -> Findings:
    """Load the export as anyone would, in the type that its config.json names."""
    model, unused = bench.load(folder, None)
    if unused:
        raise ModelError(f"the export was not put in place: nothing reads its {named(unused)}")
    return _findings(model, bench.measure(model, folder))


def _findings(
    model: "PreTrainedModel", outputs: list[Tensor], effect: Difference | None = None, notes: list[str] | None = None
) -> Findings:
    return Findings(
        kind=type(model).__name__,
        parameters=sum(parameter.numel() for parameter in model.parameters()),  # tied ones once
        dtype=str(model.dtype).removeprefix("torch."),
        outputs=outputs,
        weights=fingerprints(model),
        effect=effect,
        notes=notes or [],
    )


def _require_same(before: Findings, after: Findings) -> None:
    for name in ("kind", "dtype", "parameters"):
        wanted, found = getattr(before, name), getattr(after, name)
        if wanted != found:
            raise ModelError(f"the export was not put in place: read again, its {name} is {found} instead of {wanted}")
    require_same_weights(before.weights, after.weights)


def _lost_in_rounding(effect: Difference | None, found: Difference, dtype: str) -> list[str]:
    if effect is None:
        return []
    if effect.largest == 0:
        return ["the adapter changes nothing: the merged model is its base"]
    if found.mean <= effect.mean / 2:
        return []
    return [
        f"{dtype} rounds away much of what the adapter changes; use --dtype float32, or keep it with --adapter-only"
    ]
