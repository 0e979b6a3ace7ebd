"""`burnish retriever index`, which builds a folder (`search/index.py`), and `query`, which prints the passages found in
it."""

import argparse
import time
from pathlib import Path

from burnish.entry.arguments import FlagParser, add_input, positive
from burnish.errors import ConfigError
from burnish.literal import json_text, print_text
from burnish.tracking.progress import Progress

KINDS = ("bm25", "dense", "both")


def index(argv: list[str]) -> int:
    flags = index_parser().parse_args(argv)
    from burnish.search.encoder_settings import EncoderOptions
    from burnish.search.index import IndexOptions, Kind, build_index

    names = ("pooling", "query_prefix", "passage_prefix", "similarity", "max_length")
    folder = Path(flags.encoder).expanduser() if flags.encoder else None
    encoder = EncoderOptions(folder, **{name: getattr(flags, name) for name in names}, faiss=flags.faiss or "flat")
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
    print_text(f"{output}: {manifest.passages} passages, {kind}, {size:.0f} MB, {time.monotonic() - began:.0f} s")
    print_text(f'next: burnish retriever query {output} "…"')
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


def index_parser() -> FlagParser:
    flags = FlagParser(
        "retriever index",
        'Index a corpus: JSON lines (.jsonl, .jsonl.gz) such as {"id": "0", "contents": "\\"Title\\"\\ntext"}.\n'
        "Run again after an interruption, it resumes. Settings of the encoder are read from its folder.",
        "retriever index corpus.jsonl --out wiki-index",
    )
    add_input(flags, "corpus", "CORPUS", "file of passages")
    add = flags.add_argument
    add("--out", "--output", dest="output", required=True, metavar="DIR", help="new or empty folder for the index")
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


SHOWN = 300  # characters of a passage


def query(argv: list[str]) -> int:
    parser = query_parser()
    flags = parser.parse_args(argv)
    folder, *queries = [flags.index] * (flags.index is not None) + flags.words
    if not queries:
        parser.error("the query is missing")
    from burnish.search.index import open_index

    retriever = open_index(
        Path(folder).expanduser(),
        mode=flags.mode,
        rerank=flags.rerank,
        device=flags.device,
        corpus=Path(flags.corpus).expanduser() if flags.corpus else None,
    )
    for query, hits in zip(queries, retriever.search(queries, flags.topk), strict=True):
        if flags.json:
            documents = [{"id": hit.document.id, "contents": hit.document.contents} for hit in hits]
            shown = [{"document": one, "score": hit.score} for one, hit in zip(documents, hits, strict=True)]
            print_text(json_text({"query": query, "hits": shown}))
            continue
        print_text(f"{query} ({retriever.name}, {len(retriever)} passages)")
        for rank, hit in enumerate(hits, 1):
            text = " ".join(hit.document.text.split())
            text = text[: SHOWN - 1] + "…" if len(text) > SHOWN else text
            print_text(f"{rank:>3}. {hit.score:.4f}  [{hit.document.id}] {hit.document.title}")
            print_text(f"     {text}")
        if not hits:
            print_text("     nothing found")
    return 0


def query_parser() -> FlagParser:
    flags = FlagParser(
        "retriever query",
        "Search an index and print the passages, best first.",
        'retriever query wiki-index "who wrote hamlet" --topk 3',
        usage="burnish retriever query INDEX QUERY [QUERY …] [flags]",
    )
    add = flags.add_argument
    words = "folder made by `burnish retriever index`, and one or more queries"
    add("words", nargs="+", metavar="INDEX QUERY", help=words)
    add("--index", help=argparse.SUPPRESS)
    add("--topk", type=positive, default=3, metavar="N", help="passages per query [3]")
    add("--mode", metavar="NAME", help="bm25, dense or hybrid [what the index has; hybrid if it has both]")
    add("--rerank", metavar="FOLDER", help="cross-encoder that re-ranks the passages")
    add("--corpus", metavar="FILE", help="check that the index was built from this corpus")
    add("--device", default="cpu", metavar="NAME", help="device of the encoders: cpu or cuda [cpu]")
    add("--json", action="store_true", help="print one JSON object per query, with whole passages")
    return flags
