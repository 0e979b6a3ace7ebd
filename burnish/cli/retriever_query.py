"""`burnish retriever query`: searches an index and prints the passages, as text or (`--json`) JSON."""

import json
from pathlib import Path

from burnish.entry.arguments import FlagParser, positive
from burnish.literal import literal

SHOWN = 300  # characters of a passage


def main(argv: list[str]) -> int:
    flags = parser().parse_args(argv)
    from burnish.search.open_index import open_index

    retriever = open_index(
        Path(flags.index).expanduser(),
        mode=flags.mode,
        rerank=flags.rerank,
        device=flags.device,
        corpus=Path(flags.corpus).expanduser() if flags.corpus else None,
    )
    for query, hits in zip(flags.query, retriever.search(flags.query, flags.topk), strict=True):
        if flags.json:
            shown = [
                {"document": {"id": hit.document.id, "contents": hit.document.contents}, "score": hit.score}
                for hit in hits
            ]
            print(json.dumps({"query": query, "hits": shown}, ensure_ascii=False))
            continue
        print(literal(f"{query} ({retriever.name}, {len(retriever)} passages)"))
        for rank, hit in enumerate(hits, 1):
            text = " ".join(hit.document.text.split())
            text = text[: SHOWN - 1] + "…" if len(text) > SHOWN else text
            print(literal(f"{rank:>3}. {hit.score:.4f}  [{hit.document.id}] {hit.document.title}"))
            print(literal(f"     {text}"))
        if not hits:
            print("     nothing found")
    return 0


def parser() -> FlagParser:
    flags = FlagParser(
        "retriever query",
        "Search an index and print the passages, best first.",
        'retriever query --index wiki-index "who wrote hamlet" --topk 3',
    )
    add = flags.add_argument
    add("query", nargs="+", metavar="QUERY", help="one or more queries")
    add("--index", required=True, metavar="DIR", help="folder made by `burnish retriever index`")
    add("--topk", type=positive, default=3, metavar="N", help="passages per query [3]")
    add("--mode", metavar="NAME", help="bm25, dense or hybrid [what the index has; hybrid if it has both]")
    add("--rerank", metavar="FOLDER", help="cross-encoder that re-ranks the passages")
    add("--corpus", metavar="FILE", help="check that the index was built from this corpus")
    add("--device", default="cpu", metavar="NAME", help="device of the encoders: cpu or cuda [cpu]")
    add("--json", action="store_true", help="print one JSON object per query, with whole passages")
    return flags
