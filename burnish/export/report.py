"""What an export came to, for the user; needs no torch."""

from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from burnish.export.place import as_size
from burnish.export.request import Request
from burnish.export.source import Source

if TYPE_CHECKING:
    from burnish.export.check import Difference


@dataclass(frozen=True)
class Facts:
    """What `export_model` and `export_adapter` found out."""

    kind: str  # the class of the model, or what the adapter belongs to
    parameters: int
    dtype: str
    tokens: int  # compared
    found: "Difference"  # between source and export
    allowed: "Difference"
    from_float32: "Difference | None" = None  # where the weights were cast
    effect: "Difference | None" = None  # of a merged adapter on its base
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Report:
    """An export that is in place."""

    out: Path
    request: Request
    source: Source
    facts: Facts
    files: dict[str, int]  # name → bytes

    @classmethod
    def of(cls, request: Request, source: Source, out: Path, facts: Facts) -> "Report":
        files = {str(p.relative_to(out)): p.stat().st_size for p in sorted(out.rglob("*")) if p.is_file()}
        return cls(out, request, source, facts, files)

    def __str__(self) -> str:
        facts, what = self.facts, "values" if self.source.values else "log-probs"
        weights = [name for name in self.files if name.endswith(".safetensors")]
        lines = [
            f"exported {self.request.out}",
            f"  from     {self.source.folder}",
            f"  model    {facts.kind}, {_count(facts.parameters)} parameters, {facts.dtype}",
            f"  files    {len(self.files)} ({len(weights)} of weights), {as_size(sum(self.files.values()))}",
            f"  check    {what} of {facts.tokens} tokens: max difference {facts.found.largest:.3g}, "
            f"mean {facts.found.mean:.3g} ({self._allowed()})",
        ]
        if facts.from_float32:
            gap = facts.from_float32
            lines.append(f"           from the source in float32: max {gap.largest:.3g}, mean {gap.mean:.3g}")
        if facts.effect:
            lines.append(
                f"           what the adapter changes: max {facts.effect.largest:.3g}, mean {facts.effect.mean:.3g}"
            )
        lines.append("           weights and tokenizer read again from disk: the same")
        lines += [f"  note     {note}" for note in facts.notes]
        return "\n".join([*lines, *self._next()])

    def _allowed(self) -> str:
        allowed = self.facts.allowed
        return f"allowed: {allowed.largest:g} and {allowed.mean:g}" if allowed.largest else "must be 0"

    def _next(self) -> list[str]:
        folder = quote(str(self.request.out))
        if self.source.values:
            return []
        if self.request.adapter_only:
            return ["next:", f"  burnish export {folder} --out FOLDER   # merged, to chat with and to serve"]
        return ["next:", f"  burnish chat {folder}", f"  burnish serve {folder}"]


def _count(parameters: int) -> str:
    for unit, width in (("B", 10**9), ("M", 10**6)):
        if parameters >= width / 10:
            return f"{parameters / width:.2f}{unit}"
    return f"{parameters:,}"
