"""`burnish export`: from a checkpoint, an adapter or any model folder to a clean Hugging Face folder that is proven.

    request.py      what the user asked for
    source.py       where the model lies, whether it is whole, what it is (no torch)
    place.py        the folder that appears whole or not at all (no torch)
    model.py        a whole model: load, measure, merge an adapter, write, read back, compare
    adapter.py      an adapter alone
    write.py        the files; generation.py: the settings of generation
    check.py        log-probs of fixed token sequences, weights and tokenizers: equal or an error
    report.py       what the user is told

`export` consumes a `Request` and hands on a `Report`; the source is only ever read. torch is imported once everything
that can be told without it is known to be right.
"""

from burnish.export.place import check_apart, check_out, new_folder
from burnish.export.report import Report
from burnish.export.request import Request, Tell
from burnish.export.source import find_source

__all__ = ["Report", "Request", "export"]


def export(request: Request, tell: Tell) -> Report:
    """Write what `request` asks for and put it in place once it is proven equal to its source."""
    out = check_out(request.out, overwrite=request.overwrite)
    source = find_source(request, tell)
    check_apart(out, source.within)
    with new_folder(out, source.bytes_as(request), overwrite=request.overwrite) as folder:
        if source.adapter and request.adapter_only:
            from burnish.export.adapter import export_adapter

            facts = export_adapter(request, source, source.adapter, folder, tell)
        else:
            from burnish.export.model import export_model

            facts = export_model(request, source, folder, tell)
    return Report.of(request, source, out, facts)
