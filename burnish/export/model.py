"""A whole model, its adapter merged (`export_model`), or an adapter alone, checked on its base (`export_adapter`).

What is on disk must be what was written, bit by bit; what was cast or merged must compute what the source does, both
in float32. Source and export are never in memory together.
"""

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import GenerationConfig

from burnish.errors import ModelError
from burnish.export import Facts
from burnish.export.check import (
    ROUNDING,
    Bench,
    Difference,
    count_zeros,
    difference,
    fingerprints,
    hash_of,
    note_on_zeros,
    require_finite,
    require_near,
    require_same_tokenizer,
    require_same_weights,
)
from burnish.export.place import as_size, copy_tokenizer, writing
from burnish.export.source import DTYPES, ExportRequest, ExportSource, Log
from burnish.models.adapters import ADAPTER_WEIGHTS, Adapter, merge, read_adapter
from burnish.models.folder import ADAPTER_CONFIG
from burnish.models.loading import named, quiet_transformers, reading

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

GENERATION = "generation_config.json"


@dataclass(frozen=True)
class Reference:
    outputs: list[Tensor]  # log-probs, or values, of each probe
    effect: Difference | None  # of an adapter on its base
    zeros: int  # weights that are 0


@dataclass(frozen=True)
class Findings:
    kind: str
    parameters: int
    dtype: str
    zeros: int
    outputs: list[Tensor]
    weights: dict[str, str]  # hashes
    in_float32: list[Tensor] = field(default_factory=list)  # outputs, where they were asked for
    notes: list[str] = field(default_factory=list)


def export_model(request: ExportRequest, source: ExportSource, folder: Path, log: Log) -> Facts:
    """Write the model of `source`, its adapter merged, into `folder`; a ModelError unless it proves to be the same."""
    bench = Bench(request, source)
    dtype = request.dtype or source.dtype
    reference = None
    if source.adapter or not source.is_exact_in(dtype):
        log(f"measuring {source.folder} in float32, for comparison")
        reference = _measure_source(bench, source)
    before = _write(bench, request, source, dtype, folder, log)
    log("reading the export again")
    after = _read_back(bench, folder, in_float32=reference is not None)
    found, allowed = difference(before.outputs, after.outputs), bench.allowed(dtype, same_sums=True)
    for name in ("kind", "dtype", "parameters"):
        wanted, is_now = getattr(before, name), getattr(after, name)
        if wanted != is_now:
            raise ModelError(f"the export was not put in place: read again, its {name} is {is_now} instead of {wanted}")
    require_same_weights(before.weights, after.weights)
    require_near(found, allowed, f"the {bench.what} of what was written and what was read again")
    require_same_tokenizer(bench.tokenizer, bench.read_tokenizer(folder))
    from_float32, notes = _require_close(bench, reference, after) if reference else (None, [])
    return Facts(
        kind=after.kind,
        parameters=after.parameters,
        dtype=after.dtype,
        tokens=bench.tokens,
        found=found,
        allowed=allowed,
        from_float32=from_float32,
        effect=reference.effect if reference else None,
        notes=before.notes + notes,
    )


def _measure_source(bench: Bench, source: ExportSource) -> Reference:
    model, _ = bench.load(source.model, "float32", source.adapter)
    outputs, effect = bench.measure(model, source.folder), None
    if source.adapter:
        if not source.values:  # a base that was no value model has no head to compare with
            with model.disable_adapter():
                effect = difference(outputs, bench.measure(model, source.model))
        model = merge(model, source.adapter)
    require_finite(model.named_parameters(), source.folder)
    return Reference(outputs, effect, count_zeros(model.parameters()))


def _write(bench: Bench, request: ExportRequest, source: ExportSource, dtype: str, folder: Path, log: Log) -> Findings:
    log(f"reading {source.model} ({as_size(source.bytes_as(request))} as {dtype})")
    model, unused = bench.load(source.model, dtype, source.adapter)
    notes = [f"omitted, because the architecture does not use it: {named(unused)}"] if unused else []
    if source.adapter:
        log("merging the adapter")
        model = merge(model, source.adapter)
    require_finite(model.named_parameters(), source.folder)
    outputs, generation = bench.measure(model, source.folder), None
    if model.can_generate():
        generation, changed = generation_config(source, model.config, bench.tokenizer)
        notes += changed
    log("writing")
    with writing(request.out):
        if generation is not None:
            model.generation_config = generation
        with quiet_transformers():
            model.save_pretrained(folder, max_shard_size=request.max_shard_bytes)
        for file in source.model.glob("*.py") if request.trust_remote_code else ():
            shutil.copyfile(file, folder / file.name)
        copy_tokenizer(source.tokenizer, bench.tokenizer, folder)
    return _findings(model, outputs, notes=notes)


