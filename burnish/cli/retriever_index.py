"""`burnish retriever index`: builds the folder that `query` and `serve` open. The work is `burnish/search/index.py`."""

import time
from pathlib import Path

from burnish.entry.arguments import FlagParser, positive
from burnish.errors import ConfigError
from burnish.tracking.progress import Progress

KINDS = ("bm25", "dense", "both")


def main(argv: list[str]) -> int:
    flags = parser().parse_args(argv)
    from burnish.search.encoder_settings import EncoderOptions
    from burnish.search.index import IndexOptions, Kind, build_index

    encoder = EncoderOptions(
        folder=Path(flags.encoder).expanduser() if flags.encoder else None,
        pooling=flags.pooling,
        query_prefix=flags.query_prefix,
        passage_prefix=flags.passage_prefix,
        similarity=flags.similarity,
        max_length=flags.max_length,
        faiss=flags.faiss or "flat",
    )
    kind: Kind = flags.kind or ("both" if flags.encoder else "bm25")
    for name in ("faiss", "device"):
        if kind == "bm25" and getattr(flags, name):
            raise ConfigError(f"--{name} goes with --kind dense or --kind both, and --encoder FOLDER")
    output = Path(flags.output).expanduser()
    options = IndexOptions(Path(flags.corpus).expanduser(), output, kind, encoder, flags.device or "cpu")
    began, shown = time.monotonic(), Phases()
    try:
        manifest = build_index(options, shown)
    finally:
        shown.close()
    size = sum(each.bytes for each in manifest.files.values()) / 1e6
    print(f"{output}: {manifest.passages} passages, {kind}, {size:.0f} MB, {time.monotonic() - began:.0f} s")
    print(f'next: burnish retriever query --index {output} "…"')
    return 0


class Phases:
    """A progress bar for each phase, one after the other."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._what = ""

    def __call__(self, what: str, done: int, total: int, unit: str) -> None:
        if self._bar is None or what != self._what:
            self.close()
            self._what, self._bar = what, Progress(what, total, unit=unit).__enter__()
        if done > self._bar.done:
            self._bar.advance(done - self._bar.done)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.__exit__(None, None, None)
            self._bar = None


def parser() -> FlagParser:
    flags = FlagParser(
        "retriever index",
        'Index a corpus: JSON lines (.jsonl, .jsonl.gz) such as {"id": "0", "contents": "\\"Title\\"\\ntext"}.\n'
        "Run again after an interruption, it resumes. Settings of the encoder are read from its folder.",
        "retriever index --corpus corpus.jsonl --output wiki-index",
    )
    add = flags.add_argument
    add("--corpus", required=True, metavar="FILE", help="file of passages")
    add("--output", required=True, metavar="DIR", help="new or empty folder for the index")
    add("--kind", choices=KINDS, help="bm25: words; dense: vectors; both [both with --encoder, else bm25]")
    add("--encoder", metavar="FOLDER", help="Hugging Face encoder of the passages: all-MiniLM-L6-v2, e5, bge …")
    add("--pooling", choices=("mean", "cls", "last"), help="how token vectors are pooled [from the encoder's folder]")
    add("--query-prefix", metavar="TEXT", help='prefix of queries, such as "query: " [from the encoder\'s folder]')
    add("--passage-prefix", metavar="TEXT", help='prefix of passages, such as "passage: " [from the encoder\'s folder]')
    add("--similarity", choices=("cosine", "dot"), help="similarity of vectors [cosine; dot for Contriever]")
    add("--max-length", type=positive, metavar="N", help="tokens read of a passage [the encoder's, at most 512]")
    faiss = "flat: exact; hnsw: a graph, fast; ivf: cells, quicker to build than hnsw [flat]"
    add("--faiss", choices=("flat", "hnsw", "ivf"), help=faiss)
    add("--device", metavar="NAME", help="device that embeds the passages: cpu or cuda [cpu]")
    return flags
