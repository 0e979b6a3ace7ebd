"""`burnish retriever index`: a corpus of passages to the folder that `query` and `serve` open.

The flags are here; what builds is `burnish/search/index.py`, imported when the flags are right.
"""

import time
from pathlib import Path

from burnish.cli.arguments import Parser, positive
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
    """One progress bar after the other: a new one whenever something else is being done."""

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


def parser() -> Parser:
    flags = Parser(
        "retriever index",
        'An index of a corpus: JSON lines (.jsonl, .jsonl.gz) such as {"id": "0", "contents": "\\"Title\\"\\ntext"}.\n'
        "The same command goes on after an interruption. What the encoder wants is read from its folder.",
        "retriever index --corpus corpus.jsonl --output wiki-index",
    )
    add = flags.add_argument
    add("--corpus", required=True, metavar="FILE", help="the passages")
    add("--output", required=True, metavar="DIR", help="where the index goes: a new or empty folder")
    add("--kind", choices=KINDS, help="bm25: words; dense: vectors; both [both with --encoder, else bm25]")
    add(
        "--encoder",
        metavar="FOLDER",
        help="a Hugging Face encoder (all-MiniLM-L6-v2, e5, bge …) that makes the vectors",
    )
    add(
        "--pooling", choices=("mean", "cls", "last"), help="tokens to one vector [as the encoder's folder or name says]"
    )
    add("--query-prefix", metavar="TEXT", help='put before queries, such as "query: " [likewise]')
    add("--passage-prefix", metavar="TEXT", help='put before passages, such as "passage: " [likewise]')
    add("--similarity", choices=("cosine", "dot"), help="of vectors [cosine; dot for Contriever]")
    add(
        "--max-length",
        type=positive,
        metavar="N",
        help="tokens of a passage that are read [the encoder's, at most 512]",
    )
    add(
        "--faiss",
        choices=("flat", "hnsw", "ivf"),
        help="flat: exact; hnsw: a graph, fast; ivf: cells, quicker to build than hnsw [flat]",
    )
    add("--device", metavar="NAME", help="where passages are embedded: cpu or cuda [cpu]")
    return flags