def _read_back(bench: Bench, folder: Path, *, in_float32: bool) -> Findings:
    """Load the export as anyone would, in the type that its config.json names; then, if asked, widen and measure it."""
    model, unused = bench.load(folder, None)
    if unused:
        raise ModelError(f"the export was not put in place: nothing reads its {named(unused)}")
    findings = _findings(model, bench.measure(model, folder))
    if in_float32:
        findings.in_float32.extend(bench.measure(model, folder, widen=True))
    return findings


def _findings(model: "PreTrainedModel", outputs: list[Tensor], notes: list[str] | None = None) -> Findings:
    return Findings(
        kind=type(model).__name__,
        parameters=sum(parameter.numel() for parameter in model.parameters()),  # tied ones once
        dtype=str(model.dtype).removeprefix("torch."),
        zeros=count_zeros(model.parameters()),
        outputs=outputs,
        weights=fingerprints(model),
        notes=notes or [],
    )


def _require_close(bench: Bench, reference: Reference, after: Findings) -> tuple[Difference, list[str]]:
    """How far rounding took the export from the source, and what to say about it; too far is a ModelError."""
    gap, effect = difference(reference.outputs, after.in_float32), reference.effect
    require_near(gap, ROUNDING[after.dtype], f"the {bench.what} of source and export, both in float32,")
    notes = note_on_zeros(after.zeros - reference.zeros, after.parameters, after.dtype)
    if effect and effect.largest == 0:
        return gap, [*notes, "the adapter changes nothing: the merged model is its base"]
    if effect and gap.mean > effect.mean / 2:
        raise ModelError(
            f"the export was not put in place: {after.dtype} rounds away what the adapter changes: it moves the "
            f"{bench.what} by {effect.mean:.3g} on average, and the export is {gap.mean:.3g} from that; use "
            "--dtype float32, or keep the adapter with --adapter-only"
        )
    return gap, notes


def generation_config(
    source: ExportSource, config: "PreTrainedConfig", tokenizer: "PreTrainedTokenizerBase"
) -> tuple[GenerationConfig, list[str]]:
    """The source's settings (or its base's), and what was changed in them: the tokenizer's end of sequence is always
    among `eos_token_id`, at which serving engines stop."""
    folder = next((path for path in (source.folder, source.model) if (path / GENERATION).is_file()), None)
    with reading(folder or source.model, GENERATION), quiet_transformers():
        settings = GenerationConfig.from_pretrained(folder) if folder else GenerationConfig.from_model_config(config)
    vocabulary = config.get_text_config().vocab_size
    eos, pad = settings.eos_token_id, settings.pad_token_id
    ends = [i for i in ([eos] if isinstance(eos, int) else eos or []) if 0 <= i < vocabulary]
    if tokenizer.eos_token_id is not None and tokenizer.eos_token_id not in ends:
        ends.insert(0, tokenizer.eos_token_id)
    settings.eos_token_id = (ends[0] if len(ends) == 1 else ends) if ends else None
    known_pad = pad if pad is not None and 0 <= pad < vocabulary else ends[0] if ends else None
    settings.pad_token_id = known_pad if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    notes = []
    if settings.eos_token_id != eos:
        became = settings.eos_token_id
        notes.append(f"{GENERATION}: eos_token_id {eos} became {became}, to stop where the tokenizer does")
    if settings.pad_token_id != pad:
        notes.append(f"{GENERATION}: pad_token_id {pad} became {settings.pad_token_id}, as in the tokenizer")
    with quiet_transformers():  # which refuse to save settings of sampling with do_sample=False; engines follow them
        try:
            settings.validate(strict=True)
            return settings, notes
        except ValueError:
            settings.do_sample = True
        try:
            settings.validate(strict=True)
        except ValueError as error:
            reason = " ".join(str(error).split())
            raise ModelError(f"{source.folder}: {GENERATION} is not valid: {reason}; fix it there") from error
    return settings, [*notes, f"{GENERATION}: do_sample became True, because it has settings of sampling"]


def export_adapter(request: ExportRequest, source: ExportSource, adapter: Adapter, folder: Path, log: Log) -> Facts:
    """Write the adapter into `folder`; a ModelError unless it does to its base what the source's did."""
    bench = Bench(request, source)
    log(f"measuring {adapter.folder} on its base {source.model}")
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
    log("writing")
    with writing(request.out):
        (folder / ADAPTER_CONFIG).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
        save_file(tensors, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
        copy_tokenizer(source.tokenizer, bench.tokenizer, folder)
    log("reading the export again")
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
    tensors = load_file(adapter.folder / ADAPTER_WEIGHTS)
    if dtype is None:
        return tensors
    return {name: t.to(getattr(torch, dtype)) if t.is_floating_point() else t for name, t in tensors.items()}
