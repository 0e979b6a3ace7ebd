"""`burnish export`: from a checkpoint, an adapter or any model folder to a clean, verified Hugging Face folder.

    source.py   what was asked for; where the model is, whether it is whole, what it is (no torch)
    place.py    the folder that appears whole or not at all (no torch)
    model.py    a whole model, or an adapter alone: measure, load, merge, write, read back, compare
    check.py    log-probs of fixed token sequences, weights and tokenizers: equal or an error

torch is imported once everything that can be checked without it has been checked.
"""

from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from burnish.export.place import as_size, check_apart, check_out, new_folder
from burnish.export.source import ExportRequest, ExportSource, Log, find_source

if TYPE_CHECKING:
    from burnish.export.check import Difference

__all__ = ["ExportReport", "ExportRequest", "Facts", "export"]


def export(request: ExportRequest, log: Log) -> "ExportReport":
    """Write what `request` asks for and put it in place once it is proven equal to its source."""
    out = check_out(request.out, overwrite=request.overwrite)
    source = find_source(request, log)
    check_apart(out, source.within)
    with new_folder(out, source.bytes_as(request), overwrite=request.overwrite) as folder:
        from burnish.export.model import export_adapter, export_model

        alone = source.adapter if request.adapter_only else None
        facts = (
            export_adapter(request, source, alone, folder, log) if alone else export_model(request, source, folder, log)
        )
    files = {str(p.relative_to(out)): p.stat().st_size for p in sorted(out.rglob("*")) if p.is_file()}
    return ExportReport(out, request, source, facts, files)


@dataclass(frozen=True)
class Facts:
    kind: str  # the class of the model, or what the adapter belongs to
    parameters: int
    dtype: str
    tokens: int  # compared
    found: "Difference"  # between what was written and what was read again
    allowed: "Difference"
    from_float32: "Difference | None" = None  # of a cast or merged model from its source, both run in float32
    effect: "Difference | None" = None  # of a merged adapter on its base
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ExportReport:
    out: Path
    request: ExportRequest
    source: ExportSource
    facts: Facts
    files: dict[str, int]  # name → bytes

    def __str__(self) -> str:
        facts, what = self.facts, "values" if self.source.values else "log-probs"
        parameters = f"{facts.parameters:,}"
        for unit, width in (("M", 10**6), ("B", 10**9)):
            if facts.parameters >= width / 10:
                parameters = f"{facts.parameters / width:.2f}{unit}"
        weights = [name for name in self.files if name.endswith(".safetensors")]
        lines = [
            f"exported {self.request.out}",
            f"  from     {self.source.folder}",
            f"  model    {facts.kind}, {parameters} parameters, {facts.dtype}",
            f"  files    {len(self.files)} ({len(weights)} of weights), {as_size(sum(self.files.values()))}",
            f"  check    {what} of {facts.tokens} tokens: max difference {facts.found.largest:.3g}, "
            f"mean {facts.found.mean:.3g} (allowed: {facts.allowed.largest:g} and {facts.allowed.mean:g})",
        ]
        further = {"from the source in float32": facts.from_float32, "what the adapter changes": facts.effect}
        for title, gap in further.items():
            if gap:
                lines.append(f"           {title}: max {gap.largest:.3g}, mean {gap.mean:.3g}")
        lines.append("           weights and tokenizer read again from disk: the same")
        lines += [f"  note     {note}" for note in facts.notes]
        folder = quote(str(self.request.out))
        if self.request.adapter_only and not self.source.values:
            lines += ["next:", f"  burnish export {folder} --out FOLDER   # merged, to chat with and to serve"]
        elif not self.source.values:
            lines += ["next:", f"  burnish chat {folder}", f"  burnish serve {folder}"]
        return "\n".join(lines)
