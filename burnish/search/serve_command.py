"""`burnish retriever serve INDEX`: the flags; the work is `burnish/search/server.py`."""

from pathlib import Path

from burnish.entry.arguments import (
    FlagParser,
    add_address,
    add_input,
    add_key,
    check_address,
    need_packages,
    not_negative,
    positive,
    read_key,
)
from burnish.errors import ConfigError
from burnish.search.client import KEY_VARIABLE


def main(argv: list[str]) -> int:
    from burnish.search.documents import MAX_TOPK

    flags = parser().parse_args(argv)
    check_address(flags)
    if flags.topk > MAX_TOPK:
        raise ConfigError(f"--topk {flags.topk}: at most {MAX_TOPK}")
    key = read_key(flags.api_key, KEY_VARIABLE)
    need_packages("burnish retriever serve", "search")
    from burnish.search.server import serve

    return serve(
        Path(flags.index).expanduser(),
        flags.host,
        flags.port,
        flags.topk,
        flags.cache,
        key,
        mode=flags.mode,
        rerank=flags.rerank,
        device=flags.device,
        corpus=Path(flags.corpus).expanduser() if flags.corpus else None,
    )


def parser() -> FlagParser:
    made = FlagParser(
        "retriever serve",
        "A retrieval server over an index that `burnish retriever index` built: POST /retrieve, and /health, /metrics, "
        "/docs.",
        "retriever serve wiki-index --port 8000 --topk 5",
    )
    add_input(made, "index", "INDEX", "folder of the index")
    add_address(made, 8000)
    add_key(made, KEY_VARIABLE)
    add = made.add_argument
    add("--topk", type=positive, default=3, metavar="N", help="documents per query if a request does not say [3]")
    add("--mode", metavar="NAME", help="bm25, dense or hybrid [hybrid if the index has both]")
    add("--rerank", metavar="FOLDER", help="cross-encoder that re-ranks the results [none]")
    add("--device", default="cpu", help="device of the encoder and the cross-encoder [cpu]")
    add("--corpus", metavar="FILE", help="refuse an index that was built from another corpus")
    cached = "documents cached for repeated queries [100000]; 0: none"
    add("--cache", type=not_negative, default=100_000, metavar="N", help=cached)
    return made
